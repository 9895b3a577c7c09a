"""A clean end when the run is asked to stop."""

import signal as signals
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signals.SIGINT, signals.SIGTERM)


class Interrupt:
    """Which signal asked the run to stop; None while none has."""

    signal: signals.Signals | None = None


@contextmanager
def noting_interrupts() -> Iterator[Interrupt]:
    """Inside, the first SIGINT or SIGTERM is noted, and the loop ends after its step; a second one ends at once.

    Outside the main thread, where Python allows no handler, nothing is noted.
    """
    interrupt = Interrupt()
    previous: dict[signals.Signals, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        interrupt.signal = signals.Signals(number)
        restore()

    def restore() -> None:
        for number, handler in previous.items():
            signals.signal(number, handler)

    try:
        for number in SIGNALS:
            previous[number] = signals.signal(number, note)
    except ValueError:  # not the main thread
        previous.clear()
    try:
        yield interrupt
    finally:
        restore()
