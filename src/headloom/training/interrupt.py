"""A clean end when the run is asked to stop."""

import signal as signals
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signals.SIGINT, signals.SIGTERM, signals.SIGUSR1)
"""Ctrl-C; what systems send before they kill; what Slurm is told to send ahead of a time limit or a preemption
(`sbatch --signal=USR1@120`)."""


class Interrupt:
    """Which signal asked the run to stop; None while none has."""

    signal: signals.Signals | None = None


@contextmanager
def noting_interrupts(*, echo_seconds: float = 0.0) -> Iterator[Interrupt]:
    """Inside, the first signal is noted, and the loop ends after its step; a second one ends at once.

    SIGUSR1 is a warning and never ends anything at once; Slurm sends SIGTERM some time after it, which is noted too.

    Under a launcher that passes on the Ctrl-C which the terminal has sent to this process too, what comes within
    `echo_seconds` of the first is no second one.

    Outside the main thread, where Python allows no handler, nothing is noted.
    """
    interrupt = Interrupt()
    previous: dict[signals.Signals, Any] = {}

    ended_at: float | None = None

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal ended_at
        interrupt.signal = interrupt.signal or signals.Signals(number)
        if number == signals.SIGUSR1:
            return
        if ended_at is None:
            ended_at = time.monotonic()
            if not echo_seconds:
                restore()
        elif time.monotonic() - ended_at >= echo_seconds:
            restore()
            signals.raise_signal(number)

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
