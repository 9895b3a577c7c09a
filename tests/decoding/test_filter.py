"""A predictor of a few lines shows what the filter does with lines; the models are in test_translate.py."""

import gzip
import json
import logging
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headloom.decoding.filter import filter_lines
from headloom.decoding.lines import Format, OnBadLine, Reply, text_of
from headloom.errors import DataError


class Capitals:
    """Answers in capitals, the longest line first."""

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.sizes: list[int] = []
        self.finished = 0

    def read(self, line: str | Mapping[str, Any]) -> str:
        text = line if isinstance(line, str) else text_of(line, "source")
        if text == "unusable":
            raise DataError("is unusable")
        return text

    def answer(self, items: Sequence[str]) -> Iterator[tuple[int, Reply]]:
        self.sizes.append(len(items))
        for place in sorted(range(len(items)), key=lambda place: -len(items[place])):
            if self.fails_at is not None and sum(self.sizes) > self.fails_at:
                raise RuntimeError("an accident")
            yield place, Reply(items[place].upper(), {"capitals": items[place].upper()}, num_tokens=1)

    def finish(self) -> None:
        self.finished += 1


def filter_into(
    target: Path,
    *,
    source: Path,
    predictor: Capitals | None = None,
    line_format: Format = Format.text,
    on_bad_line: OnBadLine = OnBadLine.fail,
    buffer_lines: int = 1024,
) -> None:
    filter_lines(
        predictor or Capitals(),
        source=source,
        target=target,
        line_format=line_format,
        on_bad_line=on_bad_line,
        buffer_lines=buffer_lines,
    )


def answered(folder: Path, content: bytes, **options: Any) -> bytes:
    """`options`: those of `filter_into`."""
    source, target = folder / "in.txt", folder / "out.txt"
    source.write_bytes(content)
    filter_into(target, source=source, **options)
    return target.read_bytes()


@pytest.mark.parametrize("buffer_lines", [1, 10, 64, 5000])
def test_every_line_is_answered_in_its_place(tmp_path, buffer_lines):
    """B76, B77: 1000 lines, whatever is held back at a time."""
    lines = [f"{'x' * (i * 37 % 50)} {i}" for i in range(1000)]
    predictor = Capitals()
    out = answered(tmp_path, "\n".join(lines).encode(), predictor=predictor, buffer_lines=buffer_lines)
    assert out.decode() == "".join(line.upper() + "\n" for line in lines)
    assert max(predictor.sizes) == predictor.sizes[0] == min(buffer_lines, 1000)
    assert predictor.finished == 1


def test_a_stream_gets_its_first_lines_soon(tmp_path, capfd):
    predictor, source = Capitals(), tmp_path / "in.txt"
    source.write_text("a line\n" * 100)
    filter_into(Path("-"), source=source, predictor=predictor, buffer_lines=64)
    assert predictor.sizes == [16, 32, 52]
    assert capfd.readouterr().out == "A LINE\n" * 100


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", b""),
        (b"\n", b"\n"),
        (b"a", b"A\n"),
        (b"a\r\nb\r\n", b"A\nB\n"),
        (b"\xef\xbb\xbfa\nb\r\n\n \n", b"A\nB\n\n \n"),
        ("a\u2028b\x85c\x0bd\re\x00f\x1bg\n".encode(), "A\u2028B\x85C\x0bD\rE\x00F\x1bG\n".encode()),
    ],
)
def test_only_a_line_feed_ends_a_line(tmp_path, content, expected):
    """B01, B02, B03."""
    assert answered(tmp_path, content) == expected


def test_a_bad_line_ends_the_work_once_the_lines_before_it_are_answered(tmp_path, capfdbinary):
    """B14, B77: the line is named; a file with the output's name is as it was, a stream has the lines before."""
    (tmp_path / "out.txt").write_bytes(b"earlier\n")
    with pytest.raises(DataError, match=r"in\.txt: line 3 is not UTF-8 \(byte 0xE9\).*on_bad_line=skip or replace"):
        answered(tmp_path, b"a\nb\nc\xe9\nd\n")
    assert (tmp_path / "out.txt").read_bytes() == b"earlier\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]
    with pytest.raises(DataError, match="line 3"):
        filter_into(Path("-"), source=tmp_path / "in.txt")
    assert capfdbinary.readouterr().out == b"A\nB\n"


@pytest.mark.parametrize("on_bad_line", OnBadLine)
def test_a_compressed_file_is_refused_whatever_is_done_with_bad_lines(tmp_path, on_bad_line):
    with pytest.raises(DataError, match=r"in\.txt is compressed: unpack it, as in gunzip"):
        answered(tmp_path, gzip.compress(b"a\n"), on_bad_line=on_bad_line)


def test_a_bad_line_may_get_an_empty_line(tmp_path, caplog):
    content = b"a\nc\xe9\nunusable\nd\n"
    assert answered(tmp_path, content, on_bad_line=OnBadLine.skip) == b"A\n\n\nD\n"
    assert "2 lines were skipped; the first: " in caplog.text
    assert "in.txt: line 2 is not UTF-8" in caplog.text


def test_bytes_that_are_not_utf8_may_be_replaced_and_other_bad_lines_not(tmp_path):
    assert answered(tmp_path, b"a\nc\xe9d\n", on_bad_line=OnBadLine.replace) == "A\nC\ufffdD\n".encode()
    with pytest.raises(DataError, match="line 1 is unusable"):
        answered(tmp_path, b"unusable\n", on_bad_line=OnBadLine.replace)


def test_fields_of_json_lines_pass_through(tmp_path):
    lines = [{"id": 7, "source": "a\nb", "more": {"x": [1, None, "ü"]}}, {"source": ""}, {"capitals": 1, "source": "c"}]
    content = "\n".join(json.dumps(line) for line in lines).encode()
    out = answered(tmp_path, content, line_format=Format.jsonl).decode().split("\n")
    assert out.pop() == ""
    replies = [json.loads(line) for line in out]
    assert replies == [{**line, "capitals": line["source"].upper()} for line in lines]
    assert "ü" in out[0]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", r"line 2 is not JSON \(.*\)"),
        (b"", r"line 2 is not JSON \(.*\)"),
        (b"[1]", "line 2 is not a JSON object"),
        (b"[" * 100_000, "nested too deep"),
        (b"{}", "line 2 has no field 'source'"),
        (b'{"source": 3}', "line 2 has no text in field 'source'"),
        (b'{"source": "a", "x": NaN}', r"line 2 is not JSON \(NaN is no number of JSON\)"),
        (b'{"source": "a", "x": [-Infinity]}', r"line 2 is not JSON \(-Infinity is no number of JSON\)"),
        (b'{"source": "a", "x": 1, "x": 2}', r"line 2 is not JSON \(it has 'x' twice, of which one would be lost\)"),
        (b'{"source": "a", "x": 1e999}', r"line 2 is not JSON \(1e999 is no number of JSON\)"),
    ],
)
def test_a_line_that_is_no_request_is_named(tmp_path, line, words):
    content = b'{"source": "a"}\n' + line + b'\n{"source": "b"}\n'
    with pytest.raises(DataError, match=words):
        answered(tmp_path, content, line_format=Format.jsonl)
    out = answered(tmp_path, content, line_format=Format.jsonl, on_bad_line=OnBadLine.skip)
    first, second, third = (json.loads(reply) for reply in out.decode().split("\n")[:-1])
    assert (first["capitals"], list(second)[-1], third["capitals"]) == ("A", "error", "B")


def test_a_line_that_is_answered_now_has_no_error_of_an_earlier_pass(tmp_path):
    content = b'{"source": "a", "error": "line 1 is unusable"}\n'
    assert json.loads(answered(tmp_path, content, line_format=Format.jsonl)) == {"source": "a", "capitals": "A"}


def test_a_bad_line_keeps_its_fields(tmp_path):
    """So that what is known by an id still is, and the source can be asked for again."""
    content = b'{"id": 7, "source": "unusable", "error": null}\n{"id": 8}\n[9]\n'
    out = answered(tmp_path, content, line_format=Format.jsonl, on_bad_line=OnBadLine.skip)
    unusable, without_source, no_object = (json.loads(reply) for reply in out.decode().split("\n")[:-1])
    name = tmp_path / "in.txt"
    assert unusable == {"id": 7, "source": "unusable", "error": f"{name}: line 1 is unusable"}
    assert without_source == {"id": 8, "error": f"{name}: line 2 has no field 'source'"}
    assert no_object == {"error": f"{name}: line 3 is not a JSON object"}


def test_half_of_a_surrogate_pair_is_no_accident(tmp_path):
    out = answered(tmp_path, b'{"source": "a\\ud800b"}\n', line_format=Format.jsonl)
    assert json.loads(out) == {"source": "a\ud800b", "capitals": "A?B"}


def test_what_is_no_file_is_written_to_and_never_replaced(tmp_path):
    """A pipe with a name stands for /dev/null, which root could otherwise lose."""
    pipe = tmp_path / "out.txt"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_bytes)
        (tmp_path / "in.txt").write_bytes(b"a\n" * 50)
        predictor = Capitals()
        filter_into(pipe, source=tmp_path / "in.txt", predictor=predictor, buffer_lines=64)
        assert read.result() == b"A\n" * 50
    assert pipe.is_fifo()
    assert predictor.sizes == [16, 32, 2]  # its reader gets the first lines as soon as one of stdout does


def test_another_name_of_stdout_is_stdout(tmp_path, capfdbinary):
    link = tmp_path / "stdout"
    link.symlink_to("/proc/self/fd/1")
    (tmp_path / "in.txt").write_bytes(b"a\n")
    filter_into(link, source=tmp_path / "in.txt")
    assert capfdbinary.readouterr().out == b"A\n"
    assert link.is_symlink()


def test_of_a_link_the_file_that_it_leads_to_is_replaced(tmp_path):
    link, file = tmp_path / "out.txt", tmp_path / "elsewhere" / "file.txt"
    file.parent.mkdir()
    link.symlink_to(file)
    assert answered(tmp_path, b"a\n") == b"A\n"
    assert link.is_symlink()
    assert [path.name for path in file.parent.iterdir()] == ["file.txt"]


def test_an_accident_leaves_no_file_that_looks_complete(tmp_path):
    """B77."""
    with pytest.raises(RuntimeError, match="an accident"):
        answered(tmp_path, b"a\n" * 1000, predictor=Capitals(fails_at=500))
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_lines_and_tokens_a_second_are_said_at_the_end(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        answered(tmp_path, b"a\nb\n\n")
    assert "3 lines in 0.0 s: " in caplog.text
    assert caplog.messages[-1].endswith(" tokens/s")


PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_filter import Capitals
from headloom.decoding.filter import filter_lines
from headloom.decoding.lines import Format, OnBadLine
options = dict(line_format=Format.text, on_bad_line=OnBadLine.fail, buffer_lines=1024)
filter_lines(Capitals(), source=Path("-"), target=Path("-"), **options)
"""


def test_a_line_is_answered_when_its_writer_pauses():
    """B81: before the input ends, and with nothing else on stdout."""
    program = PROGRAM.format(tests=str(Path(__file__).parent))
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for word in (b"one", b"two"):
            process.stdin.write(word + b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == word.upper() + b"\n"
        rest, errors = process.communicate()
    assert (rest, errors, process.returncode) == (b"", b"", 0)


def test_pipes_with_a_name_carry_a_line_and_its_answer_in_turn(tmp_path):
    source, target = tmp_path / "in", tmp_path / "out"
    os.mkfifo(source)
    os.mkfifo(target)
    with ThreadPoolExecutor() as pool:
        work = pool.submit(filter_into, target, source=source)
        with source.open("wb", buffering=0) as writer, target.open("rb", buffering=0) as reader:
            for line in (b"a\n", b"b\n"):
                writer.write(line)
                assert select.select([reader], [], [], 20)[0], "no answer while the writer waits for it"
                assert reader.readline() == line.upper()
        work.result()


def test_an_interrupt_ends_the_work_while_the_writer_says_nothing():
    program = PROGRAM.format(tests=str(Path(__file__).parent))
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"ONE\n"
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(timeout=30) == -signal.SIGINT
        finally:
            process.kill()


def test_at_a_terminal_there_is_a_prompt_and_an_answer_at_once():
    pty = pytest.importorskip("pty")
    program = PROGRAM.format(tests=str(Path(__file__).parent))
    own, theirs = pty.openpty()
    command, pipe = [sys.executable, "-c", program], subprocess.PIPE
    with subprocess.Popen(command, stdin=theirs, stdout=pipe, stderr=pipe) as process:
        os.close(theirs)
        assert process.stdout is not None
        for word in (b"one", b"two"):
            os.write(own, word + b"\n")
            assert process.stdout.readline() == word.upper() + b"\n"
        os.write(own, b"\x04")  # Ctrl-D
        rest, errors = process.communicate()
        os.close(own)
    assert rest == b""
    assert process.returncode == 0
    assert errors.startswith(b"Type a line and press Enter; Ctrl-D ends.\n> ")
    assert errors.endswith(b"> \n")


def test_a_reader_that_goes_away_hears_nothing_more():
    """B81: `| head -1`."""
    program = PROGRAM.format(tests=str(Path(__file__).parent))
    program = (
        program.replace("filter_lines(", "try:\n    filter_lines(") + "except BrokenPipeError:\n    os._exit(141)\n"
    )
    lines = b"word\n" * 100_000
    with subprocess.Popen(
        f'"{sys.executable}" -c "$PROGRAM" | head -1; echo "${{PIPESTATUS[0]}}"',
        shell=True,
        executable="/bin/bash",
        env={**os.environ, "PROGRAM": "import os\n" + program},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        out, errors = process.communicate(lines)
    assert (out, errors) == (b"WORD\n141\n", b"")
