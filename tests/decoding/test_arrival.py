import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from headloom.decoding.arrival import as_they_arrive
from headloom.errors import DataError


def test_every_line_comes_in_order():
    lines = [str(i) for i in range(5000)]
    assert [line for line in as_they_arrive(iter(lines), max_waiting=7) if line is not None] == lines


def test_a_pause_is_told_once():
    """B81: the consumer hears of it before the next line is there."""
    may_go_on = threading.Event()

    def lines() -> Iterator[str]:
        yield "a"
        yield "b"
        assert may_go_on.wait(30)
        yield "c"

    arriving = as_they_arrive(lines())
    assert [next(arriving) for _ in range(3)] == ["a", "b", None]
    may_go_on.set()
    assert list(arriving) in (["c"], ["c", None])


def test_lines_read_quickly_come_without_pauses():
    def lines() -> Iterator[str]:
        for i in range(50):
            time.sleep(0.001)
            yield str(i)

    assert None not in as_they_arrive(lines(), patience_seconds=5)


def test_an_error_comes_after_the_lines_before_it():
    """B77: they can be answered first, since a pause is told."""

    def lines() -> Iterator[str]:
        yield "a"
        raise DataError("line 2 is not UTF-8")

    arriving = as_they_arrive(lines())
    assert [next(arriving), next(arriving)] == ["a", None]
    with pytest.raises(DataError, match="line 2"):
        next(arriving)


def test_a_program_ends_cleanly_while_a_read_is_waiting():
    """B81: `| head -1` closes the output while the input is still open."""
    program = """
from headloom.decoding.arrival import as_they_arrive
lines = (line.decode() for line in open(0, "rb", closefd=False))
print(next(as_they_arrive(lines)).strip())
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"one\n"
        assert process.wait(timeout=30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
