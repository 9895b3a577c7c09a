"""Lines of files: one rule of line ends, bad input named, content hashes."""

import gzip
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headloom.data import files
from headloom.data.files import LineFile, open_jsonl, open_parallel, open_tsv, read_lines
from headloom.data.text import TextPairs
from headloom.errors import ConfigError, DataError

NO_LINE_ENDS = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\x1dh\x1ei\rj"


def write(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return path


def lines(path: Path) -> list[str]:
    """All lines, read in order and read by number, which must agree."""
    file = LineFile(path, cache=path.parent / "cache")
    in_order = list(file)
    assert [file[row] for row in range(len(file))] == in_order
    return in_order


def test_only_a_line_feed_ends_a_line(tmp_path):
    """B01."""
    path = write(tmp_path / "train.en", f"one\n{NO_LINE_ENDS}\nthree\n\nfive\n")
    assert lines(path) == ["one", NO_LINE_ENDS, "three", "", "five"]
    assert list(read_lines(io.BytesIO(path.read_bytes()))) == lines(path)


def test_pairs_stay_aligned_around_strange_characters(tmp_path):
    """B01."""
    source = write(tmp_path / "train.en", f"1\n{NO_LINE_ENDS}\n3\n4\n5\n")
    target = write(tmp_path / "train.de", "eins\nzwei\ndrei\nvier\nfünf\n")
    pairs = open_parallel(source, target, cache=tmp_path / "cache")
    assert len(pairs) == 5
    assert pairs[2] == ("3", "drei")
    assert list(pairs) == [pairs[row] for row in range(5)]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\r\nb\rc\n", ["a\r", "b\rc"]),
        (b"a\nb", ["a", "b"]),
        (b"a\nb\n", ["a", "b"]),
        (b"\n", [""]),
        (b"\n\n", ["", ""]),
        (b"a\r", ["a\r"]),
        (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),
        (b"a\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        (b"\xef\xbb\xbf\xef\xbb\xbfa", ["\ufeffa"]),
    ],
)
def test_line_ends_and_byte_order_marks_follow_one_rule(tmp_path, content, expected):
    """B02, B03: CRLF ends a line as LF does, the last line counts without one, a mark is dropped at the start only."""
    assert lines(write(tmp_path / "file", content)) == expected
    assert list(read_lines(io.BytesIO(content))) == expected
    assert lines(write(tmp_path / "file.gz", gzip.compress(content))) == expected


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60) | st.text("ab\n\r\ufeffé\u2028", max_size=30).map(lambda text: text.encode("utf-8")))
def test_a_file_a_stream_and_small_blocks_agree(tmp_path_factory, content):
    """The lines, or the number of the first one that is not UTF-8."""
    assume(content.removeprefix(b"\xef\xbb\xbf") and not content.startswith(b"\x1f\x8b"))
    folder = tmp_path_factory.mktemp("blocks")
    path = write(folder / "file", content)

    def outcome(read: Callable[[], Iterable[str]]) -> list[str] | str:
        try:
            return list(read())
        except DataError as error:
            return re.search(r"line \d+ is not UTF-8 \(byte 0x..\)", str(error)).group()

    expected = outcome(lambda: read_lines(io.BytesIO(content)))
    assert outcome(lambda: LineFile(path, cache=folder / "large")) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_BLOCK", 3)
        assert outcome(lambda: LineFile(path, cache=folder / "small")) == expected


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("bad", "number"), [(b"caf\xe9\n", 7), (b"\xff\xfea\x00\n", 7), (b"\xed\xa0\x80\n", 7), (b"\xe6\x97", 7)]
)
def test_bytes_that_are_not_utf8_are_named_by_file_and_line(tmp_path, bad, number, suffix):
    """B14."""
    content = b"fine\n" * 6 + bad
    path = write(tmp_path / f"train.de{suffix}", gzip.compress(content) if suffix else content)
    with pytest.raises(DataError, match=rf"{path}: line {number} is not UTF-8 \(byte 0x"):
        LineFile(path, cache=tmp_path / "cache")
    with pytest.raises(DataError, match=f"standard input: line {number} "):
        list(read_lines(io.BytesIO(content)))
    assert {path.suffix for path in (tmp_path / "cache").iterdir()} <= {".txt"}


def test_a_locale_without_utf8_changes_nothing(tmp_path):
    """B14: paths and text beyond ASCII under LC_ALL=C with the UTF-8 mode off."""
    write(tmp_path / "Datei-ü.tsv", "مرحبا\t😀\n")
    program = (
        "import sys; from pathlib import Path; from headloom.data.files import open_tsv\n"
        "folder = Path(sys.argv[1]); (path,) = folder.glob('*.tsv')\n"
        "print(ascii(list(open_tsv(path, cache=folder / 'cache'))))"
    )
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(tmp_path)],
        capture_output=True,
        check=True,
        env=environment | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )
    assert done.stdout.decode("ascii").strip() == ascii([("مرحبا", "😀")])


def test_different_counts_of_lines_are_refused_with_both(tmp_path):
    """B06."""
    source, target = write(tmp_path / "a.en", "1\n2\n3\n4\n5\n"), write(tmp_path / "a.de", "1\n2\n3\n4\n")
    with pytest.raises(DataError, match=rf"{source} has 5 lines and {target} 4"):
        open_parallel(source, target, cache=tmp_path / "cache")


@pytest.mark.parametrize("content", [b"", gzip.compress(b"", mtime=0), b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused_by_name(tmp_path, content):
    """B19."""
    path = write(tmp_path / "valid.en", content)
    with pytest.raises(DataError, match=r"valid\.en"):
        LineFile(path, cache=tmp_path / "cache")


def test_a_missing_file_a_folder_and_a_damaged_archive_are_refused_by_name(tmp_path):
    (tmp_path / "folder").mkdir()
    packed = gzip.compress(b"one\ntwo\n" * 1000)
    write(tmp_path / "cut.gz", packed[:-20])
    write(tmp_path / "changed.gz", packed[:20] + b"\0\0\0" + packed[23:])
    for name in ("missing", "folder", "cut.gz", "changed.gz"):
        with pytest.raises(DataError, match=name):
            LineFile(tmp_path / name, cache=tmp_path / "cache")
    assert not any((tmp_path / "cache").iterdir())


def tsv(path: Path, **options) -> TextPairs:
    return open_tsv(path, cache=path.parent / "cache", **options)


def test_tsv_columns_are_taken_as_they_stand(tmp_path):
    path = write(tmp_path / "pairs.tsv", 'id\t a "b \tc\r\nid2\t\td\textra\n')
    assert list(tsv(path, source_column=1, target_column=2)) == [(' a "b ', "c"), ("", "d")]
    assert tsv(path, source_column=2, target_column=0)[1] == ("d", "id2")


def test_a_tsv_line_with_too_few_columns_is_named(tmp_path):
    path = write(tmp_path / "pairs.tsv", "a\tb\nc\n")
    for _ in range(2):  # no index is left behind by the first try
        with pytest.raises(DataError, match=rf"{path}: line 2 has 1 columns where 2 are needed"):
            tsv(path)
    with pytest.raises(DataError, match=rf"{path}: line 1 has 2 columns where 3 are needed"):
        tsv(path, target_column=2)
    with pytest.raises(ConfigError, match="both 1"):
        tsv(path, source_column=1)
    with pytest.raises(ConfigError, match="source_column=-1"):
        tsv(path, source_column=-1)


def test_checking_one_pair_of_columns_does_not_vouch_for_another(tmp_path):
    path = write(tmp_path / "pairs.tsv", "a\tb\tc\nd\te\n")
    assert len(tsv(path)) == 2
    with pytest.raises(DataError, match="line 2"):
        tsv(path, target_column=2)


def jsonl(path: Path, source: str = "en", target: str = "de") -> TextPairs:
    return open_jsonl(path, source_field=source, target_field=target, cache=path.parent / "cache")


def test_json_lines_give_their_fields(tmp_path):
    records = [{"en": "a\u2028", "de": "b", "n": 1}, {"de": "zwei\r\nZeilen\n", "en": "\ud83d\ude00"}]
    path = write(tmp_path / "p.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    assert list(jsonl(path)) == [("a\u2028", "b"), ("😀", "zwei Zeilen ")]
    assert jsonl(path)[1] == ("😀", "zwei Zeilen ")
    assert jsonl(path, "de", "en")[0] == ("b", "a\u2028")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "is not JSON"),
        ("", "is not JSON"),
        ("[1]", "is not a JSON object"),
        ("[" * 100_000, "nested too deep"),
        ('{"en": "a"}', "'de' is missing"),
        ('{"en": 1, "de": "b"}', "'en' is not text"),
        ('{"en": "\\ud83d", "de": "b"}', "'en' holds half of a surrogate pair"),
    ],
)
def test_a_json_line_that_is_no_pair_is_named(tmp_path, line, message):
    path = write(tmp_path / "p.jsonl", '{"en": "a", "de": "b"}\n' + line + "\n")
    with pytest.raises(DataError, match=f"{path}: line 2.*{message}"):
        jsonl(path)


def test_the_fingerprint_follows_the_content_and_nothing_else(tmp_path):
    """B22: same size and time with another content differ; another name or time does not."""
    first = write(tmp_path / "a.tsv", "one\teins\n")
    copy = write(tmp_path / "copy.tsv", "one\teins\n")
    assert tsv(first).fingerprint == tsv(copy).fingerprint
    times = first.stat().st_atime_ns, first.stat().st_mtime_ns
    before = tsv(first).fingerprint
    write(first, "one\tzwei\n"[:9])
    os.utime(first, ns=times)
    assert tsv(first).fingerprint != before
    assert list(tsv(first)) == [("one", "zwei")]
    assert tsv(copy, source_column=1, target_column=0).fingerprint != before


def test_a_changed_archive_gives_the_new_text(tmp_path):
    """B22."""
    path = write(tmp_path / "a.tsv.gz", gzip.compress(b"one\teins\n", mtime=0))
    assert list(tsv(path)) == [("one", "eins")]
    write(path, gzip.compress(b"two\tzwei\n", mtime=0))
    assert list(tsv(path)) == [("two", "zwei")]


def test_a_row_that_is_not_there_is_an_index_error(tmp_path):
    pairs = tsv(write(tmp_path / "a.tsv", "one\teins\n"))
    for row in (-1, 1):
        with pytest.raises(IndexError):
            pairs[row]


def test_lines_from_a_pipe_come_one_by_one():
    """A line is handed on before the next one is there."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream, os.fdopen(writing, "wb", buffering=0) as typed:
        arriving = read_lines(stream)
        for text in ("one", "two"):
            typed.write(text.encode() + b"\n")
            assert next(arriving) == text


def test_a_pipe_instead_of_a_file_is_refused_by_name(tmp_path):
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "wb") as stream:
        stream.write(b"one\n")
        stream.close()
        with pytest.raises(DataError, match=f"/dev/fd/{reading} is not a file that can be read twice"):
            LineFile(Path(f"/dev/fd/{reading}"), cache=tmp_path)
