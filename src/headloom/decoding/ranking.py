"""How finished outputs are compared: probability, length and coverage of the source.

K hypotheses a sentence, S source length.
"""

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

SMALLEST_COVERAGE = 1e-10
"""A source token that no target token attends to counts as this, so that its logarithm is finite."""


class LengthPenalty(Enum):
    gnmt = "gnmt"  # ((5 + length) / 6) ** a: Wu et al. (2016), equation 14
    power = "power"  # length ** a


@dataclass(frozen=True)
class Ranking:
    """score = log P / divisor(length) + coverage_penalty * sum over the source of log(min(attention received, 1)).

    Wu et al. (2016), equation 14; `length` counts eos. With `length_penalty` 0
    the divisor is 1 and outputs are ranked by probability; since log P is
    negative, positive values favour long outputs and negative ones short. A
    positive `coverage_penalty` favours outputs that attend to the whole source.
    """

    length_penalty: float = 0.0
    form: LengthPenalty = LengthPenalty.gnmt
    coverage_penalty: float = 0.0

    def divisor(self, length: int | NDArray[np.int64]) -> NDArray[np.float64]:
        base = (5.0 + length) / 6.0 if self.form is LengthPenalty.gnmt else np.asarray(length, dtype=np.float64)
        return np.asarray(base**self.length_penalty)

    def bound(self, log_prob_B: NDArray[np.float64], length: int, longest_B: NDArray[np.int64]) -> NDArray[np.float64]:
        """The highest score that a hypothesis of `length` tokens can still reach.

        Its log-probability can only fall and is never positive, so the largest
        divisor to come is the bound: that of the longest output when the
        penalty is positive, that of an end in the next step when it is
        negative. What coverage takes away can shrink to nothing.
        """
        return log_prob_B / np.maximum(self.divisor(length + 1), self.divisor(longest_B))


BY_PROBABILITY = Ranking()


def coverage_sum(attention_NS: NDArray[np.float64], is_source_NS: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Wu et al. (2016), equation 14: the sum over source tokens of log(min(attention received, 1)), 0 or less."""
    covered_NS = np.log(np.clip(attention_NS, SMALLEST_COVERAGE, 1.0))
    return np.asarray(np.where(is_source_NS, covered_NS, 0.0).sum(axis=1))
