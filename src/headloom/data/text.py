"""Parallel text: pairs of a source and a target line, by row number."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from headloom.errors import DataError


class TextPairs(ABC):
    """Random access to raw pairs; memory does not grow with their number.

    A line is without its line end and otherwise as it stands in the file.
    """

    name: str
    """Where the pairs are from, for messages."""
    fingerprint: str
    """Hash of the content, in hexadecimal: equal for equal pairs, whatever the files' names and times."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, row: int) -> tuple[str, str]:
        """Source and target of pair `row`, from 0.

        Raises:
            IndexError: there is no such row.
        """

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for row in range(len(self)):
            yield self[row]

    def place(self, row: int) -> str:
        """Where pair `row` stands, for messages: of a part of a file, the place in the file."""
        return f"row {row + 1} of {self.name}"


@dataclass(frozen=True)
class Corpus:
    """The splits of a parallel corpus."""

    name: str
    train: TextPairs
    valid: TextPairs
    test: TextPairs | None


class PairList(TextPairs):
    """Pairs held in memory: for tests and small made-up tasks."""

    def __init__(self, pairs: Iterable[tuple[str, str]], *, name: str = "pairs") -> None:
        self._pairs = [(source, target) for source, target in pairs]
        self.name = name
        self.fingerprint = content_hash(text for pair in self._pairs for text in pair)

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, row: int) -> tuple[str, str]:
        return self._pairs[checked_row(row, len(self._pairs))]


class Subset(TextPairs):
    """Some rows of other pairs, in the order given: one side of a split."""

    def __init__(self, pairs: TextPairs, rows: np.ndarray | Sequence[int], *, name: str) -> None:
        self._pairs = pairs
        self._rows = np.asarray(rows, dtype=np.int64)
        self.name = name
        rows_hash = hashlib.blake2b(self._rows.tobytes(), digest_size=32).hexdigest()
        self.fingerprint = content_hash(["subset", pairs.fingerprint, rows_hash])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> tuple[str, str]:
        return self._pairs[int(self._rows[checked_row(row, len(self._rows))])]

    def place(self, row: int) -> str:
        return self._pairs.place(int(self._rows[row]))


def content_hash(parts: Iterable[str]) -> str:
    """Hash of a sequence of strings that tells ["ab", "c"] from ["a", "bc"]."""
    digest = hashlib.blake2b(digest_size=32)
    for part in parts:
        encoded = part.encode("utf-8", errors="surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.hexdigest()


def checked_row(row: int, num_rows: int) -> int:
    """`row`, which must be from 0 to `num_rows` - 1.

    Raises:
        IndexError: it is not.
    """
    if not 0 <= row < num_rows:
        raise IndexError(f"row {row} of {num_rows}")
    return row


def evenly_spread(pairs: TextPairs, *, max_pairs: int) -> Iterator[tuple[str, str]]:
    """All pairs, or `max_pairs` at equal distances where there are more: what a tokenizer is trained on.

    Raises:
        DataError: there is no pair.
    """
    num_pairs = len(pairs)
    if num_pairs == 0:
        raise DataError(f"{pairs.name} holds no pair of lines")
    if num_pairs <= max_pairs:
        yield from pairs
        return
    for i in range(max_pairs):
        yield pairs[i * num_pairs // max_pairs]
