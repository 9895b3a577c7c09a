"""What a loop has counted so far: part of its checkpoint."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Interval:
    """Sums since the last record. They are part of a checkpoint, so that a resumed run records the same numbers.

    Those that the device computes stay there until `read`, so that no update waits for the one before.
    """

    loss: float | Tensor = 0.0
    nll: float | Tensor = 0.0
    num_correct: int | Tensor = 0
    num_targets: int = 0
    num_steps: int = 0
    data_wait_seconds: float = 0.0
    elapsed_seconds: float = 0.0
    means: dict[str, Any] = field(default_factory=dict)
    """Sum and count by name: see `StepReport.means`."""

    def read(self) -> tuple[float, float, int]:
        """loss, nll and num_correct as plain numbers."""
        self.means = {name: torch.as_tensor(pair).tolist() for name, pair in self.means.items()}
        self.loss, self.nll, self.num_correct = float(self.loss), float(self.nll), int(self.num_correct)
        return self.loss, self.nll, self.num_correct


@dataclass
class Best:
    """The best validation so far, its headline and loss. `num_worse` validations followed it."""

    headline: float | None = None
    loss: float | None = None
    step: int = 0
    num_worse: int = 0
