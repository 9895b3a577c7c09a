"""The bar is for a terminal only, and log lines do not break it."""

import logging
import os
import termios
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import TextIO

import pytest

from headloom.insight.progress import StepProgress


class Terminal:
    """A pseudo-terminal as stderr; `shown` is what reached it."""

    def __init__(self) -> None:
        self._master, slave = os.openpty()
        termios.tcsetwinsize(slave, (24, 100))
        self.stream = os.fdopen(slave, "w", encoding="utf-8")

    def shown(self) -> str:
        """A terminal passes on what it gets with a delay, so a mark is sent after it and waited for."""
        self.stream.write("<end>")
        self.stream.flush()
        shown = b""
        while not shown.endswith(b"<end>"):
            shown += os.read(self._master, 65536)
        return shown.removesuffix(b"<end>").decode("utf-8")

    def close(self) -> None:
        self.stream.close()
        os.close(self._master)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    terminal = Terminal()
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    yield terminal
    terminal.close()


def train(stderr: TextIO) -> None:
    with redirect_stderr(stderr), StepProgress(first_step=2, max_steps=4) as progress:
        progress.update(3)
        progress.update(4, loss=2.5, tokens_per_second=12345.6)


def test_a_terminal_shows_steps_loss_and_tokens_per_second(terminal):
    train(terminal.stream)
    shown = terminal.shown()
    assert "\r" in shown
    assert "4/4" in shown
    assert "loss 2.500, 12,346 tokens/s" in shown


def test_a_pipe_gets_nothing(tmp_path: Path):
    """B97: no carriage return reaches a log file."""
    with (tmp_path / "log").open("w", encoding="utf-8") as stream:
        train(stream)
    assert (tmp_path / "log").read_bytes() == b""


def test_tqdm_disable_is_honoured(terminal, monkeypatch):
    """B97."""
    monkeypatch.setenv("TQDM_DISABLE", "1")
    train(terminal.stream)
    assert terminal.shown() == ""


def test_log_lines_are_whole_lines_above_the_bar(terminal):
    handler = logging.StreamHandler(terminal.stream)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger()
    logger.addHandler(handler)
    try:
        with redirect_stderr(terminal.stream), StepProgress(first_step=0, max_steps=4) as progress:
            progress.update(1)
            assert handler.stream is not terminal.stream
            logger.warning("step=1 train/loss=2.5")
        assert handler.stream is terminal.stream
    finally:
        logger.removeHandler(handler)
    screen = [line.rsplit("\r", 1)[-1] for line in terminal.shown().replace("\r\n", "\n").split("\n")]
    assert "step=1 train/loss=2.5" in screen
    assert any("1/4" in line for line in screen)
