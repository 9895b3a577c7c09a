"""One update. Knows tasks and tensors; knows no model family and no configuration."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from headloom.errors import TrainingDiverged
from headloom.tasks.base import Task
from headloom.training.averaging import WeightAverage

MIN_LOSS_SCALE = 2.0**-13
"""Loss scale below which a float16 gradient that still overflows is not the scale's fault."""


class CountedBatch(Protocol):
    """What the trainer asks of a batch; the rest is between the data and the task."""

    @property
    def num_targets(self) -> int:
        """Targets that count in the loss."""
        ...

    def to(self, device: torch.device) -> "CountedBatch": ...


@dataclass
class StepReport:
    """What one update did.

    `loss` (what was minimised) and `nll` (not smoothed) are sums in nats over
    the `num_targets` of the update. `grad_norm` is the norm before clipping.
    `skipped`: nothing was updated, since float16 overflowed or no target counted.
    """

    loss: Tensor
    nll: Tensor
    num_correct: Tensor
    num_targets: int
    grad_norm: Tensor
    learning_rate: float
    skipped: bool = False
    layer_grad_norms: dict[str, Tensor] = field(default_factory=dict)


class Trainer:
    """A model, its optimizer and the number of updates made.

    `autocast_dtype` is the type of the matrix products, None for float32.
    `max_grad_norm` None leaves gradients as they are.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task[Any, Any],
        optimizer: torch.optim.Optimizer,
        *,
        learning_rate: Callable[[int], float],
        device: torch.device,
        autocast_dtype: torch.dtype | None = None,
        max_grad_norm: float | None = 1.0,
        average: WeightAverage | None = None,
    ) -> None:
        self.model = model
        self.task = task
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.device = device
        self.autocast_dtype = autocast_dtype
        self.max_grad_norm = max_grad_norm
        self.average = average
        self.step = 0
        self.num_skipped = 0
        # Only float16 needs loss scaling: bfloat16 has float32's range of exponents.
        self.scaler = torch.amp.GradScaler(device.type, enabled=autocast_dtype is torch.float16)

    def train_step(self, batches: Sequence[CountedBatch], *, with_layers: bool = False) -> StepReport:
        """One update from `batches`, exactly as if they were a single batch.

        `with_layers` asks for the gradient norm of each layer too. A skipped
        update leaves weights, schedule and step count as they were.

        Raises:
            TrainingDiverged: the gradient is not finite and no loss scaler is there to skip it, or none helps.
        """
        learning_rate = self.learning_rate(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate * group.get("rate_share", 1.0)

        num_targets = sum(batch.num_targets for batch in batches)
        report = StepReport(
            loss=torch.zeros((), dtype=torch.float64, device=self.device),
            nll=torch.zeros((), dtype=torch.float64, device=self.device),
            num_correct=torch.zeros((), dtype=torch.int64, device=self.device),
            num_targets=num_targets,
            grad_norm=torch.zeros((), device=self.device),
            learning_rate=learning_rate,
        )
        if num_targets == 0:
            return self._skipped(report)
        for batch in batches:
            if batch.num_targets == 0:
                continue
            with torch.autocast(self.device.type, self.autocast_dtype, enabled=self.autocast_dtype is not None):
                sums = self.task.loss_sum(self.model, batch.to(self.device))
            self.scaler.scale(sums.loss / num_targets).backward()  # type: ignore[no-untyped-call]
            report.loss += sums.loss.detach()
            report.nll += sums.nll
            report.num_correct += sums.num_correct

        self.scaler.unscale_(self.optimizer)  # so that clipping sees the true gradient
        if with_layers:
            report.layer_grad_norms = layer_grad_norms(self.model)
        report.grad_norm = self._clip()
        if not report.grad_norm.isfinite():
            if not self.scaler.is_enabled():
                raise self._diverged(report, "trainer.precision=float32")
            self.scaler.step(self.optimizer)  # float16 overflowed: updates nothing, and notes it for update()
            self.scaler.update()
            if self.scaler.get_scale() < MIN_LOSS_SCALE:
                raise self._diverged(report, "trainer.precision=bfloat16")
            return self._skipped(report)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update()
        self.step += 1
        return report

    def _skipped(self, report: StepReport) -> StepReport:
        self.optimizer.zero_grad(set_to_none=True)
        self.num_skipped += 1
        report.skipped = True
        return report

    def _diverged(self, report: StepReport, other_precision: str) -> TrainingDiverged:
        return TrainingDiverged(
            f"step {self.step}: loss {report.loss.item() / report.num_targets:.4g}, gradient norm "
            f"{report.grad_norm.item():.4g}. Lower optimizer.lr, lengthen schedule.warmup_steps, or set "
            f"{other_precision}"
        )

    def _clip(self) -> Tensor:
        """The norm of the whole gradient before it is clipped; a tied matrix counts once."""
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        max_norm = float("inf") if self.max_grad_norm is None else self.max_grad_norm
        return nn.utils.clip_grad_norm_(parameters, max_norm)

    def state(self) -> dict[str, Any]:
        """All that the next update depends on, but for data and random states."""
        return {
            "model": self.model.state_dict(),
            "average": None if self.average is None else self.average.state(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "step": self.step,
            "num_skipped": self.num_skipped,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`; the weights are the caller's to load.

        The moments of the optimizer are taken, its options (such as a weight
        decay) stay those of this trainer.
        """
        options = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(state["optimizer"])
        for group, own in zip(self.optimizer.param_groups, options, strict=True):
            group.update(own)
        if state["scaler"] and self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])
        if self.average is not None and state["average"] is not None:
            self.average.load_state(state["average"])
        self.step = state["step"]
        self.num_skipped = state["num_skipped"]


def layer_grad_norms(model: nn.Module) -> dict[str, Tensor]:
    """Gradient norm of each layer: "encoder.blocks.0" and so on; what is in no block goes by its module's name."""
    squares: dict[str, list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            parts = name.split(".")
            layer = ".".join(parts[:3] if "blocks" in parts else parts[:-1])
            squares.setdefault(layer, []).append(parameter.grad.norm())
    return {layer: torch.stack(norms).norm() for layer, norms in squares.items()}
