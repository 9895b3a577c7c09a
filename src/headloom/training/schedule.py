"""Learning rates as functions of the step: no state, nothing to checkpoint, but for `Plateau`.

Step 0 is the first update, so update number u is step u - 1. Every schedule
with a peak rises in a straight line through its warm-up, reaches the peak at
step `warmup_steps` - 1, and starts at the peak when there is no warm-up.
"""

import logging
import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, assert_never

logger = logging.getLogger(__name__)

LearningRate = Callable[[int], float]


class Shape(Enum):
    """How a rate falls from its peak to its end."""

    linear = "linear"
    cosine = "cosine"
    sqrt = "sqrt"  # 1 - sqrt(share): Hägele et al. (2024), section 3
    exponential = "exponential"  # by the same factor each step: Hu et al. (2024), section 4.2


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
    return _decaying(peak, warmup_steps, max_steps, final_share, Shape.cosine)


def linear(*, peak: float, warmup_steps: int, max_steps: int, final_share: float) -> LearningRate:
    """Warm-up, then a straight line from the peak to `final_share` of it at `max_steps`, which is then kept."""
    return _decaying(peak, warmup_steps, max_steps, final_share, Shape.linear)


def wsd(
    *, peak: float, warmup_steps: int, max_steps: int, decay_share: float, final_share: float, shape: Shape
) -> LearningRate:
    """Warm-up, the peak, and in the last `decay_share` of `max_steps` a decay to `final_share` of it, which is kept.

    Hu et al. (2024), "MiniCPM", section 4.2. Until the decay the rate does not
    depend on `max_steps`. A decay that would begin before the peak begins there.
    """
    return _decaying(peak, warmup_steps, max_steps, final_share, shape, last_steps=round(decay_share * max_steps))


def constant(*, peak: float, warmup_steps: int) -> LearningRate:
    """Warm-up, then the peak."""
    return lambda step: peak * min(1.0, (step + 1) / max(1, warmup_steps))


class Plateau:
    """Warm-up, then the peak, multiplied by `factor` after `patience` validations in a row that found nothing better.

    Validations during the warm-up do not count. The rate never falls below
    `final_share` of the peak. The one schedule with a state: the loop reports
    each validation and keeps the state in its checkpoints.
    """

    def __init__(self, *, peak: float, warmup_steps: int, factor: float, patience: int, final_share: float) -> None:
        self.factor = factor
        self.patience = patience
        self.final_share = final_share
        self.warmup_steps = warmup_steps
        self.num_worse = 0
        self.num_lowered = 0
        self._unlowered = constant(peak=peak, warmup_steps=warmup_steps)

    def __call__(self, step: int) -> float:
        return self._unlowered(step) * self._share()

    def _share(self) -> float:
        return max(self.final_share, self.factor**self.num_lowered)

    def validated(self, step: int, *, is_better: bool) -> None:
        """After `step` updates the model was validated, and was the best one so far or not."""
        if step < self.warmup_steps:
            return
        self.num_worse = 0 if is_better else self.num_worse + 1
        if self.num_worse < self.patience or self._share() <= self.final_share:
            return
        self.num_worse = 0
        self.num_lowered += 1
        logger.info(
            "step %d: %d validations without a better one, learning rate lowered to %.4g",
            step,
            self.patience,
            self(step),
        )

    def state(self) -> dict[str, int]:
        return {"num_worse": self.num_worse, "num_lowered": self.num_lowered}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.num_worse, self.num_lowered = state["num_worse"], state["num_lowered"]


def _decaying(
    peak: float, warmup_steps: int, max_steps: int, final_share: float, shape: Shape, last_steps: int | None = None
) -> LearningRate:
    """Warm-up, the peak, then the decay: over all that is left of `max_steps`, or over its `last_steps`.

    The decay is done at step `max_steps`, one past the last update: no update
    is spent on a rate of 0.
    """
    top = max(1, warmup_steps) - 1
    start = top if last_steps is None else max(top, max_steps - last_steps)

    def learning_rate(step: int) -> float:
        if step <= top:
            return peak * (step + 1) / (top + 1)
        done = min(1.0, max(0, step - start) / max(1, max_steps - start))
        return peak * _fallen(shape, done, final_share)

    return learning_rate


def _fallen(shape: Shape, done: float, final_share: float) -> float:
    """What is left of 1 on its way to `final_share` when the share `done` of the way is gone."""
    match shape:
        case Shape.linear:
            left = 1 - done
        case Shape.cosine:
            left = 0.5 * (1 + math.cos(math.pi * done))
        case Shape.sqrt:
            left = 1 - math.sqrt(done)
        case Shape.exponential:
            return final_share**done
        case _:
            assert_never(shape)
    return final_share + (1 - final_share) * left
