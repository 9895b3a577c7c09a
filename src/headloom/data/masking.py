"""Text with some of its tokens hidden, and what they were: Devlin et al. (2019), section 3.1.

The hidden tokens of a text are a function of seed, epoch and place in the text
alone: a resumed run hides the same ones, an evaluation always the same, and no
choice depends on how rows are batched.

B batch, S length of a row, N tokens that may be hidden, U units: tokens, or words.
"""

import hashlib
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from headloom.data.batch import padded
from headloom.data.labelled_batch import LabelledBatch
from headloom.data.mapped import Ranges
from headloom.data.sampled import SampledBatches, Sampler
from headloom.data.sampler import ordered_batches
from headloom.data.text_sampler import Stretches, windows_of
from headloom.data.text_store import TextTokens
from headloom.data.tokenizer_base import Tokenizer
from headloom.nn.loss import IGNORE


@dataclass(frozen=True)
class Masking:
    """How much is hidden, and behind what.

    Of each row the share `probability` of its tokens is to be predicted, one at
    least; of these `mask_share` are replaced by the mask, `random_share` by a
    random piece, and the others stay as they are.
    """

    probability: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1
    whole_words: bool = False
    """Choose words, all of whose pieces are to be predicted, in place of pieces."""


def mask_id(tokenizer: Tokenizer) -> int:
    """The id that stands for a hidden token: the one after all of the tokenizer's, so that no text spells it."""
    return tokenizer.vocab_size


class Masker:
    """Hides tokens of rows."""

    def __init__(self, tokenizer: Tokenizer, masking: Masking) -> None:
        self.masking = masking
        self._mask_id = mask_id(tokenizer)
        self._is_special = np.zeros(tokenizer.vocab_size, bool)
        self._is_special[[tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id]] = True
        self._pieces = np.flatnonzero(~self._is_special)
        if masking.whole_words:
            self._begins_word, self._ends_line = _word_bounds(tokenizer)

    def hide(self, token_BS: np.ndarray, place_BS: np.ndarray, *, draw: str) -> tuple[np.ndarray, np.ndarray]:
        """What is read and what is to be predicted, IGNORE where nothing is.

        `token`: ids, filled up with pad; the first of each row is what leads it, and stays. `place` of each token in
        the text and `draw`, which names the draw, decide what is hidden.
        """
        may_BS = ~self._is_special[token_BS]
        may_BS[:, 0] = False
        at_N = np.flatnonzero(may_BS)
        input_BS, target_BS = token_BS.copy(), np.full_like(token_BS, IGNORE)
        if len(at_N) == 0:
            return input_BS, target_BS
        token_N, place_N = token_BS.reshape(-1)[at_N], place_BS.reshape(-1)[at_N]
        chosen_N = self._chosen(at_N, token_N, place_N, width=token_BS.shape[1], draw=draw)
        at_N, token_N, place_N = at_N[chosen_N], token_N[chosen_N], place_N[chosen_N]
        target_BS.reshape(-1)[at_N] = token_N
        fate_N = uniform(f"{draw} fate", place_N)
        masked, changed = self.masking.mask_share, self.masking.mask_share + self.masking.random_share
        other_N = self._pieces[(uniform(f"{draw} piece", place_N) * len(self._pieces)).astype(np.int64)]
        input_BS.reshape(-1)[at_N] = np.where(
            fate_N < masked, self._mask_id, np.where(fate_N < changed, other_N, token_N)
        )
        return input_BS, target_BS

    def _chosen(
        self, at_N: np.ndarray, token_N: np.ndarray, place_N: np.ndarray, *, width: int, draw: str
    ) -> np.ndarray:
        """Which tokens are to be predicted: of each row units in random order, until the share is reached.

        A unit that passes the share still counts where half of it or more is within.
        """
        row_N = at_N // width
        begins_N = np.ones(len(at_N), bool)
        if self.masking.whole_words:
            begins_N[1:] = self._begins_word[token_N[1:]] | self._ends_line[token_N[:-1]] | (np.diff(at_N) > 1)
            begins_N[1:] |= np.diff(row_N) > 0
        unit_N = np.cumsum(begins_N) - 1
        size_U, row_U = np.bincount(unit_N), row_N[begins_N]
        order_U = np.lexsort((uniform(f"{draw} unit", place_N[begins_N]), row_U))
        size_U, row_U = size_U[order_U], row_U[order_U]
        before_U = np.cumsum(size_U) - size_U
        before_U -= before_U[np.searchsorted(row_U, row_U)]  # of the same row
        wanted_U = self.masking.probability * np.bincount(row_N)[row_U]
        wanted_U = np.maximum(np.rint(wanted_U), 1)
        is_chosen_U = np.empty(len(order_U), bool)
        is_chosen_U[order_U] = (before_U == 0) | (before_U + size_U / 2 <= wanted_U)
        chosen: np.ndarray = is_chosen_U[unit_N]
        return chosen


def uniform(draw: str, place_N: np.ndarray) -> np.ndarray:
    """A number in [0, 1) for each place, a function of it and of `draw`: splitmix64 of Steele et al. (2014)."""
    key = int.from_bytes(hashlib.blake2b(draw.encode("utf-8"), digest_size=8).digest(), "little")
    bits_N = (place_N.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    bits_N = (bits_N ^ (bits_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits_N = (bits_N ^ (bits_N >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits_N ^= bits_N >> np.uint64(31)
    return (bits_N >> np.uint64(11)) * 2.0**-53


def _word_bounds(tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Of each id, whether a word begins with it, and whether it ends a line, so that the next piece begins one.

    A word begins with a blank, with a line end and with every character of a script that writes none between words.
    """
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    line_ends = ("\n", "<0x0A>")
    begins = [
        piece.startswith("▁")
        or piece in (*line_ends, "<0x20>", "<0x09>")
        or unicodedata.east_asian_width(piece[0]) == "W"
        for piece in pieces
    ]
    return np.array(begins), np.array([piece in line_ends for piece in pieces])


class MaskedRows:
    """Rows of a text as batches with hidden tokens: what leads a stretch (bos at the start of a document), and it."""

    def __init__(self, tokens: TextTokens, tokenizer: Tokenizer, masker: Masker, *, pad_to_multiple: int = 1) -> None:
        self._tokens = tokens
        self._tokenizer = tokenizer
        self._masker = masker
        self._pad_to_multiple = pad_to_multiple

    def batch(self, starts: np.ndarray, lengths: np.ndarray, *, draw: str) -> LabelledBatch:
        """The batch of some stretches; its `rows` are where they start."""
        ids = self._tokens.load(starts, lengths)
        flat = ids.flat.astype(np.int64)
        flat[ids.starts[flat[ids.starts] == self._tokenizer.eos_id]] = self._tokenizer.bos_id
        rows = Ranges(flat, ids.starts, ids.lengths)
        token_BS, real_BS = padded(rows, fill=self._tokenizer.pad_id, multiple=self._pad_to_multiple)
        place_BS = starts[:, None] + np.arange(token_BS.shape[1])
        input_BS, target_BS = self._masker.hide(token_BS, place_BS, draw=draw)
        return LabelledBatch(
            torch.from_numpy(input_BS),
            None if real_BS.all() else torch.from_numpy(real_BS),
            torch.from_numpy(target_BS),
            int((target_BS != IGNORE).sum()),
            starts,
        )


class MaskedBatches(SampledBatches[Sampler[Stretches]]):
    """Endless training batches; `state` is the place after the batches handed out. Each epoch hides other tokens."""

    def __init__(self, rows: MaskedRows, sampler: Sampler[Stretches], *, seed: int) -> None:
        super().__init__(sampler)
        self._rows = rows
        self._seed = seed

    def __next__(self) -> LabelledBatch:
        epoch = self._sampler.epoch
        stretches = next(self._sampler)
        return self._rows.batch(stretches.starts, stretches.lengths, draw=f"{self._seed} {epoch}")


class MaskedEvaluationBatches:
    """Every stretch of a text once, similar lengths together; the same batches and hidden tokens each time."""

    def __init__(
        self, tokens: TextTokens, rows: MaskedRows, *, length: int, max_tokens: int, within_documents: bool
    ) -> None:
        """Stretches of `length` targets at most; `within_documents`: none crosses the end of a document."""
        self._rows = rows
        self._starts, self._lengths, _ = windows_of(
            tokens, length=length, stride=length, within_documents=within_documents
        )
        self._batches = ordered_batches(self._lengths + 1, self._lengths + 1, max_tokens=max_tokens)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[LabelledBatch]:
        for rows in self._batches:
            rows = np.sort(rows)  # ascending: read from the disk in order
            yield self._rows.batch(self._starts[rows], self._lengths[rows], draw="evaluation")
