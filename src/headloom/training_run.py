"""One training run: its parts, put together from a configuration."""

import gc
import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from headloom.build_execution import prepare_execution
from headloom.build_training import build_engine, build_learning_rate, build_optimizer
from headloom.config import saved
from headloom.config.resuming import check_resumed
from headloom.config.schema import TrainConfig
from headloom.config.schema_training import AUTO, DEFAULT_MAX_TOKENS, Engine, OnDivergence, OnScaleCollapse
from headloom.errors import CheckpointError, ConfigError
from headloom.final_average import AVERAGE_PREFIX, FinalAverage
from headloom.insight.dashboard import Dashboard, NoDashboard
from headloom.insight.preflight import time_left
from headloom.insight.progress import StepProgress
from headloom.ranks import ALONE, Ranks
from headloom.run_start import check_same_configuration, report_start, resume_path
from headloom.training import guard
from headloom.training.averaging import WeightAverage
from headloom.training.checkpoint import check_sums, load_checkpoint, load_weights
from headloom.training.checkpoint_folder import CheckpointFolder
from headloom.training.compilation import num_graphs
from headloom.training.guard import Guard
from headloom.training.interrupt import noting_interrupts
from headloom.training.loop import Loop
from headloom.training.memory_probe import probe
from headloom.training.precision import autocast_dtype, choose_device
from headloom.training.random_state import restore_rank, seed_everything, seed_rank
from headloom.training.ranking import Ranking
from headloom.training.schedule import Plateau
from headloom.training.trainer import Trainer
from headloom.work.families import start_work
from headloom.work.warm_start import WarmStart

logger = logging.getLogger(__name__)

NUM_PROBED = 64
"""Batches among which the widest rows are looked for."""

COLLAPSES_TO = {
    OnScaleCollapse.stop: None,
    OnScaleCollapse.bfloat16: torch.bfloat16,
    OnScaleCollapse.float32: torch.float32,
}

ECHO_SECONDS = 3.0
"""In which torchrun passes a signal on that its ranks may have got already."""


class TrainingRun:
    """Everything a run needs, from a configuration; `run` trains."""

    def __init__(self, config: TrainConfig, run_dir: Path, ranks: Ranks = ALONE) -> None:
        self.config = config
        self.ranks = ranks
        check_same_configuration(config, ranks)
        self.run_dir = run_dir
        trainer = config.trainer
        self.checkpoints = CheckpointFolder(run_dir / "checkpoints", keep=trainer.keep_checkpoints)
        if config.resume == "never" and not self.checkpoints.is_empty():
            raise ConfigError(
                f"{run_dir} already holds checkpoints: go on with resume=auto, or choose another hydra.run.dir"
            )
        if trainer.num_threads is not None:
            torch.set_num_threads(trainer.num_threads)
        self.device = choose_device(trainer.device.name)
        self.dtype = autocast_dtype(trainer.precision.name, self.device)
        self.resumed_from = ranks.first_does(lambda: resume_path(config.resume, run_dir))
        self.contents = None if self.resumed_from is None else self._loaded(self.resumed_from)
        self.warm = None
        if self.contents is None and config.warm_start is not None:
            self.warm = WarmStart(config.warm_start)
        if self.contents is not None:
            if "optimizer" not in self.contents:
                raise CheckpointError(
                    f"{self.resumed_from} is an average of checkpoints, which nothing goes on from: resume from last.pt"
                )
            if config.trainer.max_tokens == AUTO:
                self._take_max_tokens(self.contents["config"]["trainer"]["max_tokens"])
            before = saved.to_plain(saved.from_plain(self.contents["config"]))  # with what was added since then
            check_resumed(before, saved.to_plain(self.config))
        elif config.trainer.max_tokens == AUTO:
            self._take_max_tokens(DEFAULT_MAX_TOKENS)
            if self.device.type == "cuda":
                self._take_max_tokens(self._measured_max_tokens())
        self._start_work()
        self._build()
        self.warm = None  # it holds a copy of the weights

    def _loaded(self, path: Path) -> dict[str, Any]:
        try:
            return self._read(path)
        except CheckpointError as error:
            if path != self.checkpoints.last or (other := self.checkpoints.beside_last()) is None:
                raise
            raise CheckpointError(f"{error}; the one before is resume={other}") from error

    def _read(self, path: Path) -> dict[str, Any]:
        if self.ranks.world_size == 1 or self.config.trainer.engine is Engine.ddp:
            return load_checkpoint(path)
        self.ranks.first_does(lambda: check_sums(path))
        return load_checkpoint(path, mapped=True)  # no rank holds more of it than its part

    def _take_max_tokens(self, number: int) -> None:
        self.config = replace(self.config, trainer=replace(self.config.trainer, max_tokens=number))

    def _measured_max_tokens(self) -> int:
        """What fits on the GPU: the fewest of all ranks. The model it is measured with is thrown away."""
        self._start_work()
        self._build()
        batches = [next(self.work.train_batches) for _ in range(NUM_PROBED)]
        found = probe(self.trainer, batches)
        del self.trainer, self.work, self.average
        gc.collect()
        torch.cuda.empty_cache()
        return -self.ranks.all_max(-found)

    def _start_work(self) -> None:
        with self.ranks.first_goes_first():
            self.work = start_work(self.config, self.contents, self.warm)
        if self.contents is not None and self.contents["corpus"] != self.work.corpus_fingerprint:
            raise CheckpointError(
                f"the training data is not that which {self.resumed_from} was trained on: "
                "put it back, or start a new run"
            )
        valid = self.work.valid_fingerprint
        if self.contents is not None and self.contents.get("valid", valid) != valid:
            logger.warning(
                "the validation data is not that which %s was validated on: its best score and later ones do not "
                "compare, so best.pt may not be the best",
                self.resumed_from,
            )
        logger.info("%s", self.work.summary())

    def _build(self) -> None:
        config, trainer = self.config, self.config.trainer
        seed_everything(config.seed)
        self.work.build(self.device, self.dtype)
        model = self.work.model
        if self.contents is not None:
            assert self.resumed_from is not None
            load_weights(model, self.contents["model"], path=self.resumed_from)
        if self.warm is not None:
            self.warm.fill(model, config)
        prepare_execution(model, trainer, device=self.device, dtype=self.dtype)
        self.num_graphs = num_graphs()
        engine = build_engine(trainer, model, device=self.device, ranks=self.ranks)
        self.average = None if trainer.average_decay is None else WeightAverage(model, decay=trainer.average_decay)
        self.learning_rate = build_learning_rate(config)
        self.trainer = Trainer(
            model,
            self.work.task,
            build_optimizer(config.optimizer, model, device=self.device),
            learning_rate=self.learning_rate,
            device=self.device,
            autocast_dtype=self.dtype,
            collapses_to=COLLAPSES_TO[trainer.on_scale_collapse],
            max_grad_norm=trainer.max_grad_norm,
            average=self.average,
            waits=trainer.on_divergence is OnDivergence.skip or self.device.type == "cpu" or not engine.can_look_again,
            engine=engine,
        )
        if self.ranks.rank > 0:
            seed_rank(config.seed, rank=self.ranks.rank, step=0)

    def run(self, *, stop_at: int | None = None) -> float:
        """Train; the best headline metric. See `headloom.run.train`.

        `stop_at`: a step after which the run is saved and left, to be resumed.
        """
        config, trainer = self.config, self.config.trainer
        first_step = 0 if self.contents is None else int(self.contents["step"])
        report_start(
            *(config, self.work.model, self.trainer.optimizer),
            device=self.device,
            dtype=self.dtype,
            averaged=self.average is not None,
            world_size=self.ranks.world_size,
        )
        loop = Loop(
            trainer=self.trainer,
            batches=self.work.train_batches,
            checkpoints=self.checkpoints,
            saved={
                "config": saved.to_plain(config),
                "corpus": self.work.corpus_fingerprint,
                "valid": self.work.valid_fingerprint,
                **self.work.saved(),
            },
            validate=self.validate,
            record=self._record,
            guard=Guard(
                self.trainer,
                guard.OnDivergence[trainer.on_divergence.name],
                spike_deviations=trainer.spike_deviations,
            ),
            describe=self.work.texts,
            restart_records=self._restart_records,
            progress=lambda step, loss, rate: progress.update(step, loss=loss, tokens_per_second=rate),
            max_steps=trainer.max_steps,
            accumulation=trainer.accumulation,
            log_every=trainer.log_every,
            evaluate_every=trainer.evaluate_every,
            save_every=trainer.save_every,
            ranking=Ranking(
                self.work.task.higher_is_better,
                keep=trainer.keep_best_checkpoints,
                patience=trainer.patience,
                min_steps=trainer.min_steps,
            ),
            plateau=self.learning_rate if isinstance(self.learning_rate, Plateau) else None,
            stop_at=stop_at,
        )
        if self.contents is not None:
            logger.info("going on from %s at step %d", self.resumed_from, first_step)
            loop.load_contents(self.contents)
            # Last of all, since building the parts drew numbers.
            restore_rank(self.contents, rank=self.ranks.rank, seed=config.seed)
            self.contents = None  # it holds a second copy of everything
            assert self.resumed_from is not None
            if self.resumed_from == self.checkpoints.last:
                loop.name_last()
            loop.take_best(self.resumed_from)
        average = FinalAverage(trainer.average_last, trainer.average_best, self.checkpoints, self.run_dir)
        if loop.is_finished and not self.ranks.first_does(average.is_missing):
            logger.info("already finished at step %d: raise %s to train on", first_step, loop.option_that_ended_it)
            return loop.ranking.headline
        if self.ranks.is_first:
            self.checkpoints.remove_partial()
        self.ranks.first_does(lambda: self.checkpoints.begin(self.resumed_from))
        with (
            ExitStack() as self.records,
            StepProgress(first_step=first_step, max_steps=trainer.max_steps) as progress,
            noting_interrupts(echo_seconds=ECHO_SECONDS if self.ranks.world_size > 1 else 0.0) as interrupt,
        ):
            self._restart_records(first_step)
            self.started: tuple[int, float] | None = (first_step, time.monotonic())
            try:
                headline = loop.run(interrupt)
            except torch.OutOfMemoryError as error:
                raise ConfigError(
                    f"step {self.trainer.step}: {self._what_does_not_fit()}: lower trainer.max_tokens="
                    f"{trainer.max_tokens} or the model's size, or set trainer.activation_checkpointing=full"
                ) from error
            if interrupt.signal is None and self.trainer.step != stop_at:
                self.ranks.first_does(average.write)
                if average.is_asked:
                    self._score_average(average.path)
        if interrupt.signal is not None:
            logger.info(
                "%s: stopped at step %d, saved in %s. Go on with resume=auto hydra.run.dir=%s",
                interrupt.signal.name,
                self.trainer.step,
                self.checkpoints.last,
                self.run_dir,
            )
            raise SystemExit(128 + interrupt.signal)
        return headline

    def _what_does_not_fit(self) -> str:
        if self.trainer.engine.can_try_again:
            return "not even one row of a batch fits in memory"
        return "a batch does not fit in memory, and trainer.engine=fsdp cannot take it in halves"

    def _restart_records(self, step: int) -> None:
        """Record what follows `step` updates; what was recorded of later ones is removed."""
        self.records.close()
        dashboard = Dashboard(self.run_dir, first_step=step) if self.ranks.is_first else NoDashboard()
        self.dashboard = self.records.enter_context(dashboard)

    def _record(self, step: int, values: Mapping[str, float]) -> None:
        self.dashboard.record(step, values)
        if self.num_graphs != (number := num_graphs()):
            self.num_graphs = number
            logger.info("compiled graphs: %d", number)
            if self.started is not None:
                self.started = step, time.monotonic()  # those to come take far less than the updates that compiled
        if self.started is not None and step > self.started[0]:
            first_step, started_at = self.started
            seconds = (time.monotonic() - started_at) / (step - first_step) * (self.config.trainer.max_steps - step)
            logger.info("about %s of training to go, validations not counted", time_left(seconds))
            self.started = None

    def _score_average(self, path: Path) -> None:
        """Score the mean of checkpoints in `path`, in place of the weights that were trained."""
        contents = self.trainer.engine.load(path)
        load_weights(self.work.model, contents["model"], path=path, part=self.trainer.engine.part)
        step, name = self.trainer.step, self.work.task.headline
        metrics = self._score(step)
        self.dashboard.record(step, {f"{AVERAGE_PREFIX}{metric}": value for metric, value in metrics.items()})
        steps = " ".join(map(str, contents["averaged_steps"]))
        logger.info("average of the checkpoints of steps %s: %s=%.4f: %s", steps, name, metrics[name], path)

    def validate(self, step: int) -> Mapping[str, float]:
        """Score the validation data, on the averaged weights where there are any."""
        with self.average.applied() if self.average is not None else nullcontext():
            return self._score(step)

    def _score(self, step: int) -> Mapping[str, float]:
        with self.trainer.engine.evaluating():
            return self.work.validate(step, self.dashboard, self.ranks)
