"""How a command ends: its exit status, and what it says on stderr.

Status 0: done. 1: a file, a checkpoint or the training failed. 2: an option was wrong. 130: interrupted.
141: the reader of a pipe went away. 143: terminated.
"""

import os
import signal as signals
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from headloom.config import several
from headloom.errors import CheckpointError, ConfigError, DataError, RankLost, TrainingDiverged

OF_THE_USER = (ConfigError, DataError, CheckpointError, TrainingDiverged, RankLost)
STATUS_OPTION, STATUS_FAILED, STATUS_INTERRUPTED, STATUS_CLOSED_PIPE, STATUS_TERMINATED = 2, 1, 130, 141, 143


class Terminated(BaseException):
    """SIGTERM, raised as Ctrl-C is: what is half-written is removed on the way out."""


def status_of(act: Callable[[], None], command: str) -> int:
    """Act; the exit status, with what the user did wrong as one line on stderr that begins with the command."""
    # Read by OpenMP when torch is loaded. On its own it spins so long for the next piece of work that two threads on
    # cores that others use too are ten times slower than one; on idle cores this costs nothing.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    try:
        with _raising_terminated():
            act()
    except OF_THE_USER as error:
        several.say_of_this_rank(command, one_line(error))
        return STATUS_OPTION if isinstance(error, ConfigError) else STATUS_FAILED
    except BrokenPipeError:
        # The interpreter flushes stdout once more at its end: let it flush into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return STATUS_CLOSED_PIPE
    except KeyboardInterrupt:
        sys.stderr.write(f"{command}: interrupted\n")
        return STATUS_INTERRUPTED
    except Terminated:
        sys.stderr.write(f"{command}: terminated\n")
        return STATUS_TERMINATED
    return 0


@contextmanager
def _raising_terminated() -> Iterator[None]:
    """Inside, the first SIGTERM raises `Terminated`; a second one kills at once.

    Not where a launcher has started several processes: one that waits for the others in a library, where Python raises
    nothing, would outlive the signal. Nor outside the main thread, where Python allows no handler.
    """

    def end(number: int, frame: FrameType | None) -> None:
        signals.signal(signals.SIGTERM, signals.SIG_DFL)
        raise Terminated

    if several.num_processes() > 1 or threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signals.signal(signals.SIGTERM, end)
    try:
        yield
    finally:
        signals.signal(signals.SIGTERM, previous)


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
