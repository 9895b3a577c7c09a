"""Batches of labelled text.

B batch, S length of a row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from headloom.data.batch import PooledBatches, draw_seeds, padded
from headloom.data.labelled_store import RowEncoder
from headloom.data.mapped import Ranges
from headloom.data.placing import on_device
from headloom.data.sampler import ordered_batches
from headloom.data.token_store import TokenPairs
from headloom.nn.loss import IGNORE


@dataclass(frozen=True)
class LabelledBatch:
    """Some rows, padded on the right."""

    token_BS: Tensor
    """int64: bos, pieces, eos, then the tokenizer's pad."""
    allowed_BS: Tensor | None
    """bool: True on real tokens. None when no row is padded: no mask is needed then."""
    target: Tensor
    """int64 of shape B (classes) or BS (tags, IGNORE where a token has none), or float32 of shape B (values)."""
    num_targets: int
    """Targets that count: what a summed loss is divided by."""
    rows: np.ndarray
    """Row numbers in the TokenPairs."""
    others: "Sequence[LabelledBatch]" = ()
    """The same rows in other segmentations, whose answers are averaged with those of this one."""

    @property
    def segmentations(self) -> list[tuple[Tensor, Tensor | None]]:
        """token_BS and allowed_BS of each segmentation of its rows."""
        return [(one.token_BS, one.allowed_BS) for one in (self, *self.others)]

    @property
    def num_tokens(self) -> int:
        """Real tokens of the text: what the speed is told in. The batch is on the host."""
        return self.token_BS.numel() if self.allowed_BS is None else int(self.allowed_BS.sum())

    def to(self, device: torch.device) -> "LabelledBatch":
        """The same batch with its tensors on `device`."""
        allowed = self.allowed_BS
        return replace(
            self,
            token_BS=on_device(self.token_BS, device),
            allowed_BS=None if allowed is None else on_device(allowed, device),
            target=on_device(self.target, device),
        )

    def halves(self) -> "tuple[LabelledBatch, ...]":
        """Two batches that hold its rows between them, as wide as it is; none where it has one row."""
        num_rows = len(self.rows)
        if num_rows < 2:
            return ()
        return self._part(slice(num_rows // 2)), self._part(slice(num_rows // 2, num_rows))

    def _part(self, part: slice) -> "LabelledBatch":
        allowed, target = self.allowed_BS, self.target[part]
        return LabelledBatch(
            self.token_BS[part],
            None if allowed is None else allowed[part],
            target,
            _num_targets(target),
            self.rows[part],
        )


def _num_targets(target: Tensor) -> int:
    return int((target != IGNORE).sum()) if target.dim() == 2 else len(target)


def padded_tokens(ids: Ranges, *, pad: int, multiple: int = 1) -> tuple[Tensor, Tensor | None]:
    """token_BS, and allowed_BS where a row is padded."""
    token_BS, allowed_BS = padded(ids, fill=pad, multiple=multiple)
    return torch.from_numpy(token_BS), None if allowed_BS.all() else torch.from_numpy(allowed_BS)


def collate(ids: Ranges, targets: Ranges, *, pad: int, multiple: int, rows: np.ndarray) -> LabelledBatch:
    """The padded batch of rows with their targets: as many as ids, or one a row."""
    token_BS, allowed_BS = padded_tokens(ids, pad=pad, multiple=multiple)
    if targets.flat.dtype.kind == "f":
        values = targets.flat[targets.starts]
    elif targets.lengths[0] > 1:  # a target an id, of which a row has two at least
        values, _ = padded(targets, fill=IGNORE, multiple=multiple)
    else:
        values = targets.flat[targets.starts].astype(np.int64)
    target = torch.from_numpy(values)
    return LabelledBatch(token_BS, allowed_BS, target, _num_targets(target), rows)


class LabelledBatches(PooledBatches):
    """Endless training batches, each row once an epoch; `state` is the place after the batches handed out.

    With a tokenizer that samples, the ids of each batch are drawn anew from the
    raw text. The draw is a function of seed, epoch and rows, so a resumed run
    repeats it. Batches are made by the lengths of the plain encoding, so a
    drawn batch can be over `max_tokens`; a drawn row is cut as any other.

    Raises:
        ConfigError: a row is over `max_tokens`.
    """

    def __init__(
        self, tokens: TokenPairs, encoder: RowEncoder, *, max_tokens: int, seed: int, pad_to_multiple: int = 1
    ) -> None:
        lengths = tokens.source_side.lengths
        super().__init__(tokens, lengths, lengths, max_tokens=max_tokens, seed=seed, pad_to_multiple=pad_to_multiple)
        self._encoder = encoder

    def __next__(self) -> LabelledBatch:
        epoch, rows, ids, targets = self._next_rows()
        if self._encoder.tokenizer.sampling:
            ids, targets = self._drawn(rows, draw_seeds(self._seed, epoch, rows)[0])
        pad = self._encoder.tokenizer.pad_id
        return collate(ids, targets, pad=pad, multiple=self._pad_to_multiple, rows=rows)

    def _drawn(self, rows: np.ndarray, seed: int) -> tuple[Ranges, Ranges]:
        texts = [self._pairs.text(int(row)) for row in rows]
        drawn = self._encoder.rows(
            [text for text, _ in texts], lambda parts: self._encoder.tokenizer.sample(parts, seed=seed)
        )
        targets = self._encoder.targets(drawn, [label for _, label in texts])
        dtype = np.dtype(self._encoder.target_type)
        return Ranges.of(drawn.ids), Ranges.of([target.astype(dtype) for target in targets])


class LabelledEvaluationBatches:
    """Every row exactly once, similar lengths together; the same batches each time.

    With `num_segmentations` above 1 a batch has its rows in as many segmentations (`others`), each with one target a
    row. Batches are made by the lengths of the plain ones, so another can be over `max_tokens`.
    """

    def __init__(self, tokens: TokenPairs, encoder: RowEncoder, *, max_tokens: int, num_segmentations: int = 1) -> None:
        self.tokens = tokens
        self._encoder = encoder
        self._num_segmentations = num_segmentations
        self._batches = ordered_batches(tokens.source_lengths, tokens.source_lengths, max_tokens=max_tokens)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[LabelledBatch]:
        for rows in self._batches:
            ids, targets = self.tokens.load(rows)
            plain = self._batch(ids, targets, rows)
            others = []
            if self._num_segmentations > 1:
                texts = [self.tokens.text(int(row))[0] for row in rows]
                for number in range(1, self._num_segmentations):
                    others.append(self._batch(Ranges.of(self._encoder.variant(texts, number).ids), targets, rows))
            yield replace(plain, others=others)

    def _batch(self, ids: Ranges, targets: Ranges, rows: np.ndarray) -> LabelledBatch:
        return collate(ids, targets, pad=self._encoder.tokenizer.pad_id, multiple=1, rows=rows)
