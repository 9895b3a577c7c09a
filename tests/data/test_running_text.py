"""Running text: what is read is what stands in the file, in documents, in pieces, and in two parts without a leak."""

import gzip
from pathlib import Path

import pytest

from headloom.data import running_text
from headloom.data.running_text import Documents, RunningText, open_text
from headloom.errors import DataError

STRANGE = "  x\n\ty\u2028z\x0b\x0c\x1c\u0085 \u00a0\u3000 \r lone\n\n\n \t\nlast"
"""Line separators of all kinds inside lines, blanks at both ends, three blank lines, no line end at the end (B01)."""


def written(folder: Path, content: str | bytes, name: str = "text.txt") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return path


def documents_of(text: RunningText) -> list[str]:
    found, held = [], ""
    for piece in text.pieces():
        held += piece.text
        if piece.ends_document:
            found.append(held)
            held = ""
    assert held == "", "the last piece ends a document"
    return found


def documents(tmp_path: Path, content: str | bytes, rule: Documents) -> list[str]:
    return documents_of(open_text(written(tmp_path, content), rule, cache=tmp_path / "cache"))


def test_a_file_is_one_document_and_comes_back_as_it_is(tmp_path):
    """B12: no blank, tab or line end vanishes."""
    for content in (STRANGE, "  x\n\ty\n", "\n\n", "日本語\n😀"):
        assert documents(tmp_path, content, Documents.file) == [content]


def test_a_line_is_a_document_and_an_empty_one_is_none(tmp_path):
    assert documents(tmp_path, STRANGE, Documents.line) == [line for line in STRANGE.split("\n") if line]
    assert documents(tmp_path, "a\n\nb\n", Documents.line) == ["a", "b"]


def test_blank_lines_divide_documents_and_belong_to_none(tmp_path):
    content = "\n\none\n  two\n\n \t\n\nthree\nfour\n"
    assert documents(tmp_path, content, Documents.blank_line) == ["one\n  two", "three\nfour"]
    assert documents(tmp_path, "a\n\u3000\nb", Documents.blank_line) == ["a\n\u3000\nb"]


@pytest.mark.parametrize("rule", Documents)
def test_a_windows_file_holds_the_same_text(tmp_path, rule):
    """B02, B03: the line end is \\n, and a byte order mark is dropped at the start and nowhere else."""
    content = "one\n\ntwo \ufeff\nthree\n"
    unix = documents(tmp_path, content, rule)
    assert documents(tmp_path, "\ufeff" + content.replace("\n", "\r\n"), rule) == unix
    assert documents(tmp_path, gzip.compress(content.encode()), rule) == unix


def test_a_folder_is_read_in_the_order_of_names(tmp_path):
    folder = tmp_path / "texts"
    for name, content in (("b.txt", "second\n"), ("a.txt", "\ufefffirst"), ("c.txt", ""), ("notes.md", "no")):
        written(folder, content, name)
    written(folder, gzip.compress(b"third\n"), "d.txt.gz")
    text = open_text(folder, Documents.file, cache=tmp_path / "cache")
    assert documents_of(text) == ["first", "second\n", "third\n"]


@pytest.mark.parametrize("rule", Documents)
def test_pieces_of_a_long_line_join_to_the_line(tmp_path, rule, monkeypatch):
    """B08: a line of any length is read, a piece at a time, and no character is cut."""
    content = "ab 😀é日 \r" * 9 + "x" * 70 + "\r\n" + "é" * 40 + "\n\n" + "end " * 20
    whole = documents(tmp_path, content, rule)
    monkeypatch.setattr(running_text, "MAX_PIECE", 16)
    text = open_text(tmp_path / "text.txt", rule, cache=tmp_path / "cache")
    assert documents_of(text) == whole
    assert max(len(piece.text.encode()) for piece in text.pieces()) <= 17


def test_a_byte_that_is_no_utf8_is_named_with_its_line(tmp_path):
    """B14."""
    content = b"one\ntwo\n\xe9\n" + b"more\n" * 9
    for text in (
        open_text(written(tmp_path, content), Documents.line, cache=tmp_path / "cache"),
        open_text(written(tmp_path, content[::-1]), Documents.line, cache=tmp_path / "cache").split_off(0.2)[1],
    ):
        with pytest.raises(DataError, match=r"text\.txt: line (3|11) is not UTF-8 \(byte 0xE9\); convert the file"):
            list(text.pieces())


@pytest.mark.parametrize("rule", Documents)
@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.9])
def test_the_last_share_is_split_off_at_a_document_and_nothing_is_on_both_sides(tmp_path, rule, share):
    content = "".join(f"document {i} é😀\r\n{'-' * (i % 5)}\n\n" for i in range(40))
    text = open_text(written(tmp_path, content), rule, cache=tmp_path / "cache")
    train, valid = text.split_off(share)
    before, after = documents_of(train), documents_of(valid)
    if rule is Documents.file:
        assert ["".join(before + after)] == documents_of(text)
    else:
        assert before + after == documents_of(text)
    num_valid = sum(len(document.encode()) for document in after)
    assert num_valid / sum(len(document.encode()) for document in before + after) == pytest.approx(share, abs=0.03)
    assert len({text.fingerprint, train.fingerprint, valid.fingerprint}) == 3


def test_the_split_of_several_files_lies_within_one_of_them(tmp_path):
    folder = tmp_path / "texts"
    for name in "abc":
        written(folder, name * 10, f"{name}.txt")
    train, valid = open_text(folder, Documents.file, cache=tmp_path / "cache").split_off(0.5)
    assert (documents_of(train), documents_of(valid)) == (["a" * 10, "b" * 5], ["b" * 5, "c" * 10])
    train, valid = open_text(folder, Documents.line, cache=tmp_path / "cache").split_off(0.5)
    assert (documents_of(train), documents_of(valid)) == (["a" * 10, "b" * 10], ["c" * 10])


def test_a_share_that_leaves_a_side_empty_is_refused(tmp_path):
    text = open_text(written(tmp_path, "one line\n"), Documents.line, cache=tmp_path / "cache")
    with pytest.raises(DataError, match=r"data\.valid_share=0\.5 of the 9 bytes of .* leaves no validation text"):
        text.split_off(0.5)
    with pytest.raises(DataError, match=r"data\.valid_share=0\.999 .* leaves no training text: lower it"):
        text.split_off(0.999)


def test_text_that_is_not_there_is_named(tmp_path):
    cases = [
        (tmp_path / "absent", r"absent cannot be read"),
        (written(tmp_path, "", "empty.txt"), r"empty\.txt is empty"),
        (tmp_path / "cache2", r"cache2 holds no file NAME\.txt or NAME\.txt\.gz"),
    ]
    (tmp_path / "cache2").mkdir()
    for path, message in cases:
        with pytest.raises(DataError, match=message):
            open_text(path, Documents.file, cache=tmp_path / "cache")


def test_the_fingerprint_is_of_the_content_and_of_how_it_is_divided(tmp_path):
    """B22."""
    first = open_text(written(tmp_path, "a\nb\n", "one.txt"), Documents.line, cache=tmp_path / "cache")
    same = open_text(written(tmp_path, "a\nb\n", "two.txt"), Documents.line, cache=tmp_path / "cache")
    others = [
        open_text(tmp_path / "one.txt", Documents.file, cache=tmp_path / "cache"),
        open_text(written(tmp_path, "a\nc\n", "one.txt"), Documents.line, cache=tmp_path / "cache"),
    ]
    assert first.fingerprint == same.fingerprint
    assert len({text.fingerprint for text in (first, *others)}) == 3
