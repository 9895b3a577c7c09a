"""Beam search over a step function.

B sentences still searched, K hypotheses a sentence, N = B * K rows, C candidate
tokens a row, E = K * C candidates a sentence, S source length.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headloom.decoding.candidates import best_tokens
from headloom.decoding.constraints import ConstrainedRows, Constraints
from headloom.decoding.ranking import BY_PROBABILITY, Ranking, coverage_sum
from headloom.decoding.required import RequiredPhrases
from headloom.decoding.search import (
    CPU,
    NOTHING,
    AttendingStep,
    Hypothesis,
    Paths,
    StepFunction,
    checked_lengths,
    first_tokens,
    force_end,
    going_on,
    greedy_search,
)


def beam_search(
    step: StepFunction,
    *,
    num_sentences: int,
    beam_size: int,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    max_lengths: Tensor | Sequence[int],
    ranking: Ranking = BY_PROBABILITY,
    num_best: int = 1,
    start_ids: Sequence[int] | None = None,
    constraints: Constraints | None = None,
    source_lengths: Sequence[int] | None = None,
    key: Callable[[list[int]], Hashable] | None = None,
    device: torch.device = CPU,
) -> list[list[Hypothesis]]:
    """The `num_best` hypotheses of highest score that a beam finds for each sentence, best first.

    `step` starts with `num_sentences * beam_size` rows, those of a sentence
    side by side; `device` is where it wants its tokens. Its first token is bos,
    or that of `start_ids` (the last one of a prompt). `max_lengths` holds the
    most tokens each output may have, eos counted; there, eos is all that may
    follow, at its own probability. Neither pad nor bos is ever produced.

    Of the 2K best continuations of a sentence, an eos among the first K ends
    its hypothesis, and the K best others go on, so that ended hypotheses take
    no room from living ones. A sentence ends when no living hypothesis can
    reach a higher score than the worst of the `num_best` it has; its rows then
    leave the batch. The result of a sentence depends on nothing else in the
    batch, but for rounding inside `step`. A beam of 1 is `greedy_search`, which
    has neither required phrases nor coverage.

    A coverage penalty needs an `AttendingStep`, and in `source_lengths` the
    number of source tokens to cover. Of hypotheses to which `key` gives one
    value (their text, say) only the best counts; None: all differ.

    Equal scores are ranked by the rank of their parents, then the lower id; an
    earlier end before a later one. A hypothesis whose logits are NaN or +inf is
    dropped; a sentence left without any gets `NOTHING`. There may be fewer than
    `num_best` hypotheses, at least one.

    Raises:
        ValueError: beam_size, num_best or a length is below 1, num_best above beam_size, or a beam of 1 has more
            to do than the likeliest token.
    """
    if not 1 <= num_best <= beam_size:
        raise ValueError(f"num_best ({num_best}) must be at least 1 and at most beam_size ({beam_size})")
    required = constraints.required if constraints is not None and any(constraints.required or ()) else None
    if beam_size == 1 and (required is not None or ranking.coverage_penalty):
        raise ValueError("required phrases and a coverage penalty need a beam_size of 2 or more")
    if beam_size == 1:
        greedy = greedy_search(
            step,
            num_sentences=num_sentences,
            bos_id=bos_id,
            eos_id=eos_id,
            pad_id=pad_id,
            max_lengths=max_lengths,
            ranking=ranking,
            start_ids=start_ids,
            constraints=constraints,
            device=device,
        )
        return [[hypothesis] for hypothesis in greedy]

    longest_B = checked_lengths(max_lengths, num_sentences)
    sentence_B = np.arange(num_sentences)
    worst_B = np.full(num_sentences, -np.inf)  # a score must be above it to be kept
    log_prob_BK = np.full((num_sentences, beam_size), -np.inf)
    log_prob_BK[:, 0] = 0.0  # all rows are alike at first: the others must not repeat the first
    # Hypotheses are in order of their rank, and the row of rank r of sentence b is K * b + place_BK[b, r].
    place_BK = np.tile(np.arange(beam_size), (num_sentences, 1))
    token_N = first_tokens(start_ids, bos_id, num_sentences, device).repeat_interleave(beam_size)
    paths = Paths()
    rows = phrases = coverage = None
    if constraints is not None and constraints.edit_steps:
        rows = ConstrainedRows(constraints, num_sentences=num_sentences, rows_a_sentence=beam_size, eos_id=eos_id)
    if required is not None:
        phrases = RequiredPhrases(required, beam_size=beam_size, eos_id=eos_id)
    if ranking.coverage_penalty:
        coverage = _Coverage(step, source_lengths, beam_size)
    kept = [_Kept(num_best, paths, key) for _ in range(num_sentences)]
    for length in count(1) if num_sentences else ():
        # One eos a row at most, so K + 1 tokens of every row hold the K best that are not eos.
        best = best_tokens(
            step.step(token_N),
            beam_size + 1,
            eos_id=eos_id,
            banned=(pad_id, bos_id),
            edits=None if rows is None else rows.edits(),
            extra_NP=None if phrases is None else phrases.next_tokens(),
        )
        force_end(best, np.repeat(longest_B == length, beam_size), eos_id)
        num_live = len(sentence_B)
        row_BK = place_BK + np.arange(0, num_live * beam_size, beam_size)[:, None]
        log_prob_BE = (log_prob_BK[:, :, None] + best.log_prob_NC[row_BK]).reshape(num_live, -1)
        id_BE = best.id_NC[row_BK].reshape(num_live, -1)
        if phrases is None:
            order_B2K = np.argsort(-log_prob_BE, axis=1, kind="stable")[:, : 2 * beam_size]
            log_prob_B2K = np.take_along_axis(log_prob_BE, order_B2K, axis=1)
        else:
            order_B2K, log_prob_B2K = phrases.order(log_prob_BE, id_BE, longest_B - length)
        id_B2K = np.take_along_axis(id_BE, order_B2K, axis=1)
        row_B2K = np.take_along_axis(row_BK, order_B2K // best.id_NC.shape[1], axis=1)

        ends_B2K = id_B2K == eos_id
        score_BK = log_prob_B2K[:, :beam_size] / ranking.divisor(length)
        if coverage is not None:
            score_BK = score_BK + ranking.coverage_penalty * coverage.sums()[row_B2K[:, :beam_size]]
        for b, k in np.argwhere(ends_B2K[:, :beam_size] & (score_BK > worst_B[:, None])).tolist():
            ended = _Ended(float(score_BK[b, k]), float(log_prob_B2K[b, k]), int(row_B2K[b, k]), length - 1)
            worst_B[b] = kept[sentence_B[b]].add(ended)

        # An eos never goes on, one that is no candidate at all (-inf) neither.
        others_BK = np.argsort(ends_B2K, axis=1, kind="stable")[:, :beam_size]
        log_prob_BK = np.take_along_axis(np.where(ends_B2K, -np.inf, log_prob_B2K), others_BK, axis=1)
        highest_B = log_prob_BK[:, 0] if phrases is None else log_prob_BK.max(axis=1)
        go_on = going_on((longest_B > length) & (ranking.bound(highest_B, length, longest_B) > worst_B))
        if not len(go_on):
            break
        row_BK = np.take_along_axis(row_B2K, others_BK, axis=1)[go_on]
        id_BK = np.take_along_axis(id_B2K, others_BK, axis=1)[go_on]
        place_BK = np.tile(np.arange(beam_size), (len(go_on), 1))
        if phrases is None:  # which counts its rows by rank
            place_BK = _places(row_BK % beam_size)
        by_place_BK = np.argsort(place_BK, axis=1)
        row_N = np.take_along_axis(row_BK, by_place_BK, axis=1).reshape(-1)
        id_N = np.take_along_axis(id_BK, by_place_BK, axis=1).reshape(-1)
        if not np.array_equal(row_N, np.arange(num_live * beam_size)):
            step.reorder(torch.from_numpy(row_N))
        paths.append(row_N, id_N)
        if rows is not None:
            rows.advance(row_N, id_N)
        if phrases is not None:
            phrases.advance(row_N, id_N)
        if coverage is not None:
            coverage.reorder(row_N)
        token_N = torch.from_numpy(id_N).to(device)
        sentence_B, worst_B, longest_B = sentence_B[go_on], worst_B[go_on], longest_B[go_on]
        log_prob_BK = log_prob_BK[go_on]
    return [mine.hypotheses() or [NOTHING] for mine in kept]


def _places(parent_BK: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each rank among the rows of its sentence, given that of its parent.

    A hypothesis stays where its parent was, so that nothing of a cache is copied; of several with one parent the
    best does, and the others take the places of those that have none.
    """
    is_same_BKK = parent_BK[:, :, None] == parent_BK[:, None, :]
    moves_BK = np.tril(is_same_BKK, -1).any(axis=2)
    is_taken_BK = np.zeros(parent_BK.shape, dtype=bool)
    np.put_along_axis(is_taken_BK, parent_BK, True, axis=1)
    free_BK = np.argsort(is_taken_BK, axis=1, kind="stable")
    number_BK = np.maximum(moves_BK.cumsum(axis=1) - 1, 0)
    return np.where(moves_BK, np.take_along_axis(free_BK, number_BK, axis=1), parent_BK)


@dataclass(frozen=True)
class _Ended:
    score: float
    log_probability: float
    row: int  # where its last token was fed
    num_tokens: int  # without eos


class _Kept:
    """The best ended hypotheses of one sentence, best first, no two of one key."""

    def __init__(self, num_best: int, paths: Paths, key: Callable[[list[int]], Hashable] | None) -> None:
        self.num_best = num_best
        self.paths = paths
        self.key = key
        self.ended: list[tuple[_Ended, Hashable]] = []

    def add(self, ended: _Ended) -> float:
        """The score that another one must pass."""
        key = None
        if self.key is not None and self.num_best > 1:
            key = self.key(self.paths.ids(ended.row, ended.num_tokens))
            equal = next((other for other in self.ended if other[1] == key), None)
            if equal is not None:
                if equal[0].score >= ended.score:
                    return self._worst()
                self.ended.remove(equal)
        self.ended.append((ended, key))
        self.ended.sort(key=lambda pair: -pair[0].score)  # stable: the earlier stays before an equal
        del self.ended[self.num_best :]
        return self._worst()

    def _worst(self) -> float:
        return self.ended[-1][0].score if len(self.ended) == self.num_best else -np.inf

    def hypotheses(self) -> list[Hypothesis]:
        return [
            Hypothesis(self.paths.ids(ended.row, ended.num_tokens), ended.log_probability, ended.score)
            for ended, _ in self.ended
        ]


class _Coverage:
    """How much attention each source token has had in each row, the step just made included once `sums` was asked."""

    def __init__(self, step: StepFunction, source_lengths: Sequence[int] | None, beam_size: int) -> None:
        if not isinstance(step, AttendingStep) or source_lengths is None:
            raise ValueError("a coverage penalty needs a step function that shows its attention, and source_lengths")
        self.step = step
        self.length_N = np.repeat(np.asarray(source_lengths), beam_size)
        self.attention_NS: NDArray[np.float64] | float = 0.0

    def sums(self) -> NDArray[np.float64]:
        self.attention_NS = self.attention_NS + self.step.attention_NS().double().cpu().numpy()
        is_source_NS = np.arange(self.attention_NS.shape[1]) < self.length_N[:, None]
        return coverage_sum(self.attention_NS, is_source_NS)

    def reorder(self, row_N: NDArray[np.int64]) -> None:
        assert isinstance(self.attention_NS, np.ndarray)
        self.attention_NS, self.length_N = self.attention_NS[row_N], self.length_N[row_N]
