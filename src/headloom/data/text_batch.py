"""Batches of running text for a language model.

B batch, T length.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from headloom.data.sampler import ordered_batches
from headloom.data.text_sampler import Stretches, TextSampler, windows
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

    def to(self, device: torch.device) -> "TextBatch":
        """The same batch with its tensors on `device`."""

        def moved(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device, non_blocking=True)

        return replace(
            self,
            input_BT=self.input_BT.to(device, non_blocking=True),
            target_BT=self.target_BT.to(device, non_blocking=True),
            stretch_BT=moved(self.stretch_BT),
            position_BT=moved(self.position_BT),
        )


def collate(
    tokens: TextTokens, stretches: Stretches, tokenizer: Tokenizer, *, num_scored: np.ndarray | None = None
) -> TextBatch:
    """The batch of some stretches; of each the last `num_scored` targets count (None: all)."""
    ids = tokens.load(stretches.starts, stretches.lengths)
    lengths = stretches.lengths
    num_rows = int(stretches.rows[-1]) + 1
    row_lengths = np.bincount(stretches.rows, weights=lengths, minlength=num_rows).astype(np.int64)
    width = int(row_lengths.max())
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


class TextTrainingBatches:
    """Endless training batches; `state` is the place after the batches handed out."""

    def __init__(self, tokens: TextTokens, tokenizer: Tokenizer, sampler: TextSampler) -> None:
        self._tokens = tokens
        self._tokenizer = tokenizer
        self._sampler = sampler

    @property
    def epoch(self) -> int:
        """Epoch of the batch that comes next, from 0."""
        return self._sampler.epoch

    def state(self) -> dict[str, int]:
        return self._sampler.state()

    def load_state(self, state: Mapping[str, int]) -> None:
        """Go on after the batches that were handed out when `state` was taken.

        Raises:
            CheckpointError: as `TextSampler.load_state`.
        """
        self._sampler.load_state(state)

    def __iter__(self) -> Iterator[TextBatch]:
        return self

    def __next__(self) -> TextBatch:
        return collate(self._tokens, next(self._sampler), self._tokenizer)


class TextEvaluationBatches:
    """Windows over a text that score every target once; the same batches each time.

    See `text_sampler.windows` for the rule. With `within_documents` each
    document has windows of its own, else they run over the whole stream.
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
        spans = [(0, len(tokens))]
        if within_documents:
            starts, lengths = tokens.documents(0, tokens.num_documents)
            spans = list(zip(starts.tolist(), (starts + lengths).tolist(), strict=True))
        found = [window for span in spans for window in windows(*span, length=length, stride=stride)]
        self._starts, self._lengths, self._num_scored = np.array(found, dtype=np.int64).T
        self._batches = ordered_batches(self._lengths, self._lengths, max_tokens=max_tokens)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[TextBatch]:
        for rows in self._batches:
            rows = np.sort(rows)  # ascending: read from the disk in order
            stretches = Stretches(self._starts[rows], self._lengths[rows], np.arange(len(rows)))
            yield collate(self.tokens, stretches, self._tokenizer, num_scored=self._num_scored[rows])
