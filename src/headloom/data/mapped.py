"""Arrays on disk that are read in small parts.

A page of a mapped file counts as memory of the process from the first touch
on, and the system maps its neighbours with it, so that reading rows all over a
large file soon counts as the whole file. Here rows are read in ascending order
and their pages given back every few rows. The system keeps them cached, so
they cost no second trip to the disk.
"""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_PART_ENTRIES = 1 << 22  # read in a row before pages are given back
_PART_ROWS = 1 << 13  # single entries read before pages are given back
_PART_RANGES = 1 << 9  # ranges read before pages are given back


@dataclass(frozen=True)
class Ranges:
    """Some rows of different lengths: row i is `flat[starts[i] : starts[i] + lengths[i]]`."""

    flat: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[np.ndarray]) -> "Ranges":
        """The rows one after the other."""
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        return cls(np.concatenate(rows), np.cumsum(lengths) - lengths, lengths)

    def take(self, index: np.ndarray) -> "Ranges":
        """The rows of these places, in this order; `flat` is shared."""
        return Ranges(self.flat, self.starts[index], self.lengths[index])


class MappedArray:
    """A one-dimensional array of the file `path`; `array` is the mapping itself, for reading here and there.

    Raises:
        ValueError: the file does not hold `size` entries.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path, dtype: str, size: int) -> None:
        with path.open("rb") as stream:
            self._mapping = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        if len(self._mapping) != size * np.dtype(dtype).itemsize:
            raise ValueError(f"{path.name} has {len(self._mapping)} bytes instead of {size} entries")
        self.array = np.frombuffer(self._mapping, dtype=dtype)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """A copy of the entries of `rows`, which may be in any order."""
        out = np.empty(len(rows), self.array.dtype)
        order = np.argsort(rows)
        for start in range(0, len(rows), _PART_ROWS):
            part = order[start : start + _PART_ROWS]
            out[part] = self.array[rows[part]]
            self._give_back()
        return out

    def max(self) -> int:
        """The largest entry."""
        largest = []
        for start in range(0, len(self), _PART_ENTRIES):
            largest.append(int(self.array[start : start + _PART_ENTRIES].max()))
            self._give_back()
        return max(largest)

    def ranges(self, starts: np.ndarray, lengths: np.ndarray) -> Ranges:
        """A copy of the ranges, back to back in the order given; quick where `starts` ascend."""
        ends = np.cumsum(lengths, dtype=np.int64)
        out = np.empty(int(ends[-1]) if len(ends) else 0, self.array.dtype)
        out_starts = ends - lengths
        for start in range(0, len(starts), _PART_RANGES):
            part = slice(start, start + _PART_RANGES)
            first, last = int(out_starts[part][0]), int(ends[part][-1])
            shift = np.repeat(starts[part] - out_starts[part], lengths[part])
            out[first:last] = self.array[np.arange(first, last) + shift]
            self._give_back()
        return Ranges(out, out_starts, lengths)

    def _give_back(self) -> None:
        if hasattr(mmap, "MADV_DONTNEED"):  # not on every system
            self._mapping.madvise(mmap.MADV_DONTNEED)
