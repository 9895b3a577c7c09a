"""Sentences of which every word has a tag: one word a line, an empty line between sentences (CoNLL).

A row is a pair: its source is the words, its target their tags, both with one
blank between them. Where columns are divided by blanks, several in a row are
one and those at the end none; where they are divided by tabs, the blanks around
a word or tag are no part of it, and one inside becomes a no-break space.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from headloom.data.files import LineFile, written_beside
from headloom.data.text import TextPairs, checked_row, content_hash
from headloom.errors import ConfigError, DataError

DOCUMENT_START = "-DOCSTART-"
"""First word of a line that stands between documents in CoNLL 2003 and is no sentence."""

_FORMAT = "2"  # of the sentence files


def open_conll(path: Path, *, token_column: int = 0, tag_column: int | None = None, cache: Path) -> TextPairs:
    """The sentences of one file, plain or .gz; columns are divided by tabs where a line has one, else by blanks.

    Columns count from 0; `tag_column` None is the last one of each line.

    Raises:
        DataError: the file cannot be read or is not UTF-8, a line has too few columns, or there is no sentence.
        ConfigError: a column is negative, or both are the same.
    """
    if token_column < 0 or (tag_column is not None and tag_column < 0):
        raise ConfigError(f"data.token_column={token_column}, data.tag_column={tag_column}: columns count from 0")
    if token_column == tag_column:
        raise ConfigError(f"data.token_column and data.tag_column are both {token_column}; they must differ")
    return _Sentences(path, token_column, tag_column, cache=cache)


class _Sentences(TextPairs):
    def __init__(self, path: Path, token_column: int, tag_column: int | None, *, cache: Path) -> None:
        self._columns = token_column, tag_column
        rule = f"conll {_FORMAT} {token_column} {tag_column}"

        def check(line: str, place: str) -> None:
            if not _is_blank(line):
                self._word(line, place)

        self._lines = LineFile(path, cache=cache, check=check, rule=rule)
        self.name = str(path)
        self.fingerprint = content_hash([rule, self._lines.fingerprint])
        index = cache / f"{content_hash([_FORMAT, self.fingerprint])[:40]}.sentences"
        if not index.exists():
            with written_beside(index) as partial:
                np.array(list(self._extents()), dtype="<i8").tofile(partial)
        self._extent = np.fromfile(index, dtype="<i8").reshape(-1, 2)
        if len(self) == 0:
            raise DataError(f"{path} holds no sentence; it must hold at least one")

    def __len__(self) -> int:
        return len(self._extent)

    def __getitem__(self, row: int) -> tuple[str, str]:
        start, end = self._extent[checked_row(row, len(self))].tolist()
        words = [self._word(self._lines[line], f"{self.name}: line {line + 1}") for line in range(start, end)]
        return " ".join(word for word, _ in words), " ".join(tag for _, tag in words)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        extents = iter(self._extent.tolist())
        start, end = next(extents)
        words: list[str] = []
        tags: list[str] = []
        for number, line in enumerate(self._lines):
            if start <= number < end:
                word, tag = self._word(line, f"{self.name}: line {number + 1}")
                words.append(word)
                tags.append(tag)
            if number == end - 1:
                yield " ".join(words), " ".join(tags)
                words, tags = [], []
                start, end = next(extents, (len(self._lines), len(self._lines) + 1))

    def place(self, row: int) -> str:
        return f"{self.name}: sentence from line {int(self._extent[row, 0]) + 1}"

    def _extents(self) -> Iterator[tuple[int, int]]:
        """First line of each sentence, and the one after its last."""
        start: int | None = None
        number = -1
        for number, line in enumerate(self._lines):
            is_between = _is_blank(line) or self._word(line, "")[0] == DOCUMENT_START
            if is_between and start is not None:
                yield start, number
                start = None
            elif not is_between and start is None:
                start = number
        if start is not None:
            yield start, number + 1

    def _word(self, line: str, place: str) -> tuple[str, str]:
        by_tabs = [cell.strip(" ") for cell in line.split("\t")]
        cells = by_tabs if len(by_tabs) > 1 else [cell for cell in line.split(" ") if cell]
        token_column, tag_column = self._columns
        needed = max(token_column + 1, 2 if tag_column is None else tag_column + 1)
        if len(cells) < needed:
            raise DataError(
                f"{place} has {len(cells)} columns where {needed} are needed; columns are divided by tabs or blanks"
            )
        word, tag = cells[token_column], cells[-1 if tag_column is None else tag_column]
        if _is_blank(word) or _is_blank(tag):
            raise DataError(f"{place} has an empty word or tag; give it one, or remove the line")
        return word.replace(" ", "\u00a0"), tag.replace(" ", "\u00a0")


def _is_blank(line: str) -> bool:
    return not line.strip(" \t\r")
