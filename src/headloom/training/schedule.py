"""Learning rates as functions of the step: no state, nothing to checkpoint.

Step 0 is the first update, so update number u is step u - 1. Every schedule
with a peak rises in a straight line through its warm-up, reaches the peak at
step `warmup_steps` - 1, and starts at the peak when there is no warm-up.
"""

import math
from collections.abc import Callable

LearningRate = Callable[[int], float]


def noam(*, d_model: int, warmup_steps: int, factor: float) -> LearningRate:
    """factor * d_model^-0.5 * min(u^-0.5, u * warmup_steps^-1.5): Vaswani et al. (2017), section 5.3, equation 3."""

    def learning_rate(step: int) -> float:
        update = step + 1
        return factor * d_model**-0.5 * min(update**-0.5, update * warmup_steps**-1.5)

    return learning_rate


def inverse_sqrt(*, peak: float, warmup_steps: int) -> LearningRate:
    """Warm-up, then decay as 1 / sqrt(u): the shape of `noam`, by its peak."""
    start = max(1, warmup_steps)

    def learning_rate(step: int) -> float:
        update = step + 1
        return peak * min(update / start, math.sqrt(start / update))

    return learning_rate


def cosine(*, peak: float, warmup_steps: int, max_steps: int, final_share: float) -> LearningRate:
    """Warm-up, then half a cosine from the peak to `final_share` of it at `max_steps`, which is then kept.

    Loshchilov and Hutter (2017), equation 5, without restarts.
    """
    return _decaying(peak, warmup_steps, max_steps, final_share, lambda share: 0.5 * (1 + math.cos(math.pi * share)))


def linear(*, peak: float, warmup_steps: int, max_steps: int, final_share: float) -> LearningRate:
    """Warm-up, then a straight line from the peak to `final_share` of it at `max_steps`, which is then kept."""
    return _decaying(peak, warmup_steps, max_steps, final_share, lambda share: 1 - share)


def constant(*, peak: float, warmup_steps: int) -> LearningRate:
    """Warm-up, then the peak."""
    return lambda step: peak * min(1.0, (step + 1) / max(1, warmup_steps))


def _decaying(
    peak: float, warmup_steps: int, max_steps: int, final_share: float, shape: Callable[[float], float]
) -> LearningRate:
    """`shape` goes from 1 to 0 as its argument, the share of the decay that is done, goes from 0 to 1.

    The share is 1 at step `max_steps`, one past the last update: no update is
    spent on a rate of 0.
    """
    top = max(1, warmup_steps) - 1

    def learning_rate(step: int) -> float:
        if step <= top:
            return peak * (step + 1) / (top + 1)
        share = min(1.0, (step - top) / max(1, max_steps - top))
        return peak * (final_share + (1 - final_share) * shape(share))

    return learning_rate
