"""A file of records that a full disk or a kill cannot spoil."""

import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)


class RecordsFile:
    """A file that grows by whole records and whose failures do not end a training.

    Nothing is held back in a buffer: a record that `append` has returned from survives a kill of the
    process. A write that fails midway (disk full, quota) is taken back, so that what comes after it can
    still be read; the first failure is logged as a warning, later ones are not, and each later record is
    tried again.

    Raises:
        OSError: the file cannot be opened for appending.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab", buffering=0)
        self._has_warned = False

    def append(self, record: bytes) -> None:
        if self._file.closed:
            return
        if not os.fstat(self._file.fileno()).st_nlink:
            self._warn("it was removed")  # what is written now, nobody can read
        end = self._file.seek(0, os.SEEK_END)
        try:
            rest = memoryview(record)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._warn(error.strerror)
            try:
                self._file.truncate(end)
            except OSError:
                self.close()  # a torn record would hide every later one from readers

    def _warn(self, reason: str | None) -> None:
        if not self._has_warned:
            log.warning("%s cannot be written (%s): records are lost, training goes on", self.path, reason)
            self._has_warned = True

    def close(self) -> None:
        """Records appended after this go nowhere. Calling it again does nothing."""
        self._file.close()
