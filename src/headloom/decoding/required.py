"""Phrases that an output must hold: a beam whose places are shared among hypotheses that hold more and less of them.

After the dynamic beam allocation of Post and Vilar (2018), section 3: the
candidates of a step are those of highest score and the next token of every
phrase that is missing; hypotheses that hold equally many tokens of the phrases
form a bank, and the banks take turns in filling the beam, the fullest first, so
that what a bank cannot use goes to the others. An output may end when it holds
every phrase, and is turned to what is missing when no room is left for more.

Two differences keep it small: a phrase counts as there when its tokens stand
side by side, whoever put them there (so that two phrases may share tokens), and
banks take turns where the paper computes their sizes.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headloom.decoding.constraints import Phrases

State = tuple[int, ...]
"""Of each phrase, how many of its tokens the hypothesis ends with; all of them once it is there."""


class RequiredPhrases:
    """The phrases of every sentence and how far each row of the beam is with them."""

    def __init__(self, phrases: Sequence[Phrases], *, beam_size: int, eos_id: int) -> None:
        self.beam_size = beam_size
        self.eos_id = eos_id
        self.phrases = [[tuple(phrase) for phrase in some] for some in phrases]
        self.states: list[State] = [(0,) * len(some) for some in phrases for _ in range(beam_size)]
        self.sentences = [b for b in range(len(phrases)) for _ in range(beam_size)]

    def next_tokens(self) -> NDArray[np.int64]:
        """extra_NP: what brings each row further, -1 where there is nothing."""
        found = [
            [phrase[done] for phrase, done in zip(self.phrases[b], state, strict=True) if done < len(phrase)]
            for b, state in zip(self.sentences, self.states, strict=True)
        ]
        width = max(map(len, found), default=0)
        distinct = [list(dict.fromkeys(tokens)) for tokens in found]
        rows = [tokens + [-1] * (width - len(tokens)) for tokens in distinct]
        return np.array(rows, dtype=np.int64).reshape(len(found), width)

    def order(
        self, log_prob_BE: NDArray[np.float64], id_BE: NDArray[np.int64], room_B: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Which 2K candidates of each sentence a step looks at, as a beam without phrases has them, and their values.

        First those that end, then those that go on, then nothing (-inf).
        `room_B` is the most tokens that may follow this step, eos counted.
        """
        size = self.beam_size
        order_B2K = np.zeros((len(id_BE), 2 * size), dtype=np.int64)
        log_prob_B2K = np.full(order_B2K.shape, -math.inf)
        for b, room in enumerate(room_B.tolist()):
            chosen = self._chosen(b, log_prob_BE[b], id_BE[b], room)
            order_B2K[b, : len(chosen)] = chosen
            log_prob_B2K[b, : len(chosen)] = log_prob_BE[b, chosen]
        return order_B2K, log_prob_B2K

    def advance(self, row_N: NDArray[np.int64], id_N: NDArray[np.int64]) -> None:
        states, sentences = self.states, self.sentences
        self.sentences = [sentences[row] for row in row_N.tolist()]
        self.states = [
            self._after(sentences[row], states[row], token)
            for row, token in zip(row_N.tolist(), id_N.tolist(), strict=True)
        ]

    def _chosen(self, b: int, log_prob_E: NDArray[np.float64], id_E: NDArray[np.int64], room: int) -> list[int]:
        size = self.beam_size
        num_candidates = len(id_E) // size
        ends: list[int] = []
        num_full = 0
        banks: dict[int, list[int]] = {}
        for e in np.argsort(-log_prob_E, kind="stable").tolist():
            if log_prob_E[e] == -math.inf:
                break
            row = b * size + e // num_candidates
            sentence, state = self.sentences[row], self.states[row]
            is_end = id_E[e] == self.eos_id
            missing = self._missing(sentence, state if is_end else self._after(sentence, state, int(id_E[e])))
            if is_end and missing == 0 and num_full < size:  # as without phrases: an eos among the first K
                ends.append(e)
            elif not is_end and missing + 1 <= room:
                banks.setdefault(missing, []).append(e)
            num_full += missing == 0
        going: list[int] = []
        turn = 0
        while len(going) < size and any(len(bank) > turn for bank in banks.values()):
            going += [banks[missing][turn] for missing in sorted(banks) if len(banks[missing]) > turn]
            turn += 1
        return ends + sorted(going[:size], key=lambda e: (-log_prob_E[e], e))

    def _missing(self, sentence: int, state: State) -> int:
        """Tokens that are enough to finish every phrase: the one that is furthest is finished, the others written."""
        left = [
            (len(phrase), done)
            for phrase, done in zip(self.phrases[sentence], state, strict=True)
            if done < len(phrase)
        ]
        return sum(length for length, _ in left) - max((done for _, done in left), default=0)

    def _after(self, sentence: int, state: State, token: int) -> State:
        return tuple(
            done if done == len(phrase) else _progress(phrase, done, token)
            for phrase, done in zip(self.phrases[sentence], state, strict=True)
        )


def _progress(phrase: tuple[int, ...], done: int, token: int) -> int:
    """The longest beginning of `phrase` that a text ends with which ended with `done` of its tokens before `token`."""
    text = (*phrase[:done], token)
    return next(size for size in range(len(text), -1, -1) if text[len(text) - size :] == phrase[:size])
