"""Which stretches of a text make a training batch.

A *row* of a batch is one stretch of the stream of targets, or several that are
packed behind each other. Three ways to cut a text into rows, each a pure
function of (seed, epoch), so that any place is reached at once and memory does
not grow with the text:

* `BlockSampler`: `length` targets that lie together, over the ends of documents;
* `DocumentSampler`: a document a row, of similar length together;
* `PackedSampler`: whole documents behind each other until the row is full.

In an epoch every target comes once, but for `BlockOrder.random`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np

from headloom.data.sampler import TokenBudgetSampler, permuted
from headloom.data.text_store import TextTokens
from headloom.errors import CheckpointError, ConfigError

_POOL_DOCUMENTS = 1 << 16  # packed together at once
_BATCHES_AT_ONCE = 256  # of blocks, whose places are computed together: one at a time would cost ten times as much


@dataclass(frozen=True)
class Stretches:
    """The rows of a batch: stretch i is `lengths[i]` targets from `starts[i]` on, and lies in row `rows[i]`.

    Stretches of a row lie together, in their order.
    """

    starts: np.ndarray
    lengths: np.ndarray
    rows: np.ndarray


class BlockOrder(Enum):
    """Where the blocks of an epoch begin, and in which order they come."""

    shuffled = "shuffled"
    """The text is cut into blocks from another place in each epoch, and they come in another order."""
    random = "random"
    """Each block begins anywhere: some targets come twice in an epoch and some not at all."""
    sequential = "sequential"
    """From the first block to the last, cut at the same places in each epoch."""


class BlockSampler:
    """Blocks of `length` targets, `num_rows` a batch; the first and the last of an epoch may be shorter."""

    def __init__(self, num_targets: int, *, length: int, num_rows: int, order: BlockOrder, seed: int) -> None:
        assert num_targets > 0
        self._num_targets, self._length, self._num_rows = num_targets, length, num_rows
        self._order = order
        self._seed = seed & (1 << 64) - 1  # NumPy takes no negative seed
        self.epoch = 0
        self._batch = 0
        self._part: tuple[int, int] | None = None  # epoch and number of the batches whose places are known
        self._starts = self._lengths = np.empty(0, np.int64)
        self._num_blocks = 0

    def __next__(self) -> Stretches:
        number, batch = divmod(self._batch, _BATCHES_AT_ONCE)
        if self._part != (self.epoch, number):
            self._find_part(number)
        rows = slice(batch * self._num_rows, (batch + 1) * self._num_rows)
        starts, lengths = self._starts[rows], self._lengths[rows]
        self._batch += 1
        if self._batch * self._num_rows >= self._num_blocks:
            self.epoch, self._batch = self.epoch + 1, 0
        return Stretches(starts, lengths, np.arange(len(starts)))

    def _find_part(self, number: int) -> None:
        shift = self._shift()
        self._num_blocks = -(-(self._num_targets + shift) // self._length)
        size = _BATCHES_AT_ONCE * self._num_rows
        blocks = np.arange(number * size, min((number + 1) * size, self._num_blocks))
        match self._order:
            case BlockOrder.random:
                draw = np.random.default_rng([self._seed, self.epoch, number])
                last = max(self._num_targets - self._length, 0)
                starts = draw.integers(0, last, size=len(blocks), endpoint=True)
            case BlockOrder.shuffled:
                starts = permuted(blocks, self._num_blocks, seed=self._seed, epoch=self.epoch) * self._length - shift
            case BlockOrder.sequential:
                starts = blocks * self._length
        stops = np.minimum(starts + self._length, self._num_targets)
        self._starts = np.maximum(starts, 0)
        self._lengths = stops - self._starts
        self._part = self.epoch, number

    def _shift(self) -> int:
        """Targets by which the first block of the epoch is shorter than the others."""
        if self._order is not BlockOrder.shuffled or self._num_targets <= self._length:
            return 0
        return int(np.random.default_rng([self._seed, self.epoch]).integers(self._length))

    def state(self) -> dict[str, int]:
        return {"epoch": self.epoch, "batch": self._batch, **self._recipe()}

    def load_state(self, state: Mapping[str, int]) -> None:
        check_recipe(state, self._recipe())
        self.epoch, self._batch = state["epoch"], state["batch"]
        self._part = None

    def _recipe(self) -> dict[str, int]:
        return {
            "num_targets": self._num_targets,
            "seed": self._seed,
            "data.max_length": self._length,
            "num_rows": self._num_rows,
            "data.order": list(BlockOrder).index(self._order),
        }


class DocumentSampler:
    """Documents of similar length together, under a budget of tokens counted with the padding.

    A document of more than `length` targets is cut into rows of that many; a
    cut row does not see what came before it.

    Raises:
        ConfigError: a row is over `max_tokens`.
    """

    def __init__(
        self, tokens: TextTokens, *, length: int, max_tokens: int, seed: int, pad_to_multiple: int = 1
    ) -> None:
        self._starts, lengths = document_rows(tokens, length)
        self._lengths = lengths
        self._sampler = TokenBudgetSampler(
            lengths, lengths, max_tokens=max_tokens, seed=seed, pad_to_multiple=pad_to_multiple
        )

    @property
    def epoch(self) -> int:
        return self._sampler.epoch

    def __next__(self) -> Stretches:
        rows = np.sort(next(self._sampler))  # ascending: read from the disk in order
        return Stretches(self._starts[rows], self._lengths[rows], np.arange(len(rows)))

    def state(self) -> dict[str, int]:
        return self._sampler.state()

    def load_state(self, state: Mapping[str, int]) -> None:
        self._sampler.load_state(state)


class PackedSampler:
    """Rows of `length` targets filled with documents in random order, `num_rows` a batch.

    A document that the row has no room for goes on in another row, without
    what came before; the last row of a pool of documents may be shorter.
    """

    def __init__(
        self, tokens: TextTokens, *, length: int, num_rows: int, seed: int, pool_size: int = _POOL_DOCUMENTS
    ) -> None:
        self._tokens = tokens
        self._length, self._num_rows = length, num_rows
        self._seed = seed & (1 << 64) - 1
        self._pool_size = pool_size
        self._num_pools = -(-tokens.num_documents // pool_size)
        self.epoch = 0
        self._pool = 0
        self._batch = 0
        self._packed: _Packed | None = None  # the current pool, once it is needed

    def __next__(self) -> Stretches:
        packed = self._current()
        first = self._batch * self._num_rows
        stretches = packed.rows(packed.order[first : first + self._num_rows])
        self._batch += 1
        if self._batch * self._num_rows >= len(packed.order):
            self._batch = 0
            self._packed = None
            self._pool += 1
            if self._pool == self._num_pools:
                self.epoch, self._pool = self.epoch + 1, 0
        return stretches

    def _current(self) -> "_Packed":
        if self._packed is None:
            num_documents = self._tokens.num_documents
            # A pool is a stretch of the file, so that it is read in order; what meets whom in it is random.
            number = int(permuted(np.array([self._pool]), self._num_pools, seed=self._seed, epoch=self.epoch)[0])
            first = number * num_documents // self._num_pools
            last = (number + 1) * num_documents // self._num_pools
            starts, lengths = self._tokens.documents(first, last)
            draw = np.random.default_rng([self._seed, self.epoch, number])
            mixed = draw.permutation(len(starts))
            self._packed = _Packed(starts[mixed], lengths[mixed], self._length, draw)
        return self._packed

    def state(self) -> dict[str, int]:
        return {"epoch": self.epoch, "pool": self._pool, "batch": self._batch, **self._recipe()}

    def load_state(self, state: Mapping[str, int]) -> None:
        check_recipe(state, self._recipe())
        self.epoch, self._pool, self._batch = state["epoch"], state["pool"], state["batch"]
        self._packed = None

    def _recipe(self) -> dict[str, int]:
        return {
            "num_documents": self._tokens.num_documents,
            "num_targets": len(self._tokens),
            "seed": self._seed,
            "data.max_length": self._length,
            "num_rows": self._num_rows,
            "pool_size": self._pool_size,
        }


class _Packed:
    """Documents laid end to end and cut into rows of `length`."""

    def __init__(self, starts: np.ndarray, lengths: np.ndarray, length: int, draw: np.random.Generator) -> None:
        self._starts, self._length = starts, length
        self._ends = np.cumsum(lengths)
        self._begins = self._ends - lengths
        self.order = draw.permutation(-(-int(self._ends[-1]) // length))

    def rows(self, numbers: np.ndarray) -> Stretches:
        starts, lengths, rows = [], [], []
        for row, number in enumerate(numbers.tolist()):
            begin, end = number * self._length, (number + 1) * self._length
            first = int(np.searchsorted(self._ends, begin, side="right"))
            last = int(np.searchsorted(self._begins, end, side="left"))
            part = slice(first, last)
            begins = np.maximum(self._begins[part], begin)
            starts.append(self._starts[part] + begins - self._begins[part])
            lengths.append(np.minimum(self._ends[part], end) - begins)
            rows.append(np.full(last - first, row))
        return Stretches(np.concatenate(starts), np.concatenate(lengths), np.concatenate(rows))


def document_rows(tokens: TextTokens, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Start and length of the rows of all documents, each cut after every `length` targets."""
    starts, lengths = tokens.documents(0, tokens.num_documents)
    counts = -(-lengths // length)
    nth = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    row_starts = np.repeat(starts, counts) + nth * length
    return row_starts, np.minimum(np.repeat(starts + lengths, counts) - row_starts, length)


def check_recipe(state: Mapping[str, int], recipe: Mapping[str, int]) -> None:
    """A saved place is one of this recipe.

    Raises:
        CheckpointError: it is not.
    """
    for name, value in recipe.items():
        if state.get(name) != value:
            raise CheckpointError(
                f"the saved place in the data was reached with {name}={state.get(name)}, this run has {name}={value}; "
                "continue with the same data, seed and batch size, or start a new run"
            )


def rows_for(max_tokens: int, length: int) -> int:
    """Rows of `length` tokens in a batch of at most `max_tokens`.

    Raises:
        ConfigError: not one fits.
    """
    if length > max_tokens:
        raise ConfigError(
            f"trainer.max_tokens={max_tokens} cannot hold one row of data.max_length={length} tokens: "
            "raise trainer.max_tokens or lower data.max_length"
        )
    return max_tokens // length


def windows(start: int, stop: int, *, length: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Windows over the targets `start` to `stop` - 1 that score each of them once: (start, length, how many last ones).

    The first window has up to `length` targets and scores all. Each later one
    ends `stride` targets further on (the last one at `stop`), is `length` long,
    and scores those that no window before it has: so that after the first
    window every target is given `length` - `stride` targets at least.
    """
    scored = start
    while scored < stop:
        end = min(start + length if scored == start else scored + stride, stop)
        begin = max(start, end - length)
        yield begin, end - begin, end - scored
        scored = end


def windows_of(tokens: TextTokens, *, length: int, stride: int, within_documents: bool) -> np.ndarray:
    """`windows` of a whole text as three rows: their starts, lengths, and numbers of targets scored.

    With `within_documents` each document has windows of its own, else they run over the whole stream.
    """
    spans = [(0, len(tokens))]
    if within_documents:
        starts, lengths = tokens.documents(0, tokens.num_documents)
        spans = list(zip(starts.tolist(), (starts + lengths).tolist(), strict=True))
    found = [window for span in spans for window in windows(*span, length=length, stride=stride)]
    return np.array(found, dtype=np.int64).T
