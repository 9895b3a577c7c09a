"""The training loop: steps, records, validations, checkpoints, and when to end."""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, Self

from headloom.training.checkpoint import CheckpointFolder
from headloom.training.interrupt import Interrupt
from headloom.training.random_state import random_state
from headloom.training.schedule import Plateau
from headloom.training.trainer import CountedBatch, StepReport, Trainer

logger = logging.getLogger(__name__)


class Batches(Protocol):
    """Endless training batches with a place that can be saved."""

    @property
    def epoch(self) -> int: ...

    def __next__(self) -> CountedBatch: ...

    def state(self) -> dict[str, int]: ...

    def load_state(self, state: Mapping[str, int]) -> None: ...


@dataclass
class Interval:
    """Sums since the last record. They are part of a checkpoint, so that a resumed run records the same numbers."""

    loss: float = 0.0
    nll: float = 0.0
    num_correct: int = 0
    num_targets: int = 0
    num_steps: int = 0
    data_wait_seconds: float = 0.0
    elapsed_seconds: float = 0.0


@dataclass
class Best:
    """The best validation so far, its headline and loss. `num_worse` validations followed it."""

    headline: float | None = None
    loss: float | None = None
    step: int = 0
    num_worse: int = 0


@dataclass
class Loop:
    """What happens around `Trainer.train_step`, until `max_steps`, an early end, or an interrupt.

    `validate` scores the model at a step and returns the metrics by name, the
    headline among them; it draws no random number, so that validating more or
    less often changes nothing else. `record` takes a step and values by name.
    `saved` are the parts of a checkpoint that do not change: configuration and tokenizers.
    """

    trainer: Trainer
    batches: Batches
    checkpoints: CheckpointFolder
    saved: Mapping[str, Any]
    validate: Callable[[int], Mapping[str, float]]
    record: Callable[[int, Mapping[str, float]], None]
    progress: Callable[[int, float, float], None]
    """Takes the step, the loss of the last update in nats per target, and target tokens per second."""
    max_steps: int
    accumulation: int
    log_every: int
    evaluate_every: int | None
    save_every: int | None
    patience: int | None
    min_steps: int = 0
    """Steps before which patience ends nothing; a validation from there on does."""
    plateau: Plateau | None = None
    """The schedule, where it depends on the validations: it hears of each one."""
    interval: Interval = field(default_factory=Interval)
    best: Best = field(default_factory=Best)
    saved_step: int | None = None
    """Step of the newest checkpoint."""

    def run(self, interrupt: Interrupt) -> float:
        """Train; the best headline reached.

        Raises:
            TrainingDiverged: a gradient became NaN or infinite; the last checkpoint is from before.
        """
        while not self.is_finished and interrupt.signal is None:
            started_at = time.perf_counter()
            batches = [next(self.batches) for _ in range(self.accumulation)]
            self.interval.data_wait_seconds += time.perf_counter() - started_at
            is_recorded = (self.trainer.step + 1) % self.log_every == 0 or self.trainer.step + 1 == self.max_steps
            report = self.trainer.train_step(batches, with_layers=is_recorded)
            if report.skipped:
                continue  # its sums are those of an overflow, and no part of any record
            self._add(report, time.perf_counter() - started_at)
            step = self.trainer.step
            if is_recorded:
                self._record(report)
            is_best = (self._is_due(self.evaluate_every, step) or step == self.max_steps) and self._validate()
            is_numbered = self._is_due(self.save_every, step)
            if is_numbered or is_best or self.is_finished:
                self._save(numbered=is_numbered, best=is_best)
        if interrupt.signal is not None and self.saved_step != self.trainer.step:
            self._save(numbered=False, best=False)
        name = self.trainer.task.headline
        if self._is_patience_out():
            logger.info("no better %s in %d validations: training ends", name, self.best.num_worse)
        if interrupt.signal is None and self.best.headline is not None:
            logger.info("best %s=%.4f at step %d: %s", name, self.best.headline, self.best.step, self.checkpoints.best)
        return self.headline

    @property
    def headline(self) -> float:
        """The best value of the headline metric so far; NaN before the first validation."""
        return math.nan if self.best.headline is None else self.best.headline

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left to train: all steps are made, or patience ran out."""
        return self.trainer.step >= self.max_steps or self._is_patience_out()

    def contents(self) -> dict[str, Any]:
        """A checkpoint of this moment."""
        return {
            **self.saved,
            **self.trainer.state(),
            "data": self.batches.state(),
            "random": random_state(),
            "interval": asdict(self.interval),
            "best": asdict(self.best),
            "plateau": None if self.plateau is None else self.plateau.state(),
        }

    def load_contents(self, contents: Mapping[str, Any]) -> Self:
        """Go on from a checkpoint; the weights are the caller's to load, and the random states, last of all."""
        self.trainer.load_state(contents)
        self.batches.load_state(contents["data"])
        self.interval = Interval(**contents["interval"])
        self.best = Best(**contents["best"])
        if self.plateau is not None and contents.get("plateau") is not None:
            self.plateau.load_state(contents["plateau"])
        self.saved_step = self.trainer.step
        return self

    def _save(self, *, numbered: bool, best: bool) -> None:
        self.checkpoints.save(self.contents, step=self.trainer.step, numbered=numbered, best=best)
        self.saved_step = self.trainer.step

    def _add(self, report: StepReport, elapsed_seconds: float) -> None:
        interval = self.interval
        interval.loss += report.loss.item()
        interval.nll += report.nll.item()
        interval.num_correct += int(report.num_correct.item())
        interval.num_targets += report.num_targets
        interval.num_steps += 1
        interval.elapsed_seconds += elapsed_seconds
        rate = interval.num_targets / interval.elapsed_seconds if interval.elapsed_seconds else 0.0
        self.progress(self.trainer.step, report.loss.item() / max(1, report.num_targets), rate)

    def _record(self, report: StepReport) -> None:
        interval = self.interval
        nll = interval.nll / interval.num_targets
        values = {
            "train/loss": interval.loss / interval.num_targets,
            "train/perplexity": math.exp(min(nll, 700.0)),
            "train/accuracy": interval.num_correct / interval.num_targets,
            "train/learning_rate": report.learning_rate,
            "train/gradient_norm": float(report.grad_norm),
            "train/tokens_per_second": interval.num_targets / interval.elapsed_seconds,
            "train/tokens_per_update": interval.num_targets / interval.num_steps,
            "train/data_wait_seconds": interval.data_wait_seconds,
            "train/epoch": self.batches.epoch,
        }
        if self.trainer.num_skipped:
            values["train/skipped_updates"] = self.trainer.num_skipped
        values |= {f"gradient_norm/{layer}": float(norm) for layer, norm in report.layer_grad_norms.items()}
        self.record(self.trainer.step, values)
        self.interval = Interval()

    def _validate(self) -> bool:
        """Validate and record; whether it is the best so far."""
        metrics = self.validate(self.trainer.step)
        self.record(self.trainer.step, {f"valid/{name}": value for name, value in metrics.items()})
        headline, loss = metrics[self.trainer.task.headline], metrics["loss"]
        is_better = self._is_better(headline, loss)
        if self.plateau is not None:
            self.plateau.validated(self.trainer.step, is_better=is_better)
        if is_better:
            self.best = Best(headline, loss, self.trainer.step)
            return True
        self.best.num_worse += 1
        return False

    def _is_better(self, headline: float, loss: float) -> bool:
        """Whether these beat the best so far. Among equal headlines, such as the first ones of 0, the loss decides."""
        if math.isnan(headline) or math.isnan(loss):
            return False
        if self.best.headline is None or self.best.loss is None:
            return True
        sign = 1 if self.trainer.task.higher_is_better else -1
        return (sign * headline, -loss) > (sign * self.best.headline, -self.best.loss)

    def _is_patience_out(self) -> bool:
        if self.patience is None or self.best.num_worse < self.patience:
            return False
        # Patience may have run out before: then the first validation from `min_steps` on still has its chance.
        step = self.trainer.step
        return not self.min_steps or (step >= self.min_steps and self._is_due(self.evaluate_every, step))

    @staticmethod
    def _is_due(every: int | None, step: int) -> bool:
        return every is not None and step % every == 0
