"""Which rows make a batch.

Training: token-budget batches of rows of similar length. The rows of an epoch
are a pseudo-random permutation that is computed, not stored (a Feistel network;
Black and Rogaway 2002, "Ciphers with arbitrary finite domains", sections 4 and
5: cycle walking). It is read in pools; inside a pool rows are sorted by length
and cut into batches, which are shuffled. So an epoch is a pure function of
(seed, epoch), any place in it is reached at the cost of one pool, and memory
does not grow with the corpus.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from headloom.errors import CheckpointError, ConfigError

ROWS_TOGETHER = 8  # where lengths are padded to a multiple: then batches of more rows have a multiple of this
_ROUNDS = 6  # of the Feistel network; 4 suffice in theory (Luby and Rackoff 1988), small domains want some more


class Lengths(Protocol):
    """A length for each row: an array, or something on disk that reads like one."""

    def __len__(self) -> int: ...
    def __getitem__(self, rows: np.ndarray, /) -> np.ndarray: ...
    def max(self) -> Any: ...


class TokenBudgetSampler:
    """Endless batches of row numbers; each row exactly once an epoch.

    A batch keeps rows * max(padded source, padded target) <= `max_tokens`,
    where padded lengths are rounded up to `pad_to_multiple`. Above 1 the number of
    rows is rounded too, down to a multiple of ROWS_TOGETHER, so that shapes recur.

    Raises:
        ConfigError: the longest row alone is over `max_tokens`.
    """

    epoch: int
    """Epoch of the batch that comes next, from 0."""

    def __init__(
        self,
        source_lengths: Lengths,
        target_lengths: Lengths,
        *,
        max_tokens: int,
        seed: int,
        pad_to_multiple: int = 1,
        pool_size: int = 131_072,
    ) -> None:
        assert len(source_lengths) == len(target_lengths) > 0
        longest = -(-max(int(source_lengths.max()), int(target_lengths.max())) // pad_to_multiple) * pad_to_multiple
        if longest > max_tokens:
            raise ConfigError(
                f"trainer.max_tokens={max_tokens} cannot hold the longest pair ({longest} tokens with padding); "
                "raise trainer.max_tokens or lower data.max_length"
            )
        self._source_lengths, self._target_lengths = source_lengths, target_lengths
        self._max_tokens, self._pad_to_multiple = max_tokens, pad_to_multiple
        self._seed = seed & (1 << 64) - 1  # NumPy takes no negative seed
        self._num_rows = len(source_lengths)
        self._num_pools = -(-self._num_rows // pool_size)
        self._pool_size = pool_size
        self.epoch = 0
        self._pool = 0
        self._batch = 0
        self._batches: list[np.ndarray] | None = None  # of the current pool, once they are needed

    def __iter__(self) -> Iterator[np.ndarray]:
        return self

    def __next__(self) -> np.ndarray:
        batches = self._current()
        rows = batches[self._batch]
        self._batch += 1
        if self._batch == len(batches):
            self._batch = 0
            self._batches = None
            self._pool += 1
            if self._pool == self._num_pools:
                self._pool = 0
                self.epoch += 1
        return rows

    @property
    def pool(self) -> tuple[int, int]:
        """Epoch and number of the pool that the next batch is from."""
        return self.epoch, self._pool

    def pool_rows(self) -> np.ndarray:
        """The rows of that pool, ascending: what will be read next."""
        return np.sort(np.concatenate(self._current()))

    def state(self) -> dict[str, int]:
        """The place of the next batch, with what it depends on."""
        return {"epoch": self.epoch, "pool": self._pool, "batch": self._batch, **self._recipe()}

    def load_state(self, state: Mapping[str, int]) -> None:
        """Go on from `state`, at the cost of one pool.

        Raises:
            CheckpointError: the state is of other rows or another recipe, where the place means other batches.
        """
        for name, value in self._recipe().items():
            if state.get(name) != value:
                raise CheckpointError(
                    f"the saved place in the data was reached with {name}={state.get(name)}, "
                    f"this run has {name}={value}; continue with the same data, seed and trainer.max_tokens, "
                    "or start a new run"
                )
        self.epoch, self._pool, self._batch = state["epoch"], state["pool"], state["batch"]
        self._batches = None

    def _recipe(self) -> dict[str, int]:
        return {
            "num_rows": self._num_rows,
            "seed": self._seed,
            "max_tokens": self._max_tokens,
            "pad_to_multiple": self._pad_to_multiple,
            "pool_size": self._pool_size,
            **({"rows_together": ROWS_TOGETHER} if self._pad_to_multiple > 1 else {}),
        }

    def _current(self) -> list[np.ndarray]:
        if self._batches is None:
            start = self._pool * self._num_rows // self._num_pools
            end = (self._pool + 1) * self._num_rows // self._num_pools
            rows = permuted(np.arange(start, end), self._num_rows, seed=self._seed, epoch=self.epoch)
            random = np.random.default_rng([self._seed, self.epoch, self._pool])
            random.shuffle(rows)  # so that rows of equal lengths meet others each time
            batches = _similar_lengths(
                rows,
                self._source_lengths[rows],
                self._target_lengths[rows],
                max_tokens=self._max_tokens,
                pad_to_multiple=self._pad_to_multiple,
            )
            self._batches = [batches[i] for i in random.permutation(len(batches))]
        return self._batches


def ordered_batches(source_lengths: np.ndarray, target_lengths: np.ndarray, *, max_tokens: int) -> list[np.ndarray]:
    """Every row once, similar lengths together, under the budget of `TokenBudgetSampler`; a longer row is alone."""
    return _similar_lengths(
        np.arange(len(source_lengths)), source_lengths, target_lengths, max_tokens=max_tokens, pad_to_multiple=1
    )


def permuted(index: np.ndarray, num_rows: int, *, seed: int, epoch: int) -> np.ndarray:
    """Where a pseudo-random permutation of `num_rows` rows takes each `index`; it differs for each seed and epoch."""
    half_bits = np.uint64(max(1, (max(num_rows - 1, 1).bit_length() + 1) // 2))
    keys = np.random.SeedSequence([seed, epoch]).generate_state(_ROUNDS, np.uint64)
    out = _feistel(index.astype(np.uint64), half_bits, keys)
    outside = np.flatnonzero(out >= num_rows)
    while len(outside):  # the network permutes a power of 4 of at most 4 times `num_rows`; walk on until inside
        out[outside] = _feistel(out[outside], half_bits, keys)
        outside = outside[out[outside] >= num_rows]
    return out.astype(np.int64)


def _feistel(value: np.ndarray, half_bits: np.uint64, keys: np.ndarray) -> np.ndarray:
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    left, right = value >> half_bits, value & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return (left << half_bits) | right


def _mixed(value: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele et al. 2014): every bit of the result depends on every bit of `value`."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    value ^= value >> np.uint64(31)
    return value


def _similar_lengths(
    rows: np.ndarray,
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    *,
    max_tokens: int,
    pad_to_multiple: int,
) -> list[np.ndarray]:
    """`rows` in batches; equal lengths stay in the order given.

    Sorted by target length, then by source length, up and down in turn, so
    that the source lengths do not jump where the target length steps.
    """
    source = _rounded(source_lengths.astype(np.int64), pad_to_multiple)
    target = _rounded(target_lengths.astype(np.int64), pad_to_multiple)
    order = np.lexsort((np.where(target // pad_to_multiple % 2, source, -source), target))
    rows = rows[order]
    width = np.maximum(source, target)[order]
    batches = []
    start = 0
    while start < len(rows):
        most = max(1, max_tokens // int(width[start]))
        padded = np.maximum.accumulate(width[start : start + most])
        fits = padded * np.arange(1, len(padded) + 1) <= max_tokens
        count = max(1, int(np.count_nonzero(fits)))
        if pad_to_multiple > 1 and start + count < len(rows) and count > ROWS_TOGETHER:
            count -= count % ROWS_TOGETHER
        end = start + count
        batches.append(rows[start:end])
        start = end
    return batches


def _rounded(lengths: np.ndarray, multiple: int) -> np.ndarray:
    return -(-lengths // multiple) * multiple
