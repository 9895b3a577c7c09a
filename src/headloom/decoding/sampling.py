"""Sampling from a step function: temperature, top-k, top-p, min-p.

Every sample has a generator of its own, made from the seed of its sentence and
its number, so that what is drawn for a sentence does not depend on the rest of
the batch.

B sentences still searched, K samples a sentence, N = B * K rows, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch
from torch import Tensor

from headloom.decoding.constraints import ConstrainedRows, Constraints
from headloom.decoding.search import (
    CPU,
    NOTHING,
    Hypothesis,
    Paths,
    StepFunction,
    checked_lengths,
    first_tokens,
    going_on,
)


@dataclass(frozen=True)
class Truncation:
    """From which tokens is drawn, and how evenly; in the order of the fields, each after the one before.

    The logits are divided by `temperature`. Of the probabilities that this
    gives, the `top_k` highest are left; the fewest highest that hold `top_p` of
    what is left (Holtzman et al. 2020, section 3.1); those of at least `min_p`
    times the highest (Nguyen et al. 2024, section 3). None: all. The likeliest
    token is always left.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    @property
    def cuts(self) -> bool:
        return self.top_k is not None or self.top_p is not None or self.min_p is not None


UNCHANGED = Truncation()


def sample_search(
    step: StepFunction,
    *,
    num_sentences: int,
    num_samples: int,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    max_lengths: Tensor | Sequence[int],
    seeds: Sequence[int],
    truncation: Truncation = UNCHANGED,
    start_ids: Sequence[int] | None = None,
    constraints: Constraints | None = None,
    device: torch.device = CPU,
) -> list[list[Hypothesis]]:
    """`num_samples` outputs of each sentence, in the order drawn; equal ones may occur.

    `step` starts with `num_sentences * num_samples` rows, those of a sentence
    side by side. `seeds`: one a sentence, from 0 to 2**64 - 1. The other
    arguments are those of `beam.beam_search`; required phrases are for a beam.
    Log-probability and score of a sample are those of the model, whatever
    `truncation` says. `NOTHING` where logits were not finite.
    """
    longest_B = checked_lengths(max_lengths, num_sentences)
    sentence_B = np.arange(num_sentences)
    generators = [_generator(seed, number) for seed in seeds for number in range(num_samples)]
    log_prob_N = np.zeros(num_sentences * num_samples)
    running_N = np.ones(num_sentences * num_samples, dtype=bool)
    token_N = first_tokens(start_ids, bos_id, num_sentences, device).repeat_interleave(num_samples)
    rows = None
    if constraints is not None and constraints.edit_steps:
        rows = ConstrainedRows(constraints, num_sentences=num_sentences, rows_a_sentence=num_samples, eos_id=eos_id)
    paths = Paths()
    found = [[NOTHING] * num_samples for _ in range(num_sentences)]
    for length in count(1) if num_sentences else ():
        at_limit_N = np.repeat(longest_B == length, num_samples)
        uniform_N = np.array([generator.random() for generator in generators])
        logits_NV = step.step(token_N)
        log_total_N1 = logits_NV.logsumexp(-1, keepdim=True)
        own_NV = logits_NV
        if rows is not None:
            own_NV = logits_NV.clone()
            rows.edits().apply(logits_NV)
        logits_NV[:, [pad_id, bos_id]] = -math.inf
        id_N1 = _draw(logits_NV, torch.from_numpy(uniform_N).to(device), truncation)[:, None]
        is_left_N1 = logits_NV.gather(1, id_N1) > -math.inf
        ends_N1 = torch.from_numpy(at_limit_N).to(device)[:, None]
        id_N1 = torch.where(ends_N1, eos_id, id_N1)
        log_prob_N1 = own_NV.gather(1, id_N1).double() - log_total_N1.double()
        picked_N2 = torch.cat([id_N1.double(), log_prob_N1.where(is_left_N1 | ends_N1, -math.inf)], dim=1)
        array_N2 = picked_N2.cpu().numpy()  # one array, because every transfer waits for the device
        id_N = array_N2[:, 0].astype(np.int64)
        log_prob_N = log_prob_N + np.where(np.isnan(array_N2[:, 1]), -np.inf, np.minimum(array_N2[:, 1], 0.0))
        running_N &= log_prob_N > -np.inf
        for row in np.flatnonzero(running_N & (id_N == eos_id)).tolist():
            log_prob = float(log_prob_N[row])
            b, number = divmod(row, num_samples)
            found[sentence_B[b]][number] = Hypothesis(paths.ids(row, length - 1), log_prob, log_prob)
        running_N &= id_N != eos_id
        # Samples that have ended wait for the last one of their sentence.
        go_on = going_on(np.asarray(running_N.reshape(-1, num_samples).any(axis=1)))
        if not len(go_on):
            break
        row_N = (go_on[:, None] * num_samples + np.arange(num_samples)).reshape(-1)
        if len(go_on) < len(sentence_B):
            step.reorder(torch.from_numpy(row_N))
        id_N = id_N[row_N]
        paths.append(row_N, id_N)
        if rows is not None:
            rows.advance(row_N, id_N)
        token_N = torch.from_numpy(id_N).to(device)
        generators = [generators[row] for row in row_N.tolist()]
        sentence_B, longest_B = sentence_B[go_on], longest_B[go_on]
        log_prob_N, running_N = log_prob_N[row_N], running_N[row_N]
    return found


def _generator(seed: int, number: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=np.array([seed, number], dtype=np.uint64)))


def _draw(logits_NV: Tensor, uniform_N: Tensor, truncation: Truncation) -> Tensor:
    """id_N: where the cumulative probability of what is left passes `uniform`."""
    # Below the largest, so that a tiny temperature takes the others to minus infinity and none to plus.
    scaled_NV = (logits_NV - logits_NV.amax(-1, keepdim=True)) / truncation.temperature
    if not truncation.cuts:
        return _invert(scaled_NV.softmax(-1), uniform_N)
    num = scaled_NV.size(-1) if truncation.top_k is None else min(truncation.top_k, scaled_NV.size(-1))
    value_NC, id_NC = scaled_NV.topk(num, dim=-1)
    # Equals by id, so that the draw does not depend on how they were selected.
    id_NC, by_id = id_NC.sort(dim=-1)
    value_NC, by_value = value_NC.gather(1, by_id).sort(dim=-1, descending=True, stable=True)
    id_NC = id_NC.gather(1, by_value)
    prob_NC = value_NC.softmax(-1)
    if truncation.top_p is not None:
        before_NC = prob_NC.double().cumsum(-1) - prob_NC.double()
        prob_NC = prob_NC.masked_fill(before_NC >= truncation.top_p, 0.0)
    if truncation.min_p is not None:
        prob_NC = prob_NC.masked_fill(prob_NC < truncation.min_p * prob_NC[:, :1], 0.0)
    return id_NC.gather(1, _invert(prob_NC, uniform_N)[:, None])[:, 0]


def _invert(prob_NV: Tensor, uniform_N: Tensor) -> Tensor:
    cumulative_NV = prob_NV.double().cumsum(-1)
    total_N1 = cumulative_NV[:, -1:]
    place_N = torch.searchsorted(cumulative_NV, uniform_N[:, None] * total_N1, right=True)[:, 0]
    # Rounding may put the target at the total itself: then the last one with any probability.
    last_N = (cumulative_NV < total_N1).sum(-1)
    return torch.minimum(place_N, last_N)
