"""What a loop has counted since its last record: part of its checkpoint."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headloom.training.trainer import StepReport


@dataclass
class Interval:
    """Sums since the last record. They are part of a checkpoint, so that a resumed run records the same numbers.

    Those that the device computes stay there until `read`, so that no update waits for the one before.
    """

    loss: float | Tensor = 0.0
    nll: float | Tensor = 0.0
    num_correct: int | Tensor = 0
    num_targets: int = 0
    num_tokens: int = 0
    num_steps: int = 0
    data_wait_seconds: float = 0.0
    elapsed_seconds: float = 0.0
    means: dict[str, Any] = field(default_factory=dict)
    """Sum and count by name: see `StepReport.means`."""

    def add(self, report: StepReport) -> None:
        """Take in an update."""
        self.loss += report.loss
        self.nll += report.nll
        self.num_correct += report.num_correct
        self.num_targets += report.num_targets
        self.num_tokens += report.num_tokens
        self.num_steps += 1
        for name, pair in report.means.items():
            self.means[name] = pair + torch.as_tensor(self.means.get(name, 0.0), device=pair.device)

    def read(self) -> None:
        """Make plain numbers of the sums; waits for the device."""
        self.means = {name: torch.as_tensor(pair).tolist() for name, pair in self.means.items()}
        self.loss, self.nll, self.num_correct = float(self.loss), float(self.nll), int(self.num_correct)

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.elapsed_seconds if self.elapsed_seconds else 0.0

    def values(self, newest: StepReport) -> dict[str, float]:
        """What is recorded of the updates since the last record, of which `newest` is the last one."""
        self.read()
        nll, accuracy = float(self.nll) / self.num_targets, int(self.num_correct) / self.num_targets
        values = {
            "loss": float(self.loss) / self.num_targets,
            # A target that is no choice, such as a number, has neither.
            **({"perplexity": math.exp(min(nll, 700.0))} if newest.num_choices else {}),
            **({"accuracy": accuracy} if newest.num_choices or self.num_correct else {}),
            "learning_rate": newest.learning_rate,
            "gradient_norm": float(newest.grad_norm),
            "tokens_per_second": self.tokens_per_second,
            "tokens_per_update": self.num_tokens / self.num_steps,
            "data_wait_seconds": self.data_wait_seconds,
        }
        return values | {name: total / max(count, 1) for name, (total, count) in self.means.items()}
