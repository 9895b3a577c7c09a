"""Batches of running text for a language model.

B batch, T length.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from headloom.data.placing import on_device
from headloom.data.sampled import SampledBatches, Sampler
from headloom.data.sampler import ordered_batches
from headloom.data.text_sampler import Stretches, windows_of
from headloom.data.text_store import TextTokens
from headloom.data.tokenizer_base import Tokenizer
from headloom.nn.loss import IGNORE


@dataclass(frozen=True)
class TextBatch:
    """Some rows of a text, padded on the right. The target is the input one position on."""

    input_BT: Tensor
    """int64: bos where a document begins, then pad."""
    target_BT: Tensor
    """int64: eos where a document ends, IGNORE where nothing is scored."""
    stretch_BT: Tensor | None
    """int64: number of the stretch within its row, which sees no other; padding is a stretch of its own. None: a row
    is one stretch."""
    position_BT: Tensor | None
    """int64: place within the stretch. None with `stretch_BT`."""
    num_targets: int
    """Targets that are scored: what a summed loss is divided by."""

    @property
    def num_tokens(self) -> int:
        """What the speed is told in."""
        return self.num_targets

    def to(self, device: torch.device) -> "TextBatch":
        """The same batch with its tensors on `device`."""

        def moved(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else on_device(tensor, device)

        return replace(
            self,
            input_BT=on_device(self.input_BT, device),
            target_BT=on_device(self.target_BT, device),
            stretch_BT=moved(self.stretch_BT),
            position_BT=moved(self.position_BT),
        )

    def real_BT(self) -> Tensor:
        """bool: True up to the last target of each row that is scored; all before it are real."""
        scored_BT = (self.target_BT != IGNORE).int()
        return scored_BT.flip(-1).cummax(-1).values.flip(-1).bool()

    def halves(self) -> "tuple[TextBatch, ...]":
        """Two batches that hold its rows between them, as wide as it is; none where it has one row."""
        num_rows = self.target_BT.size(0)
        if num_rows < 2:
            return ()
        return self._part(slice(num_rows // 2)), self._part(slice(num_rows // 2, None))

    def _part(self, rows: slice) -> "TextBatch":
        target_BT = self.target_BT[rows]
        return TextBatch(
            input_BT=self.input_BT[rows],
            target_BT=target_BT,
            stretch_BT=None if self.stretch_BT is None else self.stretch_BT[rows],
            position_BT=None if self.position_BT is None else self.position_BT[rows],
            num_targets=int((target_BT != IGNORE).sum()),
        )


def collate(
    tokens: TextTokens,
    stretches: Stretches,
    tokenizer: Tokenizer,
    *,
    num_scored: np.ndarray | None = None,
    multiple: int = 1,
) -> TextBatch:
    """The batch of some stretches; of each the last `num_scored` targets count (None: all).

    Its width is rounded up to `multiple`.
    """
    ids = tokens.load(stretches.starts, stretches.lengths)
    lengths = stretches.lengths
    num_rows = int(stretches.rows[-1]) + 1
    if num_scored is None and len(lengths) == num_rows and (lengths == lengths[0]).all() and lengths[0] % multiple == 0:
        return _of_equal_rows(ids.flat.reshape(num_rows, -1), tokenizer)
    row_lengths = np.bincount(stretches.rows, weights=lengths, minlength=num_rows).astype(np.int64)
    width = -(-int(row_lengths.max()) // multiple) * multiple
    # Place of each target in the batch, laid out flat, and in `ids`, where one id leads each stretch.
    within_row = np.cumsum(lengths) - lengths
    within_row -= np.repeat(np.cumsum(row_lengths) - row_lengths, np.bincount(stretches.rows, minlength=num_rows))
    counted = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    place = np.repeat(stretches.rows * width + within_row, lengths) + counted
    source = np.repeat(ids.starts, lengths) + counted
    input_BT = np.full((num_rows, width), tokenizer.pad_id, np.int64)
    target_BT = np.full((num_rows, width), IGNORE, np.int64)
    before = ids.flat[source].astype(np.int64)
    before[before == tokenizer.eos_id] = tokenizer.bos_id
    input_BT.reshape(-1)[place] = before
    targets = ids.flat[source + 1].astype(np.int64)
    if num_scored is not None:
        targets[counted < np.repeat(lengths - num_scored, lengths)] = IGNORE
    target_BT.reshape(-1)[place] = targets
    stretch_BT = position_BT = None
    if len(lengths) > num_rows:
        nth = np.arange(len(lengths)) - np.searchsorted(stretches.rows, stretches.rows)
        stretch_BT = np.full((num_rows, width), -1, np.int64)
        position_BT = np.zeros((num_rows, width), np.int64)
        stretch_BT.reshape(-1)[place] = np.repeat(nth, lengths)
        position_BT.reshape(-1)[place] = counted
    return TextBatch(
        input_BT=torch.from_numpy(input_BT),
        target_BT=torch.from_numpy(target_BT),
        stretch_BT=None if stretch_BT is None else torch.from_numpy(stretch_BT),
        position_BT=None if position_BT is None else torch.from_numpy(position_BT),
        num_targets=int(lengths.sum() if num_scored is None else num_scored.sum()),
    )


def _of_equal_rows(ids: np.ndarray, tokenizer: Tokenizer) -> TextBatch:
    """What `collate` gives for one stretch a row, all of one length: at a fifth of the cost."""
    ids = ids.astype(np.int64)
    inputs, targets = ids[:, :-1].copy(), ids[:, 1:].copy()
    inputs[inputs == tokenizer.eos_id] = tokenizer.bos_id
    return TextBatch(torch.from_numpy(inputs), torch.from_numpy(targets), None, None, targets.size)


class TextTrainingBatches(SampledBatches[Sampler[Stretches]]):
    """Endless training batches; `state` is the place after the batches handed out."""

    def __init__(
        self, tokens: TextTokens, tokenizer: Tokenizer, sampler: Sampler[Stretches], *, pad_to_multiple: int = 1
    ) -> None:
        super().__init__(sampler)
        self._tokens = tokens
        self._pad_to_multiple = pad_to_multiple
        self._tokenizer = tokenizer

    def __next__(self) -> TextBatch:
        return collate(self._tokens, next(self._sampler), self._tokenizer, multiple=self._pad_to_multiple)


class TextEvaluationBatches:
    """Windows over a text that score every target once; the same batches each time.

    See `text_sampler.windows_of` for the rule.
    """

    def __init__(
        self,
        tokens: TextTokens,
        tokenizer: Tokenizer,
        *,
        length: int,
        stride: int,
        max_tokens: int,
        within_documents: bool,
    ) -> None:
        self.tokens = tokens
        self._tokenizer = tokenizer
        self._starts, self._lengths, self._num_scored = windows_of(
            tokens, length=length, stride=stride, within_documents=within_documents
        )
        self._batches = ordered_batches(self._lengths, self._lengths, max_tokens=max_tokens)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[TextBatch]:
        for rows in self._batches:
            rows = np.sort(rows)  # ascending: read from the disk in order
            stretches = Stretches(self._starts[rows], self._lengths[rows], np.arange(len(rows)))
            yield collate(self.tokens, stretches, self._tokenizer, num_scored=self._num_scored[rows])
