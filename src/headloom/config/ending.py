"""How a command ends: its exit status, and what it says on stderr.

Status 0: done. 1: a file, a checkpoint or the training failed. 2: an option was wrong. 130: interrupted.
141: the reader of a pipe went away. 143: terminated.
"""

import errno
import logging
import os
import signal as signals
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from headloom.config import several
from headloom.data.whole_files import MARK
from headloom.errors import CheckpointError, ConfigError, DataError, RankLost, TrainingDiverged

OF_THE_USER = (ConfigError, DataError, CheckpointError, TrainingDiverged, RankLost)
CANNOT_BE_WRITTEN = frozenset((errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS, errno.EIO))
"""What the system says of a disk that is full or broken, or of a limit on files: no fault of the program."""
STATUS_OPTION, STATUS_FAILED, STATUS_INTERRUPTED, STATUS_CLOSED_PIPE, STATUS_TERMINATED = 2, 1, 130, 141, 143


class Terminated(BaseException):
    """SIGTERM, raised as Ctrl-C is: what is half-written is removed on the way out."""


def status_of(act: Callable[[], None], command: str) -> int:
    """Act; the exit status, with what the user did wrong as one line on stderr that begins with the command."""
    # Read by OpenMP when torch is loaded. On its own it spins so long for the next piece of work that two threads on
    # cores that others use too are ten times slower than one; on idle cores this costs nothing.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    seen: list[int] = []
    # As torch does at the end of its import. One that is ended before that would log at its end what it counted.
    logging.getLogger("torch").setLevel(logging.WARNING)
    _occupy_closed_streams()
    if sys.stdout is None:
        several.say_of_this_rank(command, "standard output is closed: send it to a file, or to /dev/null")
        return STATUS_FAILED
    try:
        with _raising(seen):
            act()
            sys.stdout.flush()  # what cannot be written is met here, and not in the interpreter's own last flush
    except OF_THE_USER as error:
        several.say_of_this_rank(command, one_line(error))
        return STATUS_OPTION if isinstance(error, ConfigError) else STATUS_FAILED
    except BrokenPipeError:
        _flush_or_drop_output()
        return STATUS_CLOSED_PIPE
    except (Exception, KeyboardInterrupt, Terminated) as error:
        # A package that is being loaded may swallow what a signal raises, and fail later for what it lacks then.
        if isinstance(error, Exception) and not seen:
            if (reason := unwritten(error)) is None:
                raise
            _flush_or_drop_output()
            several.say_of_this_rank(command, reason)
            return STATUS_FAILED
        is_interrupt = seen[0] == signals.SIGINT if seen else isinstance(error, KeyboardInterrupt)
        sys.stderr.write(f"{command}: {'interrupted' if is_interrupt else 'terminated'}\n")
        return STATUS_INTERRUPTED if is_interrupt else STATUS_TERMINATED
    return 0


def _occupy_closed_streams() -> None:
    """Where the shell closed a standard stream, its number would go to the next file that is opened."""
    for stream, flags in ((sys.stdin, os.O_RDONLY), (sys.stdout, os.O_WRONLY), (sys.stderr, os.O_WRONLY)):
        if stream is None:
            os.open(os.devnull, flags)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115  # for as long as the process lives


def unwritten(error: Exception, *folders: Path) -> str | None:
    """What to say where a file could not be written; None: it is another error.

    `folders` are written to all the time, and are the user's: whatever the system says of a file in one of them, such
    as that somebody has removed it, is no fault of the program either.
    """
    if not isinstance(error, OSError):
        return None
    written, is_partial, _ = str(error.filename or (folders[0] if folders else "the output")).partition(MARK)
    is_inside = any(Path(written).is_relative_to(folder) for folder in folders)
    if error.errno not in CANNOT_BE_WRITTEN and not is_partial and not (error.filename and is_inside):
        return None
    return f"{written} cannot be written ({error.strerror}): free space, or choose another place"


def _flush_or_drop_output() -> None:
    """The interpreter flushes stdout once more at its end: what cannot be written is to be gone by then."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _raising(seen: list[int]) -> Iterator[None]:
    """Inside, SIGINT raises `KeyboardInterrupt` and the first SIGTERM `Terminated`; a second one kills at once.

    `seen` gets their numbers. Not where a launcher has started several processes: one that waits for the others in a
    library, where Python raises nothing, would outlive the signal. Nor outside the main thread, where Python allows no
    handler.
    """

    def end(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        if number == signals.SIGINT:
            raise KeyboardInterrupt
        signals.signal(number, signals.SIG_DFL)
        raise Terminated

    if several.num_processes() > 1 or threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signals.signal(number, end) for number in (signals.SIGINT, signals.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signals.signal(number, handler)


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
