"""The training loop: steps, records, validations, checkpoints, and when to end."""

import logging
import math
import signal as signals
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol, Self, assert_never

from headloom.errors import TrainingDiverged
from headloom.ranks import Ranks
from headloom.training.checkpoint import load_checkpoint, load_weights
from headloom.training.checkpoint_folder import CheckpointFolder
from headloom.training.diagnosis import explain
from headloom.training.engine import CountedBatch
from headloom.training.guard import MAX_ROLLBACKS, Guard, OnDivergence, Trouble
from headloom.training.interrupt import Interrupt
from headloom.training.interval import Interval
from headloom.training.random_state import random_state
from headloom.training.ranking import Ranking
from headloom.training.schedule import Plateau
from headloom.training.trainer import StepReport, Trainer

logger = logging.getLogger(__name__)


class Batches(Protocol):
    """Endless training batches with a place that can be saved."""

    @property
    def epoch(self) -> int: ...

    def __next__(self) -> CountedBatch: ...

    def skip(self) -> None:
        """Pass over a batch, which another rank takes, without making it."""
        ...

    def state(self) -> dict[str, int]: ...

    def load_state(self, state: Mapping[str, int]) -> None: ...


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
    """Takes the step, the loss last recorded (NaN before the first record), and tokens per second."""
    guard: Guard
    describe: Callable[[CountedBatch], Sequence[str]]
    """The texts of a batch, for a message."""
    restart_records: Callable[[int], None]
    """The run has gone back to a step: records of later ones were made by work that is thrown away."""
    max_steps: int
    accumulation: int
    log_every: int
    evaluate_every: int | None
    save_every: int | None
    ranking: Ranking
    plateau: Plateau | None = None
    """The schedule, where it depends on the validations: it hears of each one."""
    interval: Interval = field(default_factory=Interval)
    recorded_loss: float = math.nan
    saved_step: int | None = None
    """Step of the newest checkpoint, where that is what the run would go on from."""
    stop_at: int | None = None
    """Step after which the loop ends as if it were interrupted."""

    def run(self, interrupt: Interrupt) -> float:
        """Train; the best headline reached.

        Raises:
            TrainingDiverged: training went wrong, and `guard` says stop or knows no way on; the last checkpoint is
                from before.
        """
        while not (interrupted := self._is_interrupted(interrupt)) and not self.is_finished:
            started_at = time.perf_counter()
            batches = self._own_batches()
            self.interval.data_wait_seconds += time.perf_counter() - started_at
            step = self.trainer.step + 1
            is_recorded = step % self.log_every == 0 or step == self.max_steps
            is_validated = self._is_due(self.evaluate_every, step) or step == self.max_steps
            is_numbered = self._is_due(self.save_every, step)

            random = self.guard.before_update()
            report = self.trainer.train_step(batches, with_layers=is_recorded)
            self.guard.watch(step - 1, report, batches, random)
            # A refused update is no step: no later one would bring the step at which ranks look.
            trouble = self.guard.trouble(wait=is_recorded or is_validated or is_numbered or report.diverged)
            if trouble is None and (is_validated or is_numbered) and not report.skipped:
                trouble = self.guard.unfit_weights()
            if trouble is not None:
                self._meet(trouble)
                continue
            if report.skipped:
                continue  # its sums are those of an overflow, and no part of any record
            self._add(report, started_at, is_read=is_recorded)
            if is_recorded:
                self._record(report)
            is_best = is_validated and self._validate()
            is_ranked = is_validated and step in self.ranking.steps
            if is_numbered or is_best or is_ranked or self.is_finished:
                self._save(numbered=is_numbered, best=is_best)
        if interrupted and self.saved_step != self.trainer.step:
            trouble = self.guard.trouble(wait=True) or self.guard.unfit_weights()
            if trouble is not None:
                self._meet(trouble)
            self._save(numbered=False, best=False)
        name, best = self.trainer.task.headline, self.ranking.best
        if self._is_patience_out():
            logger.info("no better %s in %d validations: training ends", name, best.num_worse)
        if not interrupted and best.headline is not None:
            path = self.checkpoints.best  # a run that was resumed elsewhere may have left it there
            where = path if path.exists() else f"not in {path.parent}"
            logger.info("best %s=%.4f at step %d: %s", name, best.headline, best.step, where)
        return self.ranking.headline

    def _is_interrupted(self, interrupt: Interrupt) -> bool:
        """Whether any rank is asked to stop, or this is the step to stop at; all stop after the same update."""
        number = self.ranks.all_max(interrupt.signal or 0)
        if number:
            interrupt.signal = signals.Signals(number)
        return number > 0 or self.trainer.step == self.stop_at

    def _own_batches(self) -> list[CountedBatch]:
        """This rank's batches of the update: batch number i is that of rank i modulo their number.

        So the place in the data is the same on all of them, and does not depend on how many there are.
        """
        own = []
        for number in range(self.accumulation):
            if number % self.ranks.world_size == self.ranks.rank:
                own.append(next(self.batches))
            else:
                self.batches.skip()
        return own

    @property
    def ranks(self) -> Ranks:
        return self.trainer.engine.ranks

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left to train: all steps are made, or patience ran out."""
        return self.trainer.step >= self.max_steps or self._is_patience_out()

    @property
    def option_that_ended_it(self) -> str:
        """What a finished run is to be given more of; patience that is out ends it before any more steps."""
        return "trainer.patience" if self._is_patience_out() else "trainer.max_steps"

    def contents(self) -> dict[str, Any]:
        """A checkpoint of this moment, for the engine to save. All ranks call it together."""
        self.interval.read()
        random, *random_of_others = self.ranks.gathered(random_state())
        return {
            **self.saved,
            **self.trainer.state(),
            "data": self.batches.state(),
            "random": random,
            "random_of_others": random_of_others,
            "interval": asdict(self.interval),
            **self.ranking.state(),
            "plateau": None if self.plateau is None else self.plateau.state(),
            "guard": self.guard.state(),
        }

    def load_contents(self, contents: Mapping[str, Any]) -> Self:
        """Go on from a checkpoint; the weights are the caller's to load, and the random states, last of all."""
        self.trainer.load_state(contents)
        self.batches.load_state(contents["data"])
        if "guard" in contents:  # not so in the first checkpoints of format 1
            self.guard.load_state(contents["guard"])
        self._load_records(contents)
        return self

    def _load_records(self, contents: Mapping[str, Any]) -> None:
        self.interval = Interval(**contents["interval"])
        self.ranking.load_state(contents)
        if self.plateau is not None and contents.get("plateau") is not None:
            self.plateau.load_state(contents["plateau"])
        self.saved_step = self.trainer.step

    def name_last(self) -> None:
        """`last.pt`, which this loop goes on from, gets the names that a kill has kept it from."""
        step, best = self.trainer.step, self.ranking.best
        self.ranks.first_does(
            lambda: self.checkpoints.name_last(
                step=step,
                numbered=self._is_due(self.save_every, step),
                best=best.headline is not None and best.step == step,
                best_steps=self.ranking.steps,
            )
        )

    def take_best(self, resumed_from: Path) -> None:
        """The best checkpoint so far comes along from where the run goes on: no later one may beat it."""
        best = self.ranking.best
        if best.headline is not None:
            self.ranks.first_does(lambda: self.checkpoints.take_best(resumed_from, step=best.step))

    def _meet(self, trouble: Trouble) -> None:
        """Do what `guard.policy` says about an update that went wrong.

        Raises:
            TrainingDiverged: it says stop, or its way is at an end.
        """
        guard = self.guard
        match guard.policy:
            case OnDivergence.stop:
                self._stop(trouble)
            case OnDivergence.skip:
                if not (trouble.can_go_on and trouble.watched.report.skipped and guard.may_skip()):
                    self._stop(trouble)
                logger.warning("%s: skipped", explain(self.trainer, trouble, self.describe))
            case OnDivergence.rollback:
                before = self._from_before()
                if before is None or not trouble.can_go_on or guard.num_rollbacks >= MAX_ROLLBACKS:
                    self._stop(trouble)
                logger.warning(
                    "%s: back to %s, and on with the data that follows",
                    explain(self.trainer, trouble, self.describe),
                    before,
                )
                self._roll_back(before)
            case _:
                assert_never(guard.policy)

    def _from_before(self) -> Path | None:
        """The newest checkpoint from before what went wrong, None where there is none yet.

        Losses off their course are trouble only once there are several in a row: one may be saved among them.
        """

        def find() -> Path | None:
            paths = [path for path in (self.checkpoints.last, *reversed(self.checkpoints.numbered())) if path.exists()]
            on_course = (p for p in paths if not load_checkpoint(p, mapped=True).get("guard", {}).get("num_spiking"))
            return next(on_course, paths[0] if paths else None)

        return self.ranks.first_does(find)

    def _roll_back(self, before: Path) -> None:
        """Go back to a checkpoint, but not to its place in the data: the batches since are left out.

        Chowdhery et al. (2022), section 5.1, got over loss spikes so.
        """
        engine = self.trainer.engine
        self.ranks.first_does(lambda: self.checkpoints.begin(before))
        contents = engine.load(before)
        load_weights(self.trainer.model, contents["model"], path=before, part=engine.part)
        self.trainer.load_state(contents)
        self.guard.rolled_back(contents.get("guard", self.guard.state()))
        self._load_records(contents)
        self.take_best(before)
        self.saved_step = None  # the place in the data is a later one
        self.restart_records(self.trainer.step)

    def _stop(self, trouble: Trouble) -> NoReturn:
        before = self._from_before()
        kept = "there is no checkpoint yet" if before is None else f"{before} is from before"
        precision = "trainer.precision=float32" if self.trainer.autocast_dtype is not None else "another seed"
        others = [policy.name for policy in OnDivergence if policy not in (OnDivergence.stop, self.guard.policy)]
        raise TrainingDiverged(
            f"{explain(self.trainer, trouble, self.describe)}; {kept}. Lower optimizer.lr, lengthen "
            f"schedule.warmup_steps, set {precision}, or let trainer.on_divergence={' or '.join(others)} go on"
        )

    def _save(self, *, numbered: bool, best: bool) -> None:
        step = self.trainer.step
        self.trainer.engine.save(self.checkpoints.last, self.contents())
        self.ranks.first_does(
            lambda: self.checkpoints.name_last(step=step, numbered=numbered, best=best, best_steps=self.ranking.steps)
        )
        self.saved_step = self.trainer.step

    def _add(self, report: StepReport, started_at: float, *, is_read: bool) -> None:
        interval = self.interval
        interval.add(report)
        if is_read:
            interval.read()  # the device is done with all of the interval: its time is counted
        interval.elapsed_seconds += time.perf_counter() - started_at
        self.progress(self.trainer.step, self.recorded_loss, interval.tokens_per_second)

    def _record(self, report: StepReport) -> None:
        values = self.interval.values(report)
        self.recorded_loss = values["loss"]
        values["epoch"] = self.batches.epoch
        if self.trainer.num_skipped:
            values["skipped_updates"] = self.trainer.num_skipped
        layers = {f"gradient_norm/{layer}": float(norm) for layer, norm in report.layer_grad_norms.items()}
        self.record(self.trainer.step, {f"train/{name}": value for name, value in values.items()} | layers)
        self.interval = Interval()

    def _validate(self) -> bool:
        """Validate and record; whether it is the best so far."""
        step = self.trainer.step
        metrics = self.ranks.first_says(self.validate(step))
        self.record(step, {f"valid/{name}": value for name, value in metrics.items()})
        name = self.trainer.task.headline
        if math.isnan(metrics[name]):
            why = "" if name == "loss" else " (all values, or all answers, are alike?), as task.headline=loss would be"
            logger.warning("step %d: the validation is no best one: %s is not a number%s", step, name, why)
        is_best = self.ranking.add(step, metrics[name], metrics["loss"])
        if self.plateau is not None:
            self.plateau.validated(step, is_better=is_best)
        return is_best

    def _is_patience_out(self) -> bool:
        step = self.trainer.step
        return self.ranking.is_out_of_patience(step, is_validated=self._is_due(self.evaluate_every, step))

    @staticmethod
    def _is_due(every: int | None, step: int) -> bool:
        return every is not None and step % every == 0
