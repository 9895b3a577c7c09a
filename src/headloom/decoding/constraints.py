"""What the outputs of a search must and must not hold, and the state of it row by row.

A row's state follows from the tokens it holds, so it travels with the row when
hypotheses are reordered. Probabilities stay those of the model: a constraint
says what may be chosen, never how likely it was. Required phrases are in
required.py, forbidden ones in forbidden.py.

N rows of a search, L tokens so far.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headloom.decoding.candidates import Edits
from headloom.decoding.forbidden import ForbiddenPhrases, State

Phrases = Sequence[Sequence[int]]
NO_TOKEN = -1


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """Each sequence has an entry a sentence; None: the constraint is off. Ids hold neither bos nor eos.

    An output has at least `min_lengths` tokens, eos counted, unless its longest
    length is less; begins with its prefix, whatever else is forbidden; holds
    none of the phrases that are `forbidden` (None: there are none) and each of
    the `required` ones as neighbouring tokens (beam search only); and repeats
    no `no_repeat_ngram` tokens. `repetition_penalty` (greedy search and
    sampling) makes every token that was there before less likely to be chosen:
    Keskar et al. (2019), section 4.1; 1: off. `contexts` are tokens before the
    output, such as a prompt, which count as there for the last two.
    """

    min_lengths: Sequence[int] | None = None
    prefixes: Phrases | None = None
    forbidden: Sequence[ForbiddenPhrases | None] | None = None
    required: Sequence[Phrases] | None = None
    contexts: Phrases | None = None
    no_repeat_ngram: int | None = None
    repetition_penalty: float = 1.0

    @property
    def edit_steps(self) -> bool:
        """Whether anything but required phrases is asked for."""
        return (
            self.min_lengths is not None
            or any(self.prefixes or ())
            or any(phrases is not None for phrases in self.forbidden or ())
            or self.no_repeat_ngram is not None
            or self.repetition_penalty != 1.0
        )


class ConstrainedRows:
    """The rows of one search: `edits` says what the next step may choose, `advance` what was chosen."""

    def __init__(self, constraints: Constraints, *, num_sentences: int, rows_a_sentence: int, eos_id: int) -> None:
        self.constraints = constraints
        self.eos_id = eos_id
        self.sentence_N = np.repeat(np.arange(num_sentences), rows_a_sentence)
        contexts = constraints.contexts or [()] * num_sentences
        self.context_width = max(map(len, contexts), default=0)
        token_BL = np.full((num_sentences, self.context_width), NO_TOKEN)
        for b, context in enumerate(contexts):
            token_BL[b, self.context_width - len(context) :] = context
        self.token_NL = token_BL[self.sentence_N]
        self.min_length_B = np.asarray(constraints.min_lengths or [0] * num_sentences)
        self.prefixes = [list(prefix) for prefix in constraints.prefixes or [()] * num_sentences]
        forbidden = constraints.forbidden or [None] * num_sentences
        self.texts: list[tuple[ForbiddenPhrases, State] | None] = [
            None if phrases is None else (phrases, phrases.start)
            for phrases in forbidden
            for _ in range(rows_a_sentence)
        ]

    def edits(self) -> Edits:
        """For the step that chooses the next token."""
        num_written = self.token_NL.shape[1] - self.context_width
        forced = [
            (row, prefix[num_written])
            for row, prefix in enumerate(map(self.prefixes.__getitem__, self.sentence_N.tolist()))
            if num_written < len(prefix)
        ]
        begun = {row for row, _ in forced}  # a prefix is written whatever else is forbidden
        banned = [*self._too_short(num_written + 1), *self._repeated_ngrams()]
        row_N, id_N = _columns([(row, token) for row, token in banned if row not in begun])
        ends = self._ends_of_phrases(begun)
        return Edits(
            banned=(
                np.concatenate([row_N, *(np.full(len(ids), row) for row, ids in ends)]),
                np.concatenate([id_N, *(ids for _, ids in ends)]),
            ),
            forced=_columns(forced),
            penalised=self._seen(),
            penalty=self.constraints.repetition_penalty,
        )

    def advance(self, row_N: NDArray[np.int64], id_N: NDArray[np.int64]) -> None:
        """From now on row i is what `row_N[i]` was and `id_N[i]` behind it."""
        self.sentence_N = self.sentence_N[row_N]
        self.token_NL = np.concatenate([self.token_NL[row_N], id_N[:, None]], axis=1)
        before = [self.texts[row] for row in row_N.tolist()]
        self.texts = [
            None if text is None else (text[0], text[0].after(text[1], token))
            for text, token in zip(before, id_N.tolist(), strict=True)
        ]

    def _too_short(self, length: int) -> list[tuple[int, int]]:
        rows = np.flatnonzero(self.min_length_B[self.sentence_N] > length)
        return [(row, self.eos_id) for row in rows.tolist()]

    def _ends_of_phrases(self, begun: Collection[int]) -> list[tuple[int, NDArray[np.int64]]]:
        """Rows, but for those that are `begun`, and the ids that would end a forbidden phrase there."""
        return [
            (row, text[0].banned(text[1]))
            for row, text in enumerate(self.texts)
            if text is not None and row not in begun
        ]

    def _repeated_ngrams(self) -> list[tuple[int, int]]:
        size = self.constraints.no_repeat_ngram
        if size is None or self.token_NL.shape[1] < size:
            return []
        window_NWL = np.lib.stride_tricks.sliding_window_view(self.token_NL, size, axis=1)
        tail_NL = self.token_NL[:, self.token_NL.shape[1] - size + 1 :]
        match_NW = (window_NWL[:, :, :-1] == tail_NL[:, None]).all(axis=2) & (window_NWL != NO_TOKEN).all(axis=2)
        row, place = np.nonzero(match_NW)
        return list(zip(row.tolist(), window_NWL[row, place, -1].tolist(), strict=True))

    def _seen(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if self.constraints.repetition_penalty == 1.0:
            return _columns([])
        row, place = np.nonzero(self.token_NL != NO_TOKEN)
        return row, self.token_NL[row, place]


def _columns(pairs: list[tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    array = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return array[:, 0], array[:, 1]
