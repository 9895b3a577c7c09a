"""Batches of sentences that belong together: two texts a row, or one text twice.

B batch, S length of a row.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from headloom.data.batch import Batch, EvaluationBatches, TrainingBatches, padded
from headloom.data.labelled_batch import padded_tokens
from headloom.data.mapped import Ranges
from headloom.data.sampled import SampledBatches
from headloom.data.sampler import ordered_batches
from headloom.data.text_sampler import DocumentSampler, document_rows
from headloom.data.text_store import TextTokens
from headloom.data.tokenizer_base import Tokenizer
from headloom.nn.loss import IGNORE


@dataclass(frozen=True)
class SentenceBatch:
    """Some rows of bos, pieces and eos, padded on the right."""

    token_BS: Tensor
    """int64."""
    allowed_BS: Tensor | None
    """bool: True on real tokens. None: all are."""
    second_BS: Tensor | None
    """int64: what belongs to each row. None: the row itself, read a second time."""
    second_allowed_BS: Tensor | None
    num_targets: int
    """Rows: what a summed loss is divided by."""
    rows: np.ndarray
    """Row numbers, or of running text the places where they start."""

    @property
    def num_tokens(self) -> int:
        """Real tokens of all its sentences: what the speed is told in. The batch is on the host."""
        sides = [(self.token_BS, self.allowed_BS)]
        if self.second_BS is not None:
            sides.append((self.second_BS, self.second_allowed_BS))
        return sum(token.numel() if allowed is None else int(allowed.sum()) for token, allowed in sides)

    def to(self, device: torch.device) -> "SentenceBatch":
        """The same batch with its tensors on `device`."""

        def moved(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device, non_blocking=True)

        return replace(
            self,
            token_BS=self.token_BS.to(device, non_blocking=True),
            allowed_BS=moved(self.allowed_BS),
            second_BS=moved(self.second_BS),
            second_allowed_BS=moved(self.second_allowed_BS),
        )

    def halves(self) -> "tuple[SentenceBatch, ...]":
        """None: a half has fewer rows to tell a sentence from, and so another loss."""
        return ()


class PairedBatches(SampledBatches[TrainingBatches]):
    """Endless training batches of pairs: a source and its target belong together."""

    def __init__(self, batches: TrainingBatches, tokenizer: Tokenizer) -> None:
        super().__init__(batches)
        self._tokenizer = tokenizer

    def skip(self) -> None:
        """Pass over a batch without making it."""
        self._sampler.skip()

    def __next__(self) -> SentenceBatch:
        return of_pairs(next(self._sampler), self._tokenizer)


class PairedEvaluationBatches:
    """Every pair once; the same batches each time."""

    def __init__(self, batches: EvaluationBatches, tokenizer: Tokenizer) -> None:
        self._batches = batches
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[SentenceBatch]:
        for batch in self._batches:
            yield of_pairs(batch, self._tokenizer)


def of_pairs(batch: Batch, tokenizer: Tokenizer) -> SentenceBatch:
    """A batch of translation with bos before both sides."""
    real_BT = batch.target_BT != IGNORE
    target_BT = batch.target_BT.masked_fill(~real_BT, tokenizer.pad_id)
    allowed = batch.source_allowed_BS
    return SentenceBatch(
        _led(batch.source_BS, tokenizer.bos_id),
        None if allowed is None else _led(allowed, True),
        _led(target_BT, tokenizer.bos_id),
        None if bool(real_BT.all()) else _led(real_BT, True),
        len(batch.rows),
        batch.rows,
    )


def _led(rows_BS: Tensor, value: int) -> Tensor:
    return torch.cat([rows_BS.new_full((rows_BS.size(0), 1), value), rows_BS], dim=1)


class LineBatches(SampledBatches[DocumentSampler]):
    """Endless training batches of documents, each of which is read twice."""

    def __init__(
        self, tokens: TextTokens, tokenizer: Tokenizer, sampler: DocumentSampler, *, pad_to_multiple: int = 1
    ) -> None:
        super().__init__(sampler)
        self._tokens = tokens
        self._tokenizer = tokenizer
        self._pad_to_multiple = pad_to_multiple

    def __next__(self) -> SentenceBatch:
        found = next(self._sampler)
        return of_documents(self._tokens, found.starts, found.lengths, self._tokenizer, multiple=self._pad_to_multiple)


class LineEvaluationBatches:
    """Every document once, or its parts where it is longer than a row; the same batches each time."""

    def __init__(self, tokens: TextTokens, tokenizer: Tokenizer, *, length: int, max_tokens: int) -> None:
        self._tokens = tokens
        self._tokenizer = tokenizer
        self._starts, self._lengths = document_rows(tokens, length)
        self._batches = ordered_batches(self._lengths + 1, self._lengths + 1, max_tokens=max_tokens)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[SentenceBatch]:
        for rows in self._batches:
            rows = np.sort(rows)  # ascending: read from the disk in order
            yield of_documents(self._tokens, self._starts[rows], self._lengths[rows], self._tokenizer)


def of_documents(
    tokens: TextTokens, starts: np.ndarray, lengths: np.ndarray, tokenizer: Tokenizer, *, multiple: int = 1
) -> SentenceBatch:
    """The batch of some stretches of a text, each after bos."""
    ids = tokens.load(starts, lengths)
    flat = ids.flat.astype(np.int64)
    flat[ids.starts] = tokenizer.bos_id
    token_BS, real_BS = padded(Ranges(flat, ids.starts, ids.lengths), fill=tokenizer.pad_id, multiple=multiple)
    allowed_BS = None if real_BS.all() else torch.from_numpy(real_BS)
    return SentenceBatch(torch.from_numpy(token_BS), allowed_BS, None, None, len(starts), starts)


def text_batches(
    texts: list[str], tokenizer: Tokenizer, *, max_length: int, max_tokens: int
) -> Iterator[tuple[np.ndarray, Tensor, Tensor | None]]:
    """Texts as rows in batches of similar length: their places, token_BS and allowed_BS. A longer row is cut."""
    rows = [
        np.array([tokenizer.bos_id, *ids[: max_length - 2].tolist(), tokenizer.eos_id], dtype=np.int64)
        for ids in tokenizer.encode_arrays(texts)
    ]
    ids = Ranges.of(rows)
    for places in ordered_batches(ids.lengths, ids.lengths, max_tokens=max(max_tokens, int(ids.lengths.max()))):
        yield places, *padded_tokens(ids.take(places), pad=tokenizer.pad_id)
