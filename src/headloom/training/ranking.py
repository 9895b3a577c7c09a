"""Which validation was the best, which few come next, and when there is no hope of a better one."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Best:
    """The best validation so far, its headline and loss. `num_worse` validations followed it."""

    headline: float | None = None
    loss: float | None = None
    step: int = 0
    num_worse: int = 0


@dataclass
class Ranking:
    """The validations of a run, as far as they matter later.

    `higher_is_better` says so of the headline; among equal headlines, such as a score's first ones of 0, the lower loss
    is better.
    """

    higher_is_better: bool
    keep: int = 0
    """Validations that are remembered by their merit."""
    patience: int | None = None
    """Validations in a row, without a better one, that end the training."""
    min_steps: int = 0
    """Steps before which patience ends nothing; a validation from there on does."""
    best: Best = field(default_factory=Best)
    kept: list[list[float]] = field(default_factory=list)
    """Headline, loss and step of the best `keep`, the best one first."""

    @property
    def headline(self) -> float:
        """The best one so far; NaN before the first validation."""
        return math.nan if self.best.headline is None else self.best.headline

    @property
    def steps(self) -> set[int]:
        """Steps of the validations that are remembered."""
        return {int(step) for _, _, step in self.kept}

    def add(self, step: int, headline: float, loss: float) -> bool:
        """Take note of a validation; whether it is the best one so far. One that is not a number never is."""
        if math.isnan(headline) or math.isnan(loss):
            self.best.num_worse += 1
            return False
        self.kept.append([headline, loss, step])
        self.kept = sorted(self.kept, key=lambda one: self._merit(*one[:2]), reverse=True)[: self.keep]
        best = self.best
        if (
            best.headline is None
            or best.loss is None
            or self._merit(headline, loss) > self._merit(best.headline, best.loss)
        ):
            self.best = Best(headline, loss, step)
            return True
        best.num_worse += 1
        return False

    def is_out_of_patience(self, step: int, *, is_validated: bool) -> bool:
        """Whether the training ends with `step`, which has a validation or not."""
        if self.patience is None or self.best.num_worse < self.patience:
            return False
        # Patience may have run out before: then the first validation from `min_steps` on still has its chance.
        return not self.min_steps or (step >= self.min_steps and is_validated)

    def state(self) -> dict[str, Any]:
        """Its part of a checkpoint."""
        return {"best": asdict(self.best), "ranking": self.kept}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.best = Best(**state["best"])
        self.kept = state.get("ranking", [])

    def _merit(self, headline: float, loss: float) -> tuple[float, float]:
        return (headline if self.higher_is_better else -headline), -loss
