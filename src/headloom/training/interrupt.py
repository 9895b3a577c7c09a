"""A clean end when the run is asked to stop."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Which signal asked the run to stop; None while none has."""

    signal: signal.Signals | None = None


@contextmanager
def noting_interrupts() -> Iterator[Interrupt]:
    """Inside, the first SIGINT or SIGTERM is noted, and the loop ends after its step; a second one ends at once.

    Outside the main thread, where Python allows no handler, nothing is noted.
    """
    interrupt = Interrupt()
    previous = {}

    def note(number: int, frame: FrameType | None) -> None:
        interrupt.signal = signal.Signals(number)
        restore()

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    try:
        for number in SIGNALS:
            previous[number] = signal.signal(number, note)
    except ValueError:  # not the main thread
        previous.clear()
    try:
        yield interrupt
    finally:
        restore()
