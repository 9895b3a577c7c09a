"""Lines from whoever writes them, with a sign when they pause."""

import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

PATIENCE_SECONDS = 0.02  # a program that writes line after line does not pause this long, a person always does


Line = TypeVar("Line")


def as_they_arrive(
    lines: Iterable[Line], *, max_waiting: int = 8192, patience_seconds: float = PATIENCE_SECONDS
) -> Iterator[Line | None]:
    """Each line of `lines`, and None whenever the next one is not there yet.

    A thread reads ahead, at most `max_waiting` lines. None comes once a pause,
    after `patience_seconds`, and before an error of `lines`, which is raised
    here once the lines before it are through.

    The thread may sit in a read when the program ends. So `lines` must not read
    from `sys.stdin` itself, whose lock the interpreter takes at its end, but
    from a file of its own: `open(0, "rb", closefd=False)`.
    """
    waiting: queue.Queue[Line | _End] = queue.Queue(max_waiting)

    def read() -> None:
        try:
            for line in lines:
                waiting.put(line)
        except BaseException as error:  # raised by the consumer
            waiting.put(_End(error))
        else:
            waiting.put(_End(None))

    threading.Thread(target=read, name="headloom-read-lines", daemon=True).start()
    while True:
        try:
            item = waiting.get(timeout=patience_seconds)
        except queue.Empty:
            yield None
            item = waiting.get()
        if isinstance(item, _End):
            if item.error is not None:
                yield None
                raise item.error
            return
        yield item


@dataclass(frozen=True)
class _End:
    error: BaseException | None
