"""One bar of training steps for a person at a terminal."""

import logging
import sys
from types import TracebackType
from typing import Any, Self, TextIO

from tqdm import tqdm

from headloom.bar import progress_bar


class StepProgress:
    """A bar of steps with loss, target tokens per second and time left, on stderr.

    It is there only when stderr is a terminal and TQDM_DISABLE is not set, so that a log file or a pipe
    gets no carriage return. While it is, log lines to the terminal are written above it.
    """

    def __init__(self, *, first_step: int, max_steps: int) -> None:
        self._bar = progress_bar(desc="train", unit="step", initial=first_step, total=max_steps)
        self._redirected: list[tuple[logging.StreamHandler[Any], Any]] = []

    def __enter__(self) -> Self:
        if not self._bar.disable:
            for handler in logging.getLogger().handlers:
                if isinstance(handler, logging.StreamHandler) and handler.stream in (sys.stdout, sys.stderr):
                    self._redirected.append((handler, handler.stream))
                    handler.setStream(_AboveTheBar(handler.stream))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.close()
        while self._redirected:
            handler, stream = self._redirected.pop()
            handler.setStream(stream)

    def update(self, step: int, *, loss: float | None = None, tokens_per_second: float | None = None) -> None:
        """Move the bar to `step` updates done; numbers that are given replace the ones shown."""
        if loss is not None and tokens_per_second is not None:
            self._bar.set_postfix_str(f"loss {loss:.3f}, {tokens_per_second:,.0f} tokens/s", refresh=False)
        self._bar.update(step - self._bar.n)


class _AboveTheBar:
    """What a log handler writes to while the bar is drawn."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        tqdm.write(text, file=self._stream, end="")

    def flush(self) -> None:
        self._stream.flush()
