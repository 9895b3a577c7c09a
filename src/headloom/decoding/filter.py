"""A stream of lines through a model: one line out for each line in, in order, whatever the lines hold.

What is done with a line is a `Predictor`'s affair; reading, formats, bad lines,
order, progress and the report at the end are here, alike for every task.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Generic, TextIO

from headloom.bar import progress_bar
from headloom.data.whole_files import written_beside
from headloom.decoding.arrival import as_they_arrive
from headloom.decoding.lines import Bad, Format, Item, OnBadLine, Predictor, Read, Reply, read_items
from headloom.errors import DataError

logger = logging.getLogger(__name__)

FIRST_LINES = 16
"""Lines that are held back at first; twice as many each time, up to `buffer_lines`."""
STANDARD_STREAM = Path("-")


def filter_lines(
    predictor: Predictor[Item],
    *,
    source: Path,
    target: Path,
    line_format: Format,
    on_bad_line: OnBadLine,
    buffer_lines: int,
) -> None:
    """Answer every line of the file or stream `source` in `target` (-: stdin, stdout).

    Lines are held back to be answered together: up to `buffer_lines`, to a stream
    few at first, so that the first answer comes soon; and answered at once when the
    writer of a stream pauses. An output file has its name only once it is whole.

    A line that is not UTF-8, or is not what the format or the predictor needs,
    ends the work with an error that names it, once the lines before it are
    answered (`fail`); or gets an empty line, in JSON Lines its own fields and
    `error` (`skip`). With `replace` bytes that are not UTF-8 are read as
    U+FFFD, and other bad lines fail.

    Raises:
        DataError: a line cannot be used, or the file cannot be read.
    """
    is_conversation = source == STANDARD_STREAM and sys.stdin is not None and sys.stdin.isatty()
    with opened(source) as (stream, name), _output(target) as output:
        lines = read_items(stream, name, predictor, line_format, on_bad_line)
        arriving: Iterable[Read[Item] | Bad | None] = lines if _is_file(source) else as_they_arrive(lines)
        total = _count_lines(source) if _is_file(source) and _is_shown() else None
        with progress_bar(total=total, unit="line", is_wanted=not is_conversation) as bar:
            writer = _Writer(predictor, output, line_format, bar)
            try:
                first_lines = FIRST_LINES if _is_stream(target) else buffer_lines
                _pass_on(arriving, writer, first_lines, buffer_lines, is_conversation=is_conversation)
            except DataError:
                predictor.finish()
                raise
            # A reader that went away (BrokenPipeError) wants to hear nothing.
            predictor.finish()
        if not is_conversation:
            writer.report()


def _pass_on(
    arriving: "Iterable[Read[Item] | Bad | None]",
    writer: "_Writer[Item]",
    first_lines: int,
    buffer_lines: int,
    *,
    is_conversation: bool,
) -> None:
    held: list[Read[Item] | Bad] = []
    room = min(first_lines, buffer_lines)
    items = iter(arriving)
    while True:
        try:
            item = next(items)
        except StopIteration:
            break
        except DataError:
            writer.answer(held)  # the lines before the bad one
            raise
        if item is not None:
            held.append(item)
        if len(held) >= room or (held and item is None):
            writer.answer(held)
            held = []
            room = min(2 * room, buffer_lines)
        if is_conversation and item is None:
            sys.stderr.write("> ")
            sys.stderr.flush()
    writer.answer(held)
    if is_conversation:
        sys.stderr.write("\n")


class _Writer(Generic[Item]):
    """Writes replies in the order of the lines, as soon as the ones before are written."""

    def __init__(self, predictor: Predictor[Item], output: TextIO, line_format: Format, bar: Any) -> None:
        self.predictor = predictor
        self.output = output
        self.line_format = line_format
        self.bar = bar
        self.num_lines = self.num_tokens = 0
        self.bad: list[str] = []
        self.elapsed_seconds = 0.0

    def answer(self, held: Sequence["Read[Item] | Bad"]) -> None:
        started_at = time.monotonic()
        replies: list[Reply | None] = [None] * len(held)
        num_written = 0

        def write_ready() -> None:
            nonlocal num_written
            before = num_written
            while num_written < len(held) and (reply := replies[num_written]) is not None:
                self.output.write(self._line(held[num_written], reply) + "\n")
                self.num_tokens += reply.num_tokens
                num_written += 1
            if num_written > before:
                self.output.flush()
                self.bar.update(num_written - before)

        good = []
        for place, line in enumerate(held):
            if isinstance(line, Bad):
                self.bad.append(line.reason)
                replies[place] = Reply("", {"error": line.reason})
            else:
                good.append((place, line))
        write_ready()
        for place, reply in self.predictor.answer([line.item for _, line in good]):
            replies[good[place][0]] = reply
            write_ready()
        assert num_written == len(held), "a predictor answers every line"
        self.num_lines += len(held)
        self.elapsed_seconds += time.monotonic() - started_at

    def _line(self, line: "Read[Item] | Bad", reply: Reply) -> str:
        if self.line_format is Format.text:
            return reply.text
        fields = {**line.fields, **reply.fields}
        if "error" not in reply.fields:  # of an earlier pass over the same lines
            fields.pop("error", None)
        return json.dumps(fields, ensure_ascii=False, allow_nan=False)

    def report(self) -> None:
        if self.bad:
            logger.warning("%d lines were skipped; the first: %s", len(self.bad), self.bad[0])
        seconds = max(self.elapsed_seconds, 1e-9)
        logger.info(
            "%d lines in %.1f s: %.1f lines/s, %.0f tokens/s",
            self.num_lines,
            self.elapsed_seconds,
            self.num_lines / seconds,
            self.num_tokens / seconds,
        )


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, str]]:
    """A binary stream and what to call it.

    Raises:
        DataError: it cannot be read.
    """
    if path != STANDARD_STREAM:
        try:
            stream = path.open("rb")
        except OSError as error:
            raise DataError(f"input={path} cannot be read ({error.strerror})") from error
        if _is_file(path):
            with stream:
                yield stream, str(path)
        else:
            yield stream, str(path)
            stream.close()  # only where the work ended well: see below
        return
    if sys.stdin is None:
        raise DataError("standard input is closed: set input=FILE, or pipe lines into it")
    if sys.stdin.isatty():
        sys.stderr.write("Type a line and press Enter; Ctrl-D ends.\n")
    # Not sys.stdin: the reading thread may hold its lock when the interpreter ends. Nor is it closed: that would wait
    # for the thread, which may sit in a read when Ctrl-C, a signal or a closed pipe ends the work.
    yield open(0, "rb", closefd=False), "standard input"  # noqa: SIM115


@contextmanager
def _output(path: Path) -> Iterator[TextIO]:
    """stdout, or a file that is whole or as it was; what is no file, such as a terminal, /dev/null or a pipe with a
    name, is written to and never replaced, and of a link it is the file that it leads to which is replaced."""
    # What cannot be written is half of a surrogate pair, and JSON spells it as the error handler does.
    as_text: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace", "newline": "\n"}
    if _is_stdout(path):
        with open(1, "w", closefd=False, **as_text) as stream:
            yield stream
    elif _is_stream(path):
        with path.open("w", **as_text) as stream:
            yield stream
    else:
        with written_beside(path.resolve()) as partial, partial.open("w", **as_text) as stream:
            yield stream


def _is_stdout(path: Path) -> bool:
    """Also by another name, such as /dev/stdout: a file put in its place would not be where stdout goes."""
    if path == STANDARD_STREAM:
        return True
    return sys.stdout is not None and path.exists() and os.path.samestat(path.stat(), os.fstat(1))


def _is_stream(path: Path) -> bool:
    """Somebody may read what is written while it is."""
    return _is_stdout(path) or (path.exists() and not path.is_file())


def _is_file(path: Path) -> bool:
    """Whose lines are all there, where those of a pipe come as somebody writes them."""
    return path != STANDARD_STREAM and path.is_file()


def _is_shown() -> bool:
    return sys.stderr.isatty()


def _count_lines(path: Path) -> int:
    """For the progress bar."""
    with path.open("rb") as stream:
        return sum(block.count(b"\n") for block in iter(lambda: stream.read(1 << 20), b""))
