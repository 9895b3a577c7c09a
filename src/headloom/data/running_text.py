r"""Running text: documents of any length, read in pieces, for language models.

The text is what stands in the files, but for three things: a byte order mark at
the start of a file is dropped, "\r\n" is read as "\n", and what divides
documents belongs to none of them. Blanks, tabs, U+00A0, U+3000 and a lone "\r"
stay as they are.

What ends a document is a matter of `Documents`: the end of a file, a blank line
(one or more lines without anything but blanks and tabs), or the end of a line.
Empty documents are left out.

Nothing is held in memory but one piece. A piece ends with a line or, in a line
of more than MAX_PIECE bytes, before a blank where there is one.
"""

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import BinaryIO

from headloom.data.files import plain_file
from headloom.data.text import content_hash
from headloom.errors import DataError

MAX_PIECE = 1 << 16
"""Bytes of text read at a time where a line is longer."""

_FORMAT = "1"  # of the rules above: raise it when the same files give other documents


class Documents(Enum):
    """What ends a document."""

    file = "file"
    blank_line = "blank_line"
    line = "line"


@dataclass(frozen=True)
class Piece:
    """Some text of a document, and whether the document ends with it."""

    text: str
    ends_document: bool


@dataclass(frozen=True)
class _Part:
    """The bytes `start` to `stop` of a plain file, which `name` calls as the user does."""

    plain: Path
    name: str
    fingerprint: str
    start: int
    stop: int


class RunningText:
    """The documents of some files, in their order."""

    name: str
    """Where the text is from, for messages."""
    fingerprint: str
    """Hash of the content and of how it is divided: equal for equal documents, whatever the files' names and times."""

    def __init__(self, parts: Sequence[_Part], documents: Documents, *, name: str) -> None:
        self._parts = [part for part in parts if part.start < part.stop]
        self._documents = documents
        self.name = name
        content = [f"{part.fingerprint} {part.start} {part.stop}" for part in self._parts]
        self.fingerprint = content_hash(["text", _FORMAT, documents.name, *content])

    @property
    def num_bytes(self) -> int:
        """Bytes of the files, what divides documents included: for a progress bar."""
        return sum(part.stop - part.start for part in self._parts)

    def pieces(self) -> Iterator[Piece]:
        """The text from its first document to its last.

        Raises:
            DataError: a file is not UTF-8; the message has the line.
        """
        for part in self._parts:
            match self._documents:
                case Documents.file:
                    yield from _whole(_lines(part))
                case Documents.line:
                    yield from _line_documents(_lines(part))
                case Documents.blank_line:
                    yield from _paragraphs(_lines(part))

    def split_off(self, share: float) -> tuple["RunningText", "RunningText"]:
        """The text in two: what comes first, and about `share` of its bytes, in (0, 1), at its end.

        The cut stands at the start of a document or, where a document is a
        whole file, between two characters: no text is on both sides. Near-copies
        are not looked for.

        Raises:
            DataError: one side would be empty.
        """
        position = int((1 - share) * self.num_bytes)
        before: list[_Part] = []
        after: list[_Part] = []
        for part in self._parts:
            size = part.stop - part.start
            if after or position >= size:
                (after if after else before).append(part)
                position -= size
                continue
            cut = _next_start(part, part.start + max(position, 0), self._documents)
            before.append(_Part(part.plain, part.name, part.fingerprint, part.start, cut))
            after.append(_Part(part.plain, part.name, part.fingerprint, cut, part.stop))
        train = RunningText(before, self._documents, name=self.name)
        valid = RunningText(after, self._documents, name=f"{self.name}, the last {share:g} for validation")
        for which, text in (("training", train), ("validation", valid)):
            if text.num_bytes == 0:
                raise DataError(
                    f"data.valid_share={share:g} of the {self.num_bytes:,} bytes of {self.name} leaves no {which} "
                    f"text: {'lower' if which == 'training' else 'raise'} it, or give data.valid_path"
                )
        return train, valid


@dataclass(frozen=True)
class TextCorpus:
    """The splits of a corpus of running text."""

    name: str
    train: RunningText
    valid: RunningText
    test: RunningText | None


def open_text(path: Path, documents: Documents, *, cache: Path) -> RunningText:
    """The text of a file, plain or .gz, or of the .txt and .txt.gz files of a folder in the order of their names.

    Raises:
        DataError: a file cannot be read, the folder has none, or there is no text in them.
    """
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.name.endswith((".txt", ".txt.gz")) and file.is_file())
        if not files:
            raise DataError(f"{path} holds no file NAME.txt or NAME.txt.gz: put the text there, or name a file")
    else:
        files = [path]
    cache.mkdir(parents=True, exist_ok=True)
    parts = []
    for file in files:
        plain, fingerprint = plain_file(file, cache)
        with plain.open("rb") as stream:
            start = 3 if stream.read(3) == codecs.BOM_UTF8 else 0
        parts.append(_Part(plain, str(file), fingerprint, start, plain.stat().st_size))
    text = RunningText(parts, documents, name=str(path))
    if text.num_bytes == 0:
        raise DataError(f"{path} is empty; it must hold some text")
    return text


@dataclass(frozen=True)
class _Line:
    """A line, or a piece of a long one. `end` is its line end, "" inside a line and at the end of a file."""

    text: str
    end: str
    begins: bool
    is_whole: bool


def _lines(part: _Part) -> Iterator[_Line]:
    number = 1
    begins = True
    with part.plain.open("rb") as stream:
        stream.seek(part.start)
        rest = b""  # what was read of a long line and not handed out
        while True:
            room = min(MAX_PIECE - len(rest), part.stop - stream.tell())
            raw = rest + (stream.readline(room) if room > 0 else b"")
            if not raw:
                return
            is_last = stream.tell() >= part.stop
            if raw.endswith(b"\n"):
                end, rest = "\n", b""
                raw = raw[:-2] if raw.endswith(b"\r\n") else raw[:-1]
            elif is_last:
                end, rest = "", b""
            else:
                end = ""
                cut = _last_cut(raw)
                raw, rest = raw[:cut], raw[cut:]
            is_whole = begins and not rest
            yield _Line(_decoded(raw, part, number, stream), end, begins, is_whole)
            begins = end != ""
            number += begins
            if is_last and not rest:
                return


def _last_cut(raw: bytes) -> int:
    """Where to cut a piece of a long line: before its last blank, else before its last character."""
    blank = raw.rfind(b" ")
    if blank > 0:
        return blank
    cut = len(raw) - 1  # a whole character at most: "\r" too may belong to what comes
    while cut > 1 and raw[cut] & 0xC0 == 0x80:
        cut -= 1
    return cut


def _decoded(raw: bytes, part: _Part, number: int, stream: BinaryIO) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if part.start:  # the second side of a split, or a byte order mark
            stream.seek(0)
            number += stream.read(part.start).count(b"\n")
        byte = f"byte 0x{raw[error.start]:02X}"
        raise DataError(f"{part.name}: line {number} is not UTF-8 ({byte}); convert the file to UTF-8") from None


def _whole(lines: Iterator[_Line]) -> Iterator[Piece]:
    held: str | None = None
    for line in lines:
        if held is not None:
            yield Piece(held, ends_document=False)
        held = line.text + line.end
    if held:
        yield Piece(held, ends_document=True)


def _line_documents(lines: Iterator[_Line]) -> Iterator[Piece]:
    held = ""
    for line in lines:
        if line.begins and held:
            yield Piece(held, ends_document=True)
        elif held:
            yield Piece(held, ends_document=False)
        held = line.text
    if held:
        yield Piece(held, ends_document=True)


def _paragraphs(lines: Iterator[_Line]) -> Iterator[Piece]:
    """Lines between blank ones, with the line ends between them."""
    held = ""  # without the line end behind it, which may be the document's last
    end = ""
    for line in lines:
        if line.is_whole and not line.text.strip(" \t"):
            if held:
                yield Piece(held, ends_document=True)
            held = end = ""
            continue
        if held:
            yield Piece(held + end, ends_document=False)
        held, end = line.text, line.end
    if held:
        yield Piece(held, ends_document=True)


def _next_start(part: _Part, position: int, documents: Documents) -> int:
    """The first byte from `position` on where a document, or for whole files a character, begins."""
    if position <= part.start:
        return part.start
    with part.plain.open("rb") as stream:
        if documents is Documents.file:
            stream.seek(position - 1)
            before, *ahead = stream.read(5)
            if before == 0x0D and ahead[:1] == [0x0A]:
                return position + 1
            inside = next((i for i, byte in enumerate(ahead) if byte & 0xC0 != 0x80), len(ahead))
            return min(position + inside, part.stop)
        stream.seek(max(position - 1, part.start))
        stream.readline()  # to the start of a line
        while documents is Documents.blank_line and stream.tell() < part.stop:
            if not stream.readline().strip(b" \t\r\n"):
                break
        return min(stream.tell(), part.stop)
