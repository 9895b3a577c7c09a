"""One update. Knows tasks and tensors; knows no model family and no configuration."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headloom.nn.mixture import MEANS, MixtureOfExperts, router_loss
from headloom.tasks.base import FollowsSteps, Task
from headloom.training.averaging import WeightAverage
from headloom.training.engine import PROCESS_ALONE, CountedBatch, Engine

logger = logging.getLogger(__name__)

MIN_LOSS_SCALE = 2.0**-13
"""Loss scale below which a float16 gradient that still overflows is not the scale's fault."""


@dataclass
class StepReport:
    """What one update did.

    `loss` (what was minimised) and `nll` (not smoothed) are sums in nats over
    the `num_targets` of the update, each of which had `num_choices` values (0:
    it was no choice). `num_tokens` is what speed is counted in. `grad_norm` is
    the norm before clipping. All tensors stay on the device until somebody
    reads them.
    """

    loss: Tensor
    nll: Tensor
    num_correct: Tensor
    num_targets: int
    num_tokens: int
    grad_norm: Tensor
    learning_rate: float
    num_choices: int = 0
    skipped: bool = False
    """Nothing was updated: float16 overflowed, no target counted, or the gradient was not finite."""
    diverged: bool = False
    """The gradient was not finite, and no loss scaler is to blame; or the loss was over `Trainer.max_loss`. Known at
    once only to a trainer that `waits`."""
    layer_grad_norms: dict[str, Tensor] = field(default_factory=dict)
    means: dict[str, Tensor] = field(default_factory=dict)
    """Sum and count of what the model itself has to tell by name, such as the losses of its routers."""


class Trainer:
    """A model, its optimizer and the number of updates made.

    `autocast_dtype` is the type of the matrix products, None for float32.
    `max_grad_norm` None leaves gradients as they are. `collapses_to` is the
    type that takes float16's place when no loss scale is small enough for its
    gradients; None: such an update has diverged. `engine`: how several ranks
    make one update, whose report is the same on all of them.

    A gradient that is not finite changes no weight. With `waits` the trainer
    reads from the device, once an update, whether it is finite. Without, the
    optimizer skips the update on the device and the step is counted all the
    same; the host then never waits, and `StepReport.grad_norm` tells later.
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
        collapses_to: torch.dtype | None = None,
        max_grad_norm: float | None = 1.0,
        average: WeightAverage | None = None,
        waits: bool = True,
        engine: Engine = PROCESS_ALONE,
    ) -> None:
        self.model = model
        self.task = task
        self._follows_steps = task if isinstance(task, FollowsSteps) else None
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.device = device
        self.autocast_dtype = autocast_dtype
        self.collapses_to = collapses_to
        self.max_grad_norm = max_grad_norm
        self.average = average
        self.engine = engine
        self.mixtures = [module for module in model.modules() if isinstance(module, MixtureOfExperts)]
        self.step = 0
        self.num_skipped = 0
        self.num_halved = 0
        """Batches that did not fit in memory and were taken in halves."""
        self.splits = True
        """Whether such batches are taken in halves."""
        self.has_collapsed = False
        self.max_loss = math.inf
        """An update whose loss, in nats per target, is above this is refused. Finite only where the trainer waits."""
        # Only float16 needs loss scaling: bfloat16 has float32's range of exponents.
        self.scaler = torch.amp.GradScaler(device.type, enabled=autocast_dtype is torch.float16)
        # The rate of a float16 update depends on whether the one before was skipped.
        self.waits = waits or self.scaler.is_enabled() or not skips_on_device(optimizer)

    def train_step(self, batches: Sequence[CountedBatch], *, with_layers: bool = False) -> StepReport:
        """One update from the `batches` of all ranks, exactly as if they were a single batch.

        `with_layers` asks for the gradient norm of each layer too. A skipped
        update leaves weights, schedule and step count as they were.
        """
        if self._follows_steps is not None:
            self._follows_steps.at_step(self.step)
        learning_rate = self.learning_rate(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate * group.get("rate_share", 1.0)

        num_targets, num_tokens = self.engine.ranks.all_sums(
            sum(batch.num_targets for batch in batches), sum(batch.num_tokens for batch in batches)
        )
        report = self._empty_report(num_targets, num_tokens, learning_rate)
        if report.num_targets == 0:
            return self._skip(report)
        self._backward(batches, report)
        self.engine.ranks.add_up(report.loss, report.nll, report.num_correct, *report.means.values())
        self.scaler.unscale_(self.optimizer)  # so that clipping sees the true gradient
        if with_layers:
            report.layer_grad_norms = {
                layer: self.engine.together(norm) for layer, norm in layer_grad_norms(self.model).items()
            }
        report.grad_norm = self._clip()
        if not self.waits:
            self.optimizer.found_inf = (~report.grad_norm.isfinite()).float()  # type: ignore[attr-defined]
        elif not report.grad_norm.isfinite():
            return self._refuse(report)
        elif self.max_loss < math.inf and report.loss.item() > self.max_loss * report.num_targets:
            self.scaler.update()
            report.diverged = True
            return self._skip(report)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update()
        self.step += 1
        return report

    def _empty_report(self, num_targets: int, num_tokens: int, learning_rate: float) -> StepReport:
        return StepReport(
            loss=torch.zeros((), dtype=torch.float64, device=self.device),
            nll=torch.zeros((), dtype=torch.float64, device=self.device),
            num_correct=torch.zeros((), dtype=torch.int64, device=self.device),
            num_targets=num_targets,
            num_tokens=num_tokens,
            grad_norm=torch.zeros((), device=self.device),
            learning_rate=learning_rate,
            means={name: torch.zeros(2, dtype=torch.float64, device=self.device) for name in MEANS if self.mixtures},
        )

    def _backward(self, batches: Sequence[CountedBatch], report: StepReport) -> None:
        """Gradients and sums of `batches`; where one of any rank does not fit in memory, with its halves in its place.

        What a failed attempt has added is thrown away on all ranks: the sums stay exact. Random numbers it drew stay
        drawn.

        Raises:
            torch.OutOfMemoryError: memory does not even suffice for one row, or the engine has no second attempt.
        """
        pending = list(batches)
        while True:
            too_large = self._first_too_large(pending, report)
            if not (self.engine.can_try_again and self.engine.ranks.all_max(too_large is not None)):
                return
            if too_large is not None:
                self.num_halved += 1
                halves = [half for half in pending[too_large].halves() if half.num_targets > 0]
                pending[too_large : too_large + 1] = halves
            self.optimizer.zero_grad(set_to_none=True)
            for total in (report.loss, report.nll, report.num_correct, *report.means.values()):
                total.zero_()

    def _first_too_large(self, batches: Sequence[CountedBatch], report: StepReport) -> int | None:
        """Add the gradients and sums of `batches`; where memory does not suffice, the number of the batch."""
        with closing(self.engine.passes(batches)) as passes:
            for batch in passes:
                try:
                    self._add(batch, report)
                except torch.OutOfMemoryError:
                    if not (self.engine.can_try_again and self.splits and batch.halves()):
                        raise
                    break
            else:
                return None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.engine.give_up()
        return next(number for number, own in enumerate(batches) if own is batch)

    def _add(self, batch: CountedBatch, report: StepReport) -> None:
        with torch.autocast(self.device.type, self.autocast_dtype, enabled=self.autocast_dtype is not None):
            found = self.engine.compute(self._losses, batch.to(self.device))
        self.scaler.scale(found["loss"] / report.num_targets).backward()
        if batch.num_targets == 0:
            return  # it was computed for the sake of other ranks
        report.loss += found["loss"].detach()
        report.nll += found["nll"]
        report.num_correct += found["num_correct"]
        report.num_choices = found["num_choices"]
        for name, pair in found["means"].items():
            report.means[name] += pair

    def _losses(self, batch: CountedBatch) -> dict[str, Any]:
        """The fields of a LossSum, the losses of the routers added, and their `means`."""
        for mixture in self.mixtures:
            mixture.take()  # what a failed attempt, or recomputing a block, has left
        sums = self.task.loss_sum(self.model, batch)
        if not self.mixtures:
            return {**vars(sums), "means": {}}
        routing, means = router_loss(self.mixtures)
        return {**vars(sums), "loss": sums.loss + routing, "means": means}

    def _refuse(self, report: StepReport) -> StepReport:
        """The gradient is not finite: float16 overflowed and takes a smaller scale, or training has diverged."""
        if self.scaler.is_enabled():
            self.scaler.step(self.optimizer)  # updates nothing, and notes the overflow for update()
            self.scaler.update()
            report.diverged = self.scaler.get_scale() < MIN_LOSS_SCALE and not self._leave_float16()
        else:
            report.diverged = True
        return self._skip(report)

    def _skip(self, report: StepReport) -> StepReport:
        self.optimizer.zero_grad(set_to_none=True)
        self.num_skipped += 1
        report.skipped = True
        return report

    def _leave_float16(self) -> bool:
        """Go on in the type that takes float16's place; whether there is one."""
        if self.collapses_to is None:
            return False
        logger.warning(
            "step %d: gradients overflow float16 at every loss scale: going on in %s",
            self.step,
            str(self.collapses_to).removeprefix("torch."),
        )
        self.autocast_dtype = None if self.collapses_to is torch.float32 else self.collapses_to
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=False)
        self.has_collapsed = True
        return True

    def _clip(self) -> Tensor:
        """The norm of the whole gradient before it is clipped; a tied matrix counts once."""
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        max_norm = float("inf") if self.max_grad_norm is None else self.max_grad_norm
        return self.engine.together(nn.utils.clip_grad_norm_(parameters, max_norm))

    def state(self) -> dict[str, Any]:
        """All that the next update depends on, but for data and random states; tensors are as this rank keeps them."""
        own = self.model.state_dict(keep_vars=True)
        once = {id(tensor): tensor.detach() for tensor in own.values()}  # a tied one has two names
        return {
            "model": {name: once[id(tensor)] for name, tensor in own.items()},
            "average": None if self.average is None else self.average.state(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "step": self.step,
            "num_skipped": self.num_skipped,
            "has_collapsed": self.has_collapsed,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()` with whole tensors; the weights are the caller's to load, before.

        The moments of the optimizer are taken, its options (such as a weight
        decay) stay those of this trainer. An average that is not in the state
        begins with the weights.
        """
        options = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(self.engine.optimizer_part(state["optimizer"], self.optimizer))
        for group, own in zip(self.optimizer.param_groups, options, strict=True):
            group.update(own)
        if self.scaler.is_enabled() and not (state.get("has_collapsed") and self._leave_float16()) and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        if self.average is not None and state["average"] is None:
            self.average.begin()
        elif self.average is not None:
            own = dict(self.model.named_parameters())
            weights = {name: self.engine.part(w, own[name]) for name, w in state["average"]["weights"].items()}
            self.average.load_state({**state["average"], "weights": weights})
        self.step = state["step"]
        self.num_skipped = state["num_skipped"]


def skips_on_device(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step leaves everything as it is where `optimizer.found_inf` is 1: PyTorch's fused optimizers."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def layer_grad_norms(model: nn.Module) -> dict[str, Tensor]:
    """Gradient norm of each layer: "encoder.blocks.0" and so on; what is in no block goes by its module's name."""
    squares: dict[str, list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            parts = name.split(".")
            layer = ".".join(parts[:3] if "blocks" in parts else parts[:-1])
            squares.setdefault(layer, []).append(parameter.grad.norm())
    return {layer: torch.stack(norms).norm() for layer, norms in squares.items()}
