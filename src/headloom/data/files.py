r"""Lines of text files by number, without reading the files into memory.

One rule of lines everywhere: only "\n" ends a line, a "\r" just before it
belongs to the line end, the last line may lack its "\n", and a byte order mark
is dropped at the start of a file and nowhere else. So `wc -l` and this module
count alike, and U+2028, U+0085 or a lone "\r" inside a sentence stay in it.

The start of each line is kept in a file of the cache folder that carries the
hash of the text, so that a changed text never meets an old index. A text that
has an index was valid UTF-8, and had the columns or fields that were asked for.
"""

import codecs
import gzip
import hashlib
import json
import os
import struct
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from headloom.data.text import TextPairs, checked_row, content_hash
from headloom.data.whole_files import written_beside
from headloom.errors import ConfigError, DataError

__all__ = ["GZIP", "LineFile", "open_jsonl", "open_parallel", "open_tsv", "read_lines", "written_beside"]

GZIP = b"\x1f\x8b"
"""What a compressed file begins with, and no text in UTF-8."""

_BLOCK = 1 << 22  # bytes read at a time
_FORMAT = "1"  # of the index files

LineCheck = Callable[[str, str], None]
"""Looks at one line (text, "file: line number") and raises DataError where it cannot be used."""


def open_parallel(source: Path, target: Path, *, cache: Path) -> TextPairs:
    """Two files of which line n of one translates line n of the other.

    Raises:
        DataError: a file cannot be read, is empty or is not UTF-8, or the counts of lines differ.
    """
    sources, targets = LineFile(source, cache=cache), LineFile(target, cache=cache)
    if len(sources) != len(targets):
        raise DataError(
            f"{source} has {len(sources):,} lines and {target} {len(targets):,}: "
            "line n of one must translate line n of the other"
        )
    return _ParallelFiles(sources, targets)


def open_tsv(path: Path, *, source_column: int = 0, target_column: int = 1, cache: Path) -> TextPairs:
    """One file with a pair a line, columns divided by tabs and counted from 0; no header, no quoting.

    Raises:
        DataError: the file cannot be read, is empty or is not UTF-8, or a line has too few columns.
        ConfigError: a column is negative, or both are the same.
    """
    if min(source_column, target_column) < 0:
        raise ConfigError(
            f"data.source_column={source_column}, data.target_column={target_column}: columns count from 0"
        )
    if source_column == target_column:
        raise ConfigError(f"data.source_column and data.target_column are both {source_column}; they must differ")

    def parse(line: str, place: str) -> tuple[str, str]:
        columns = line.split("\t")
        try:
            return columns[source_column], columns[target_column]
        except IndexError:
            needed = max(source_column, target_column) + 1
            raise DataError(
                f"{place} has {len(columns)} columns where {needed} are needed; columns are divided by tabs"
            ) from None

    return _PairedLines(path, parse, rule=f"tsv {source_column} {target_column}", cache=cache)


def open_jsonl(path: Path, *, source_field: str, target_field: str, cache: Path) -> TextPairs:
    """One file with a JSON object a line. A line end inside a field becomes a space: a sentence is one line everywhere.

    Raises:
        DataError: the file cannot be read, is empty or is not UTF-8, or a line is no object with both fields as text.
        ConfigError: both fields are the same.
    """
    if source_field == target_field:
        raise ConfigError(f"data.source_field and data.target_field are both {source_field!r}; they must differ")

    def parse(line: str, place: str) -> tuple[str, str]:
        record = json_record(line, place)
        source, target = (json_text(record, field, place) for field in (source_field, target_field))
        return source, target

    rule = "jsonl " + content_hash([source_field, target_field])
    return _PairedLines(path, parse, rule=rule, cache=cache)


def json_record(line: str, place: str) -> dict[str, object]:
    """The JSON object of a line.

    Raises:
        DataError: it is none; the message begins with `place`.
    """
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DataError(f"{place} is not JSON ({error})") from None
    except RecursionError:
        raise DataError(f"{place} is not JSON that can be read: it is nested too deep") from None
    if not isinstance(record, dict):
        raise DataError(f"{place} is not a JSON object")
    return record


def json_text(record: dict[str, object], field: str, place: str) -> str:
    """The text of a field, a line end inside it as a space.

    Raises:
        DataError: it is missing or no text; the message begins with `place`.
    """
    value = record.get(field)
    if not isinstance(value, str):
        what = "is not text" if field in record else "is missing"
        raise DataError(f"{place}: field {field!r} {what}; it must hold one sentence")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise DataError(f"{place}: field {field!r} holds half of a surrogate pair, which is no character") from None
    return value.replace("\r\n", " ").replace("\n", " ")


def read_lines(stream: Iterable[bytes], *, name: str = "standard input") -> Iterator[str]:
    """The lines of a binary stream, each as soon as it is there.

    Raises:
        DataError: a line is not UTF-8; the message has its number.
    """
    for number, raw in enumerate(stream, start=1):
        yield _decoded(raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw, f"{name}: line {number}")


def _decoded(raw: bytes, place: str) -> str:
    if raw.endswith(b"\n"):
        raw = raw[:-2] if raw.endswith(b"\r\n") else raw[:-1]
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{place} is not UTF-8 (byte 0x{raw[error.start]:02X}); convert the text to UTF-8") from None


class LineFile:
    """The lines of a plain or gzip-compressed file. A compressed one is unpacked into `cache`.

    Reads with `pread`, so the text never counts as memory of the process.

    Raises:
        DataError: the file cannot be read, is empty or is not UTF-8, or `check` refuses a line.
    """

    def __init__(self, path: Path, *, cache: Path, check: LineCheck | None = None, rule: str = "") -> None:
        """`rule` says in words what `check` asks; a text is checked once for each rule."""
        self.path = Path(path)
        cache.mkdir(parents=True, exist_ok=True)
        plain, self.fingerprint = plain_file(self.path, cache)
        if plain.stat().st_size == 0:
            raise DataError(f"{path} is empty; it must hold at least one line")
        index = cache / f"{content_hash([_FORMAT, self.fingerprint, rule])[:40]}.lines"
        if not index.exists():
            with written_beside(index) as partial:
                _index_lines(plain, partial, name=str(path))
                if check is not None:
                    for number, line in enumerate(_LineReader(plain, partial), start=1):
                        check(line, f"{path}: line {number}")
        self._reader = _LineReader(plain, index)
        if len(self) == 0:
            raise DataError(f"{path} holds no line; it must hold at least one")

    def __len__(self) -> int:
        return len(self._reader)

    def __getitem__(self, row: int) -> str:
        return self._reader[row]

    def __iter__(self) -> Iterator[str]:
        return iter(self._reader)


class _LineReader:
    def __init__(self, plain: Path, index: Path) -> None:
        self._plain = plain
        self._text = _read_only(self, plain)
        self._offsets = _read_only(self, index)
        self._num_lines = index.stat().st_size // 8 - 1

    def __len__(self) -> int:
        return self._num_lines

    def __getitem__(self, row: int) -> str:
        start, end = struct.unpack("<2q", os.pread(self._offsets, 16, 8 * checked_row(row, len(self))))
        return _decoded(os.pread(self._text, end - start, start), f"{self._plain}: line {row + 1}")

    def __iter__(self) -> Iterator[str]:
        with self._plain.open("rb") as stream:
            stream.seek(struct.unpack("<q", os.pread(self._offsets, 8, 0))[0])
            for number, raw in enumerate(stream, start=1):
                yield _decoded(raw, f"{self._plain}: line {number}")


def _read_only(owner: object, path: Path) -> int:
    """A descriptor of the file that is closed when `owner` is gone."""
    descriptor = os.open(path, os.O_RDONLY)
    weakref.finalize(owner, os.close, descriptor)
    return descriptor


class _ParallelFiles(TextPairs):
    def __init__(self, sources: LineFile, targets: LineFile) -> None:
        self._sources, self._targets = sources, targets
        self.name = f"{sources.path} and {targets.path}"
        self.fingerprint = content_hash(["parallel", sources.fingerprint, targets.fingerprint])

    def __len__(self) -> int:
        return len(self._sources)

    def __getitem__(self, row: int) -> tuple[str, str]:
        return self._sources[row], self._targets[row]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return zip(self._sources, self._targets, strict=True)


class _PairedLines(TextPairs):
    def __init__(self, path: Path, parse: Callable[[str, str], tuple[str, str]], *, rule: str, cache: Path) -> None:
        def check(line: str, place: str) -> None:
            parse(line, place)

        self._lines = LineFile(path, cache=cache, check=check, rule=rule)
        self._parse = parse
        self.name = str(path)
        self.fingerprint = content_hash([rule, self._lines.fingerprint])

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, row: int) -> tuple[str, str]:
        return self._parse(self._lines[row], f"{self.name}: line {row + 1}")

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for number, line in enumerate(self._lines, start=1):
            yield self._parse(line, f"{self.name}: line {number}")


def plain_file(path: Path, cache: Path) -> tuple[Path, str]:
    """`path` itself, or the unpacked copy of it in `cache`; and the hash of its bytes as they are on disk."""
    digest = hashlib.blake2b(digest_size=32)
    try:
        with path.open("rb") as stream:
            head = stream.read(2)
            digest.update(head)
            while block := stream.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    if not path.is_file():
        raise DataError(f"{path} is not a file that can be read twice; write the text to a file")
    if head != GZIP:
        return path, digest.hexdigest()
    plain = cache / f"{digest.hexdigest()[:40]}.txt"
    if not plain.exists():
        try:
            with written_beside(plain) as partial, gzip.open(path, "rb") as packed, partial.open("wb") as out:
                while block := packed.read(_BLOCK):
                    out.write(block)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"{path} is damaged and cannot be unpacked ({error}); fetch it again") from error
    return plain, digest.hexdigest()


def _index_lines(plain: Path, index: Path, *, name: str) -> None:
    """Write the offset of each line's first byte and of the end of the last line, as little-endian int64."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    num_lines = 0
    position = 0
    last = 0
    with plain.open("rb") as stream, index.open("wb") as out:
        while block := stream.read(_BLOCK):
            if position == 0:
                last = len(codecs.BOM_UTF8) if block.startswith(codecs.BOM_UTF8) else 0
                np.array([last], dtype="<i8").tofile(out)
            _check_utf8(decoder, block, name=name, num_lines=num_lines)
            starts = np.flatnonzero(np.frombuffer(block, np.uint8) == 0x0A) + (position + 1)
            if len(starts):
                starts.astype("<i8").tofile(out)
                num_lines += len(starts)
                last = int(starts[-1])
            position += len(block)
        _check_utf8(decoder, b"", name=name, num_lines=num_lines)
        if position > last:  # the last line has no "\n"
            np.array([position], dtype="<i8").tofile(out)


def _check_utf8(decoder: codecs.IncrementalDecoder, block: bytes, *, name: str, num_lines: int) -> None:
    try:
        decoder.decode(block, final=not block)
    except UnicodeDecodeError as error:
        before = error.object[: error.start]
        line = num_lines + before.count(b"\n") + 1
        byte = error.object[error.start]
        raise DataError(f"{name}: line {line} is not UTF-8 (byte 0x{byte:02X}); convert the file to UTF-8") from None
