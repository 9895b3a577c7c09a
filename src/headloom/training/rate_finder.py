"""A learning rate found by raising it: a fresh model is trained for a while, each update at a higher rate.

The "range test" of Smith (2017), "Cyclical learning rates for training neural
networks", section 3.3, with a rate that grows by the same factor each update.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from headloom.training.engine import CountedBatch
from headloom.training.interrupt import Interrupt
from headloom.training.schedule import LearningRate
from headloom.training.trainer import Trainer

SMOOTHING = 9
"""Updates that a smoothed loss spans; the middle one weighs most."""
DIVERGED_NATS = 1.0
"""So far above where it began, the loss has diverged, and no higher rate is tried."""
LEAST_FALL = 0.02
"""A loss that falls by a smaller share than this tells nothing."""
RAGGED = 0.03
"""A rise by this share of the fall so far ends the fall."""


@dataclass(frozen=True)
class RateCurve:
    """The loss in nats per target that each update found, and the rate of that update."""

    rates: list[float]
    losses: list[float]

    @property
    def smoothed(self) -> list[float]:
        """A weighted mean around each loss, of the losses that there are: no lag, so that it belongs to its rate."""
        if len(self.losses) < SMOOTHING:
            return list(self.losses)
        weights = np.bartlett(SMOOTHING + 2)[1:-1]
        losses = np.array(self.losses)
        means = np.convolve(losses, weights, mode="same") / np.convolve(np.ones_like(losses), weights, mode="same")
        return [float(mean) for mean in means]

    @property
    def steepest(self) -> float | None:
        """The rate at which the loss falls fastest; None where it does not fall."""
        lowest = self._lowest()
        return None if lowest is None else self.rates[int(np.gradient(self.smoothed)[: lowest + 1].argmin())]

    @property
    def lowest(self) -> float | None:
        """The rate at which the fall ends: higher ones undo what was learnt. None where the loss does not fall."""
        lowest = self._lowest()
        return None if lowest is None else self.rates[lowest]

    @property
    def suggestion(self) -> float | None:
        """A peak rate to begin with: half way, by factors, from the steepest place to the lowest one."""
        return None if self.steepest is None or self.lowest is None else math.sqrt(self.steepest * self.lowest)

    def _lowest(self) -> int | None:
        smoothed = self.smoothed
        if len(smoothed) < SMOOTHING:
            return None
        lowest = 0
        for index, loss in enumerate(smoothed):
            if loss < smoothed[lowest]:
                lowest = index
            fall = smoothed[0] - smoothed[lowest]
            if fall > LEAST_FALL * smoothed[0] and loss - smoothed[lowest] > RAGGED * fall:
                break
        return lowest if smoothed[0] - smoothed[lowest] > LEAST_FALL * smoothed[0] else None


def exponential(*, lowest: float, highest: float, num_updates: int) -> LearningRate:
    """From `lowest` at step 0 to `highest` at the last of `num_updates`, by the same factor each step."""
    return lambda step: lowest * (highest / lowest) ** (step / max(1, num_updates - 1))


def raise_rate(
    trainer: Trainer,
    batches: Iterator[list[CountedBatch]],
    *,
    num_updates: int,
    interrupt: Interrupt,
    progress: Callable[[int], None],
) -> RateCurve:
    """Make up to `num_updates` with `trainer`, at the rates of its schedule, until the loss diverges.

    `batches` gives those of one update at a time; `progress` takes the step.
    """
    curve = RateCurve([], [])
    while trainer.step < num_updates and interrupt.signal is None:
        report = trainer.train_step(next(batches))
        if report.diverged:
            break
        if report.skipped:
            continue  # float16 looks for its scale
        loss = report.loss.item() / report.num_targets
        if not math.isfinite(loss) or loss > (curve.losses or [loss])[0] + DIVERGED_NATS:
            break
        curve.rates.append(report.learning_rate)
        curve.losses.append(loss)
        progress(trainer.step)
    return curve
