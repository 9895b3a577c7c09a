"""The log file of a run, whose disk may be full, or in whose place something else may lie."""

import logging
import sys
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)


class LogFile(logging.FileHandler):
    """A log file that says once that it cannot be written; what is logged goes to the other handlers all the same.

    Python's own handler prints a traceback to stderr, fifty lines for each line that is lost.
    """

    _has_warned = False

    def __init__(self, filename: str, *, encoding: str) -> None:
        super().__init__(filename, encoding=encoding, delay=True)  # opened where an error is met as any other

    def emit(self, record: logging.LogRecord) -> None:
        if self.stream is None and not Path(self.baseFilename).parent.exists():
            return  # the run was refused and its folder removed; the other handlers say why
        try:
            super().emit(record)
        except OSError:  # it cannot even be opened
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s cannot be written (%s): lines of the log are lost there, training goes on",
                self.baseFilename,
                error.strerror,
            )

    def close(self) -> None:
        with suppress(OSError):  # it holds the line that did not fit
            super().close()
