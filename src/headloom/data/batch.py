"""Batches of tensors.

B batch, S source length, T target length.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from headloom.data.mapped import Ranges
from headloom.data.placing import on_device
from headloom.data.sampled import SampledBatches
from headloom.data.sampler import Lengths, TokenBudgetSampler, ordered_batches
from headloom.data.token_store import TokenPairs
from headloom.data.tokenizer_base import Tokenizer
from headloom.errors import ConfigError
from headloom.nn.loss import IGNORE


@dataclass(frozen=True)
class Batch:
    """Some pairs, padded on the right. The target is the target input one position on."""

    source_BS: Tensor
    """int64: ids and eos, then the source tokenizer's pad."""
    source_allowed_BS: Tensor | None
    """bool: True on real tokens. None when no row is padded: no mask is needed then."""
    target_input_BT: Tensor
    """int64: bos and ids, then the target tokenizer's pad."""
    target_BT: Tensor
    """int64: ids and eos, then IGNORE."""
    num_targets: int
    """Real targets, eos counted: what a summed loss is divided by."""
    rows: np.ndarray
    """Row numbers in the TokenPairs."""

    @property
    def num_tokens(self) -> int:
        """Real target tokens: what the speed of a translation is told in."""
        return self.num_targets

    def to(self, device: torch.device) -> "Batch":
        """The same batch with its tensors on `device`."""
        allowed = self.source_allowed_BS
        return replace(
            self,
            source_BS=on_device(self.source_BS, device),
            source_allowed_BS=None if allowed is None else on_device(allowed, device),
            target_input_BT=on_device(self.target_input_BT, device),
            target_BT=on_device(self.target_BT, device),
        )

    def halves(self) -> "tuple[Batch, ...]":
        """Two batches that hold its rows between them, as wide as it is; none where it has one row."""
        num_rows = self.target_BT.size(0)
        if num_rows < 2:
            return ()
        return self._part(0, num_rows // 2), self._part(num_rows // 2, num_rows)

    def _part(self, first: int, stop: int) -> "Batch":
        allowed = self.source_allowed_BS
        target_BT = self.target_BT[first:stop]
        return Batch(
            source_BS=self.source_BS[first:stop],
            source_allowed_BS=None if allowed is None else allowed[first:stop],
            target_input_BT=self.target_input_BT[first:stop],
            target_BT=target_BT,
            num_targets=int((target_BT != IGNORE).sum()),
            rows=self.rows[first:stop],
        )


def collate(
    source: Ranges, target: Ranges, *, source_pad: int, target_pad: int, bos: int, multiple: int, rows: np.ndarray
) -> Batch:
    """The padded batch of the two sides, whose rows end in eos; widths are rounded up to `multiple`."""
    source_BS, allowed_BS = padded(source, fill=source_pad, multiple=multiple)
    target_BT, real_BT = padded(target, fill=IGNORE, multiple=multiple)
    input_BT = np.empty_like(target_BT)
    input_BT[:, 0] = bos
    input_BT[:, 1:] = target_BT[:, :-1]
    input_BT[~real_BT] = target_pad  # the place after the last real input holds eos by the shift
    return Batch(
        source_BS=torch.from_numpy(source_BS),
        source_allowed_BS=None if allowed_BS.all() else torch.from_numpy(allowed_BS),
        target_input_BT=torch.from_numpy(input_BT),
        target_BT=torch.from_numpy(target_BT),
        num_targets=int(target.lengths.sum()),
        rows=rows,
    )


def padded(side: Ranges, *, fill: int, multiple: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows as an int64 matrix filled up with `fill`, its width a multiple of `multiple`; and what is no filling."""
    width = -(-int(side.lengths.max()) // multiple) * multiple
    column = np.arange(width)
    real = column < side.lengths[:, None]
    out = np.full(real.shape, fill, np.int64)
    out[real] = side.flat[(side.starts[:, None] + column)[real]]
    return out, real


class Pool:
    """The ids of the rows of one pool of the sampler, read from disk at once."""

    def __init__(self, number: tuple[int, int], rows: np.ndarray, pairs: TokenPairs) -> None:
        self.number = number
        self._rows = rows
        self._source, self._target = pairs.load(rows)

    def take(self, rows: np.ndarray) -> tuple[Ranges, Ranges]:
        places = np.searchsorted(self._rows, rows)
        return self._source.take(places), self._target.take(places)


class PooledBatches(SampledBatches[TokenBudgetSampler]):
    """Batches of rows of a token store, each row once an epoch, read from disk a pool of the sampler at a time."""

    def __init__(
        self,
        pairs: TokenPairs,
        source_lengths: Lengths,
        target_lengths: Lengths,
        *,
        max_tokens: int,
        seed: int,
        pad_to_multiple: int,
    ) -> None:
        super().__init__(
            TokenBudgetSampler(
                source_lengths, target_lengths, max_tokens=max_tokens, seed=seed, pad_to_multiple=pad_to_multiple
            )
        )
        self._pairs = pairs
        self._seed = seed
        self._pad_to_multiple = pad_to_multiple
        self._pool: Pool | None = None

    def _next_rows(self) -> tuple[int, np.ndarray, Ranges, Ranges]:
        """Epoch and numbers of the rows of the next batch, and the ids of both sides."""
        if self._pool is None or self._pool.number != self._sampler.pool:
            self._pool = Pool(self._sampler.pool, self._sampler.pool_rows(), self._pairs)
        epoch = self._sampler.epoch
        rows = next(self._sampler)
        return epoch, rows, *self._pool.take(rows)


class TrainingBatches(PooledBatches):
    """Endless training batches, each row once an epoch; `state` is the place after the batches handed out.

    With `sampling`, the ids of each batch are drawn anew from the raw text by
    the tokenizers that sample, of the source and target for which
    `sampled_sides` is True. The draw is a function of seed, epoch and rows,
    so a resumed run repeats it. Batches are made by the lengths of the plain
    encoding, so a drawn batch can be over `max_tokens`; a row that would be
    longer than the longest row of the corpus keeps its plain encoding, so no
    position is seen that the plain encoding does not have.

    Raises:
        ConfigError: `sampling` with tokenizers that do not sample, or a row is over `max_tokens`.
    """

    def __init__(
        self,
        pairs: TokenPairs,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        *,
        max_tokens: int,
        seed: int,
        pad_to_multiple: int = 1,
        sampling: bool = False,
        sampled_sides: tuple[bool, bool] = (True, True),
    ) -> None:
        if sampling and not (source_tokenizer.sampling or target_tokenizer.sampling):
            raise ConfigError("sampling of segmentations is on, but the tokenizers' sampling strength is 0")
        source_lengths, target_lengths = pairs.source_side.lengths, pairs.target_side.lengths
        super().__init__(
            pairs,
            source_lengths,
            target_lengths,
            max_tokens=max_tokens,
            seed=seed,
            pad_to_multiple=pad_to_multiple,
        )
        self._tokenizers = source_tokenizer, target_tokenizer
        self._sampled_sides = tuple(
            sampling and is_wanted and tokenizer.sampling > 0
            for is_wanted, tokenizer in zip(sampled_sides, self._tokenizers, strict=True)
        )
        self._longest = max(source_lengths.max(), target_lengths.max())

    def __next__(self) -> Batch:
        epoch, rows, source, target = self._next_rows()
        source_tokenizer, target_tokenizer = self._tokenizers
        if any(self._sampled_sides):
            texts = [self._pairs.text(int(row)) for row in rows]
            seeds = draw_seeds(self._seed, epoch, rows)
            if self._sampled_sides[0]:
                source = self._drawn(source_tokenizer, [text for text, _ in texts], source, seeds[0])
            if self._sampled_sides[1]:
                target = self._drawn(target_tokenizer, [text for _, text in texts], target, seeds[1])
        return _collated(source, target, source_tokenizer, target_tokenizer, rows, multiple=self._pad_to_multiple)

    def _drawn(self, tokenizer: Tokenizer, texts: list[str], plain: Ranges, seed: int) -> Ranges:
        drawn = []
        for i, ids in enumerate(tokenizer.sample(texts, seed=seed)):
            if len(ids) < self._longest:
                drawn.append(np.array([*ids, tokenizer.eos_id], dtype=np.int64))
            else:
                drawn.append(plain.flat[plain.starts[i] :][: plain.lengths[i]].astype(np.int64))
        return Ranges.of(drawn)


class EvaluationBatches:
    """Every row, or each of `rows`, exactly once, similar lengths together; the same batches each time."""

    def __init__(
        self,
        pairs: TokenPairs,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        *,
        max_tokens: int,
        rows: np.ndarray | None = None,
    ) -> None:
        self.pairs = pairs
        self._tokenizers = source_tokenizer, target_tokenizer
        rows = np.arange(len(pairs)) if rows is None else rows
        source_lengths, target_lengths = pairs.source_lengths[rows], pairs.target_lengths[rows]
        self._batches = [rows[some] for some in ordered_batches(source_lengths, target_lengths, max_tokens=max_tokens)]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        for rows in self._batches:
            source, target = self.pairs.load(rows)
            yield _collated(source, target, *self._tokenizers, rows, multiple=1)


def _collated(
    source: Ranges,
    target: Ranges,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    rows: np.ndarray,
    *,
    multiple: int,
) -> Batch:
    return collate(
        source,
        target,
        source_pad=source_tokenizer.pad_id,
        target_pad=target_tokenizer.pad_id,
        bos=target_tokenizer.bos_id,
        multiple=multiple,
        rows=rows,
    )


def draw_seeds(seed: int, epoch: int, rows: np.ndarray) -> tuple[int, int]:
    """A 32-bit seed for each side."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(f"{seed} {epoch}".encode("ascii"))
    digest.update(rows.astype("<i8").tobytes())
    both = digest.digest()
    return int.from_bytes(both[:4], "little"), int.from_bytes(both[4:], "little")
