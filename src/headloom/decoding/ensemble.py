"""Several step functions as one.

N rows, V vocabulary, S source length.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from headloom.decoding.search import StepFunction


class Ensemble:
    """The logarithm of the mean of the members' probabilities: a step function of models with one vocabulary."""

    def __init__(self, members: Sequence[StepFunction]) -> None:
        self.members = members

    def step(self, token_N: Tensor) -> Tensor:
        log_prob_MNV = torch.stack([member.step(token_N).log_softmax(-1) for member in self.members])
        return log_prob_MNV.logsumexp(0) - math.log(len(self.members))

    def reorder(self, index_N: Tensor) -> None:
        for member in self.members:
            member.reorder(index_N)


class Watched:
    """A step function with the attention that `weights` record: `search.AttendingStep`.

    `weights` holds, after each step, weights_BHTS of one attention module of
    each member, T hypotheses of each of B sentences; they are averaged over
    heads and members.
    """

    def __init__(self, step: StepFunction, weights: Sequence[dict[str, Tensor]]) -> None:
        self.inner = step
        self.weights = weights

    def step(self, token_N: Tensor) -> Tensor:
        return self.inner.step(token_N)

    def reorder(self, index_N: Tensor) -> None:
        self.inner.reorder(index_N)

    def attention_NS(self) -> Tensor:
        return torch.stack([recorded[""].mean(1).flatten(0, 1) for recorded in self.weights]).mean(0)
