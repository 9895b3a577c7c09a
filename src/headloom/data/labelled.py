"""Labelled text in files of the user's: a text, or two, and what is to be said of it.

A row is a pair as everywhere in this package: its source is the text, its
target the label exactly as the file spells it, so that 1 and 01, no and None
are labels like any other. The two texts of a row that has two are one source
with a tab between them; `split_texts` parts them again.

Columns of tab-separated files and fields of JSON objects are chosen by
`Columns`. To read another format, write a function that gives `TextPairs`.
"""

import codecs
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from headloom.data.files import LineFile, json_record, json_text
from headloom.data.labels import listed
from headloom.data.text import TextPairs, content_hash
from headloom.errors import ConfigError, DataError

BETWEEN_TEXTS = "\t"
"""Stands between the two texts of a row; no text holds one."""

LABEL_NAMES = frozenset(
    ("category", "class", "gold_label", "label", "labels", "score", "sentiment", "similarity", "tag", "target")
)
"""What a cell of the label column says, in any case, when the first line of a file names its columns."""


class Header(Enum):
    auto = "auto"  # a first line of names is told from a row by the names asked for, or by its label cell
    present = "present"
    absent = "absent"


class Format(Enum):
    auto = "auto"  # JSON Lines where the file's name says so, else tab-separated
    tsv = "tsv"
    jsonl = "jsonl"


@dataclass(frozen=True)
class Columns:
    """Where a row has its texts and its label: the name of a column or field, or the number of a column, from 0.

    None for `text`: column 0, or what is called text; for `label`: the column
    after the texts, or what is called label; for `second_text`: there is none.
    """

    text: str | None = None
    second_text: str | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in (self.text, self.second_text, self.label) if name is not None]
        if len(set(given)) < len(given):
            raise ConfigError(
                f"data.text={self.text}, data.second_text={self.second_text}, data.label={self.label}: "
                "two of them are one column; they must differ"
            )


def split_texts(source: str) -> list[str]:
    """The one or two texts of a row."""
    return source.split(BETWEEN_TEXTS, maxsplit=1)


class TextsOnly(TextPairs):
    """The texts of labelled rows as sources, two of them with a blank between: what a tokenizer is trained on."""

    def __init__(self, rows: TextPairs) -> None:
        self._rows = rows
        self.name = rows.name
        self.fingerprint = content_hash(["texts only", rows.fingerprint])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> tuple[str, str]:
        return self._rows[row][0].replace(BETWEEN_TEXTS, " "), ""

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for source, _ in self._rows:
            yield source.replace(BETWEEN_TEXTS, " "), ""


def open_labelled(
    path: Path,
    *,
    columns: Columns,
    header: Header = Header.auto,
    format: Format = Format.auto,
    cache: Path,
) -> TextPairs:
    """The rows of one file, plain or .gz: tab-separated columns without quoting, or a JSON object a line.

    Raises:
        DataError: the file cannot be read, is empty or is not UTF-8, or a line lacks a text or its label.
        ConfigError: a column is asked for by name, and nothing names the columns.
    """
    names = [suffix for suffix in path.suffixes if suffix != ".gz"]
    if format is Format.jsonl or (format is Format.auto and names[-1:] in ([".jsonl"], [".ndjson"])):
        return _open_jsonl(path, columns, cache=cache)
    return _open_tsv(path, columns, header, cache=cache)


Parse = Callable[[str, str], tuple[str, str]]
"""Text and label of a line; the second argument is its place, for messages."""


class _LabelledLines(TextPairs):
    def __init__(self, path: Path, parse: Parse, *, num_names: int, rule: str, cache: Path) -> None:
        """`num_names` lines at the top, 0 or 1, name the columns and are no row."""
        first = f"{path}: line 1"

        def check(line: str, place: str) -> None:
            if not (num_names and place == first):
                parse(line, place)

        self._lines = LineFile(path, cache=cache, check=check, rule=rule)
        self._parse = parse
        self._num_names = num_names
        self.name = str(path)
        self.fingerprint = content_hash([rule, self._lines.fingerprint])
        if len(self) == 0:
            raise DataError(f"{path} holds nothing but the names of its columns; it must hold at least one row")

    def __len__(self) -> int:
        return len(self._lines) - self._num_names

    def __getitem__(self, row: int) -> tuple[str, str]:
        if row < 0:
            raise IndexError(f"row {row} of {len(self)}")
        return self._parse(self._lines[row + self._num_names], self.place(row))

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for number, line in enumerate(self._lines):
            if number >= self._num_names:
                yield self._parse(line, f"{self.name}: line {number + 1}")

    def place(self, row: int) -> str:
        return f"{self.name}: line {row + self._num_names + 1}"


def _open_tsv(path: Path, columns: Columns, header: Header, *, cache: Path) -> TextPairs:
    first = _first_line(path).split("\t")
    numbers = _numbers(columns)
    match header:
        case Header.absent:
            has_names = False
        case Header.present:
            has_names = True
        case Header.auto:
            label = -1 if numbers is None else numbers[-1]
            has_names = numbers is None or (label < len(first) and first[label].strip().casefold() in LABEL_NAMES)
    if has_names:
        numbers = _places(columns, [name.strip() for name in first], path)
    elif numbers is None:
        raise ConfigError(
            f"data.header=absent, but data.text={columns.text}, data.second_text={columns.second_text}, "
            f"data.label={columns.label} ask for a column by name: give its number, from 0"
        )
    chosen = tuple(numbers)

    def parse(line: str, place: str) -> tuple[str, str]:
        cells = line.split("\t")
        if len(cells) <= max(chosen):
            raise DataError(
                f"{place} has {len(cells)} columns where {max(chosen) + 1} are needed; columns are divided by tabs"
            )
        *texts, label = (cells[number] for number in chosen)
        return BETWEEN_TEXTS.join(texts), _checked_label(label, place)

    rule = "labelled tsv " + content_hash([str(has_names), *map(str, chosen)])
    return _LabelledLines(path, parse, num_names=int(has_names), rule=rule, cache=cache)


def _open_jsonl(path: Path, columns: Columns, *, cache: Path) -> TextPairs:
    text_fields = [columns.text or "text", *([columns.second_text] if columns.second_text else [])]
    label_field = columns.label or "label"
    if label_field in text_fields:
        raise ConfigError(f"data.label={label_field} is the field of a text too; they must differ")

    def parse(line: str, place: str) -> tuple[str, str]:
        record = json_record(line, place)
        texts = [json_text(record, field, place).replace("\t", " ") for field in text_fields]
        value = record.get(label_field)
        if isinstance(value, bool | int | float):
            return BETWEEN_TEXTS.join(texts), json.dumps(value)
        return BETWEEN_TEXTS.join(texts), _checked_label(json_text(record, label_field, place), place)

    rule = "labelled jsonl " + content_hash([*text_fields, label_field])
    return _LabelledLines(path, parse, num_names=0, rule=rule, cache=cache)


def _checked_label(label: str, place: str) -> str:
    if not label.strip():
        raise DataError(f"{place} has an empty label; give it one, or remove the line")
    return label


def _numbers(columns: Columns) -> list[int] | None:
    """The texts' and the label's column where all are given by number or not at all; None where one has a name."""
    chosen = [columns.text or "0", *([columns.second_text] if columns.second_text is not None else [])]
    if not all(name.isdecimal() for name in chosen):
        return None
    numbers = [int(name) for name in chosen]
    label = str(max(numbers) + 1) if columns.label is None else columns.label
    return [*numbers, int(label)] if label.isdecimal() else None


def _places(columns: Columns, names: Sequence[str], path: Path) -> list[int]:
    """Columns of the texts and of the label below a line of `names`."""

    def place(name: str) -> int:
        if name in names:
            return names.index(name)
        if name.isdecimal() and int(name) < len(names):
            return int(name)
        raise DataError(f"{path} has no column {name!r}: its first line names {listed(names)}")

    texts = [place(columns.text) if columns.text is not None else _named(names, "text", 0)]
    if columns.second_text is not None:
        texts.append(place(columns.second_text))
    label = place(columns.label) if columns.label is not None else _named(names, "label", max(texts) + 1)
    if label in texts or len(set(texts)) < len(texts):
        raise DataError(
            f"{path}: the texts are columns {', '.join(map(str, texts))} and the label is column {label}, from 0; "
            "they must differ: set data.text, data.second_text and data.label"
        )
    return [*texts, label]


def _named(names: Sequence[str], name: str, otherwise: int) -> int:
    return names.index(name) if name in names else otherwise


def _first_line(path: Path) -> str:
    """As `LineFile` would read it; '' where there is none, which `LineFile` refuses itself."""
    try:
        with path.open("rb") as stream:
            is_packed = stream.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if is_packed else path.open("rb") as stream:
            line = stream.readline()
    except (OSError, EOFError):
        return ""
    try:
        return line.removeprefix(codecs.BOM_UTF8).decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        return ""
