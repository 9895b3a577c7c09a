"""What every search over a step function shares, and the simplest one: greedy search.

A search knows no model: `step` gives the logits of the next token for every
row, `reorder` tells whoever keeps a cache which rows go on. `best_tokens`
brings a few candidates a row to the CPU, one small transfer a step; there NumPy
does the bookkeeping, in float64. A decoder-only model is searched by a step
function that has read all of its prompt but the last token, which is then the
first to be fed (`start_ids`).

To add a search, write a function of the same arguments in a module beside this
one (beam.py, sampling.py) and give it an arm in `translator.Translator`.

B sentences still searched, K hypotheses a sentence, N = B * K rows, C candidate
tokens a row, S source length.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headloom.decoding.candidates import BestTokens, best_tokens
from headloom.decoding.constraints import ConstrainedRows, Constraints
from headloom.decoding.ranking import BY_PROBABILITY, Ranking

CPU = torch.device("cpu")


class StepFunction(Protocol):
    """What a search needs of a model: `headloom.models.seq2seq.DecoderState` is one."""

    def step(self, token_N: Tensor) -> Tensor:
        """The logits_NV of the token after `token_N`, float32; the search may overwrite them."""
        ...

    def reorder(self, index_N: Tensor) -> None:
        """From now on row i continues what row `index_N[i]` was; there may be fewer rows than before.

        The index is on the CPU. A row that is its own index costs nothing.
        """
        ...


@runtime_checkable
class AttendingStep(StepFunction, Protocol):
    """A step function that shows what it looked at."""

    def attention_NS(self) -> Tensor:
        """The share of attention each source token had in each row of the last step; rows sum to 1."""
        ...


@dataclass(frozen=True)
class Hypothesis:
    """A finished output.

    `ids` has neither bos nor eos. `log_probability` (nats) is that of all its
    tokens and of the eos behind them, under the model's full softmax: what
    teacher forcing gives. `score` is what the search ranks by. Both are -inf,
    and `ids` empty, where there is no output: the logits were not finite, or
    the constraints left none.
    """

    ids: list[int]
    log_probability: float
    score: float


NOTHING = Hypothesis([], -math.inf, -math.inf)


def greedy_search(
    step: StepFunction,
    *,
    num_sentences: int,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    max_lengths: Tensor | Sequence[int],
    ranking: Ranking = BY_PROBABILITY,
    start_ids: Sequence[int] | None = None,
    constraints: Constraints | None = None,
    device: torch.device = CPU,
) -> list[Hypothesis]:
    """The most probable token, step by step, of each sentence (one row each).

    Arguments as in `beam.beam_search`; required phrases and coverage are for a
    beam. Among equal logits the lowest id is taken.
    """
    longest_B = checked_lengths(max_lengths, num_sentences)
    sentence_B = np.arange(num_sentences)
    log_prob_B = np.zeros(num_sentences)
    token_N = first_tokens(start_ids, bos_id, num_sentences, device)
    rows = None
    if constraints is not None and constraints.edit_steps:
        rows = ConstrainedRows(constraints, num_sentences=num_sentences, rows_a_sentence=1, eos_id=eos_id)
    paths = Paths()
    found = [NOTHING] * num_sentences
    for length in count(1) if num_sentences else ():
        edits = None if rows is None else rows.edits()
        best = best_tokens(step.step(token_N), 1, eos_id=eos_id, banned=(pad_id, bos_id), edits=edits)
        force_end(best, longest_B == length, eos_id)
        log_prob_B = log_prob_B + best.log_prob_NC[:, 0]
        id_B = best.id_NC[:, 0]
        alive_B = log_prob_B > -np.inf
        ends_B = (id_B == eos_id) & alive_B
        for row in np.flatnonzero(ends_B).tolist():
            log_prob = float(log_prob_B[row])
            score = log_prob / float(ranking.divisor(length))
            found[sentence_B[row]] = Hypothesis(paths.ids(row, length - 1), log_prob, score)
        go_on = going_on(alive_B & ~ends_B)
        if not len(go_on):
            break
        if len(go_on) < len(id_B):
            step.reorder(torch.from_numpy(go_on))
        paths.append(go_on, id_B[go_on])
        if rows is not None:
            rows.advance(go_on, id_B[go_on])
        token_N = torch.from_numpy(id_B[go_on]).to(device)
        sentence_B, log_prob_B, longest_B = sentence_B[go_on], log_prob_B[go_on], longest_B[go_on]
    return found


class Paths:
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


def going_on(goes_on_B: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Which sentences go on, in an order in which few change place: the last take the places of those that end."""
    num = int(goes_on_B.sum())
    going = np.arange(num)
    going[~goes_on_B[:num]] = num + np.flatnonzero(goes_on_B[num:])
    return going


def first_tokens(start_ids: Sequence[int] | None, bos_id: int, num_sentences: int, device: torch.device) -> Tensor:
    """What is fed first, one token a sentence."""
    return torch.tensor([bos_id] * num_sentences if start_ids is None else list(start_ids), device=device).long()


def force_end(best: BestTokens, at_limit_N: NDArray[np.bool_], eos_id: int) -> None:
    """Leave eos, at its own probability, as the only candidate of the rows at their limit."""
    if at_limit_N.any():
        best.log_prob_NC[at_limit_N] = -np.inf
        best.log_prob_NC[at_limit_N, 0] = best.eos_log_prob_N[at_limit_N]
        best.id_NC[at_limit_N, 0] = eos_id


def checked_lengths(max_lengths: Tensor | Sequence[int], num_sentences: int) -> NDArray[np.int64]:
    length_B = torch.as_tensor(max_lengths, dtype=torch.int64).cpu().numpy()
    if length_B.shape != (num_sentences,):
        raise ValueError(f"max_lengths has shape {length_B.shape}; {num_sentences} sentences need one length each")
    if num_sentences and length_B.min() < 1:
        raise ValueError(f"max_lengths holds {length_B.min()}; eos counts, so the shortest output has length 1")
    return length_B
