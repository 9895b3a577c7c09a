"""Greedy and beam search over a step function.

The search knows no model: `step` gives the logits of the next token for every
row, `reorder` tells whoever keeps a cache which rows go on. `best_tokens`
brings a few candidates a row to the CPU, one small transfer a step; there NumPy
does the bookkeeping, in float64.

To add a search, write a function of the same arguments here and give it an arm
in `translator.Translator.search`.

B sentences still searched, K hypotheses a sentence, N = B * K rows, C candidate
tokens a row, E = K * C candidates a sentence.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headloom.decoding.candidates import BestTokens, best_tokens

CPU = torch.device("cpu")


class StepFunction(Protocol):
    """What a search needs of a model: `headloom.models.seq2seq.DecoderState` is one."""

    def step(self, token_N: Tensor) -> Tensor:
        """The logits_NV of the token after `token_N`, float32; the search may overwrite them."""
        ...

    def reorder(self, index_N: Tensor) -> None:
        """From now on row i continues what row `index_N[i]` was; there may be fewer rows than before."""
        ...


@dataclass(frozen=True)
class Hypothesis:
    """A finished output.

    `ids` has neither bos nor eos. `log_probability` (nats) is that of all its
    tokens and of the eos behind them, under the model's full softmax: what
    teacher forcing gives. `score` is that divided by `length_penalty_divisor`.
    Both are -inf, and `ids` empty, where the logits were not finite.
    """

    ids: list[int]
    log_probability: float
    score: float


NOTHING = Hypothesis([], -math.inf, -math.inf)


def length_penalty_divisor(length: int | NDArray[np.int64], length_penalty: float) -> NDArray[np.float64]:
    """((5 + length) / 6) ** length_penalty (Wu et al. 2016, equation 14); `length` counts eos.

    A log-probability divided by it is the score that hypotheses are ranked by:
    0 ranks by probability, positive values favour long outputs, negative short.
    """
    return np.asarray(((5.0 + length) / 6.0) ** length_penalty)


def greedy_search(
    step: StepFunction,
    *,
    num_sentences: int,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    max_lengths: Tensor | Sequence[int],
    length_penalty: float,
    device: torch.device = CPU,
) -> list[Hypothesis]:
    """The most probable token, step by step, of each sentence (one row each).

    Arguments as in `beam_search`. Among equal logits the lowest id is taken.
    """
    longest_B = _lengths(max_lengths, num_sentences)
    sentence_B = np.arange(num_sentences)
    log_prob_B = np.zeros(num_sentences)
    token_N = torch.full((num_sentences,), bos_id, device=device)
    paths = _Paths()
    found = [NOTHING] * num_sentences
    for length in count(1) if num_sentences else ():
        best = best_tokens(step.step(token_N), 1, eos_id=eos_id, banned=(pad_id, bos_id))
        _force_end(best, longest_B == length, eos_id)
        log_prob_B = log_prob_B + best.log_prob_NC[:, 0]
        id_B = best.id_NC[:, 0]
        alive_B = log_prob_B > -np.inf
        ends_B = (id_B == eos_id) & alive_B
        for row in np.flatnonzero(ends_B).tolist():
            log_prob = float(log_prob_B[row])
            score = log_prob / float(length_penalty_divisor(length, length_penalty))
            found[sentence_B[row]] = Hypothesis(paths.ids(row, length - 1), log_prob, score)
        go_on = np.flatnonzero(alive_B & ~ends_B)
        if not len(go_on):
            break
        if len(go_on) < len(id_B):
            step.reorder(torch.from_numpy(go_on).to(device))
        paths.append(go_on, id_B[go_on])
        token_N = torch.from_numpy(id_B[go_on]).to(device)
        sentence_B, log_prob_B, longest_B = sentence_B[go_on], log_prob_B[go_on], longest_B[go_on]
    return found


def beam_search(
    step: StepFunction,
    *,
    num_sentences: int,
    beam_size: int,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    max_lengths: Tensor | Sequence[int],
    length_penalty: float,
    num_best: int = 1,
    device: torch.device = CPU,
) -> list[list[Hypothesis]]:
    """The `num_best` hypotheses of highest score that a beam finds for each sentence, best first.

    `step` starts with `num_sentences * beam_size` rows, those of a sentence
    side by side; `device` is where it wants its tokens. `max_lengths` holds the
    most tokens each output may have, eos counted; there, eos is all that may
    follow, at its own probability. Neither pad nor bos is ever produced.

    Of the 2K best continuations of a sentence, an eos among the first K ends
    its hypothesis, and the K best others go on, so that ended hypotheses take
    no room from living ones. A sentence ends when no living hypothesis can
    reach a higher score than the worst of the `num_best` it has; its rows then
    leave the batch. The result of a sentence depends on nothing else in the
    batch, but for rounding inside `step`. A beam of 1 is `greedy_search`.

    Equal scores are ranked by the rank of their parents, then the lower id; an
    earlier end before a later one. A hypothesis whose logits are NaN or +inf is
    dropped; a sentence left without any gets `NOTHING`. There may be fewer than
    `num_best` hypotheses, at least one.

    Raises:
        ValueError: beam_size, num_best or a length is below 1, or num_best above beam_size.
    """
    if not 1 <= num_best <= beam_size:
        raise ValueError(f"num_best ({num_best}) must be at least 1 and at most beam_size ({beam_size})")
    if beam_size == 1:
        greedy = greedy_search(
            step,
            num_sentences=num_sentences,
            bos_id=bos_id,
            eos_id=eos_id,
            pad_id=pad_id,
            max_lengths=max_lengths,
            length_penalty=length_penalty,
            device=device,
        )
        return [[hypothesis] for hypothesis in greedy]

    longest_B = _lengths(max_lengths, num_sentences)
    sentence_B = np.arange(num_sentences)
    worst_B = np.full(num_sentences, -np.inf)  # a score must be above it to be kept
    log_prob_BK = np.full((num_sentences, beam_size), -np.inf)
    log_prob_BK[:, 0] = 0.0  # all rows are alike at first: the others must not repeat the first
    token_N = torch.full((num_sentences * beam_size,), bos_id, device=device)
    paths = _Paths()
    kept: list[list[_Ended]] = [[] for _ in range(num_sentences)]
    for length in count(1) if num_sentences else ():
        # One eos a row at most, so K + 1 tokens of every row hold the K best that are not eos.
        best = best_tokens(step.step(token_N), beam_size + 1, eos_id=eos_id, banned=(pad_id, bos_id))
        _force_end(best, np.repeat(longest_B == length, beam_size), eos_id)
        num_live = len(sentence_B)
        log_prob_BE = (log_prob_BK[:, :, None] + best.log_prob_NC.reshape(num_live, beam_size, -1)).reshape(
            num_live, -1
        )
        order_B2K = np.argsort(-log_prob_BE, axis=1, kind="stable")[:, : 2 * beam_size]
        log_prob_B2K = np.take_along_axis(log_prob_BE, order_B2K, axis=1)
        id_B2K = np.take_along_axis(best.id_NC.reshape(num_live, -1), order_B2K, axis=1)
        row_B2K = order_B2K // best.id_NC.shape[1] + np.arange(0, num_live * beam_size, beam_size)[:, None]

        ends_B2K = id_B2K == eos_id
        score_BK = log_prob_B2K[:, :beam_size] / length_penalty_divisor(length, length_penalty)
        for b, k in np.argwhere(ends_B2K[:, :beam_size] & (score_BK > worst_B[:, None])).tolist():
            mine = kept[sentence_B[b]]
            mine.append(_Ended(float(score_BK[b, k]), float(log_prob_B2K[b, k]), int(row_B2K[b, k]), length - 1))
            mine.sort(key=lambda ended: -ended.score)  # stable: the earlier stays before an equal
            del mine[num_best:]
            if len(mine) == num_best:
                worst_B[b] = mine[-1].score

        # An eos never goes on, one that is no candidate at all (-inf) neither.
        others_BK = np.argsort(ends_B2K, axis=1, kind="stable")[:, :beam_size]
        log_prob_BK = np.take_along_axis(np.where(ends_B2K, -np.inf, log_prob_B2K), others_BK, axis=1)
        go_on = np.flatnonzero(
            (longest_B > length) & (_bound(log_prob_BK[:, 0], length, longest_B, length_penalty) > worst_B)
        )
        if not len(go_on):
            break
        row_N = np.take_along_axis(row_B2K, others_BK, axis=1)[go_on].reshape(-1)
        id_N = np.take_along_axis(id_B2K, others_BK, axis=1)[go_on].reshape(-1)
        if not np.array_equal(row_N, np.arange(num_live * beam_size)):
            step.reorder(torch.from_numpy(row_N).to(device))
        paths.append(row_N, id_N)
        token_N = torch.from_numpy(id_N).to(device)
        sentence_B, worst_B, longest_B = sentence_B[go_on], worst_B[go_on], longest_B[go_on]
        log_prob_BK = log_prob_BK[go_on]
    return [
        [Hypothesis(paths.ids(ended.row, ended.num_tokens), ended.log_probability, ended.score) for ended in mine]
        or [NOTHING]
        for mine in kept
    ]


def _bound(
    log_prob_B: NDArray[np.float64], length: int, longest_B: NDArray[np.int64], length_penalty: float
) -> NDArray[np.float64]:
    """The highest score a living hypothesis of `length` tokens can still reach.

    Its log-probability can only fall and is never positive, so the largest
    divisor to come is the bound: that of the longest output when the penalty is
    positive, that of an end in the next step when it is negative.
    """
    next_end = length_penalty_divisor(length + 1, length_penalty)
    return log_prob_B / np.maximum(next_end, length_penalty_divisor(longest_B, length_penalty))


@dataclass(frozen=True)
class _Ended:
    score: float
    log_probability: float
    row: int  # where its last token was fed
    num_tokens: int  # without eos


class _Paths:
    """The tokens that were fed, and the row each came from, step by step."""

    def __init__(self) -> None:
        self._steps: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []

    def append(self, row_N: NDArray[np.int64], id_N: NDArray[np.int64]) -> None:
        self._steps.append((row_N, id_N))

    def ids(self, row: int, num_tokens: int) -> list[int]:
        """The `num_tokens` tokens whose last was fed in `row`."""
        ids = []
        for row_N, id_N in reversed(self._steps[:num_tokens]):
            ids.append(int(id_N[row]))
            row = int(row_N[row])
        return ids[::-1]


def _force_end(best: BestTokens, at_limit_N: NDArray[np.bool_], eos_id: int) -> None:
    """Leave eos, at its own probability, as the only candidate of the rows at their limit."""
    if at_limit_N.any():
        best.log_prob_NC[at_limit_N] = -np.inf
        best.log_prob_NC[at_limit_N, 0] = best.eos_log_prob_N[at_limit_N]
        best.id_NC[at_limit_N, 0] = eos_id


def _lengths(max_lengths: Tensor | Sequence[int], num_sentences: int) -> NDArray[np.int64]:
    length_B = torch.as_tensor(max_lengths, dtype=torch.int64).cpu().numpy()
    if length_B.shape != (num_sentences,):
        raise ValueError(f"max_lengths has shape {length_B.shape}; {num_sentences} sentences need one length each")
    if num_sentences and length_B.min() < 1:
        raise ValueError(f"max_lengths holds {length_B.min()}; eos counts, so the shortest output has length 1")
    return length_B
