"""One training run: its parts, put together from a configuration, and what each validation looks at."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from headloom import build
from headloom.build_model import build_model
from headloom.config import saved
from headloom.config.resuming import check_resumed
from headloom.config.schema import TrainConfig
from headloom.data.batch import EvaluationBatches, TrainingBatches
from headloom.data.token_store import tokenize_pairs
from headloom.decoding.translator import evaluating
from headloom.errors import CheckpointError, ConfigError
from headloom.insight.attention_maps import attention_figures
from headloom.insight.dashboard import Dashboard
from headloom.insight.progress import StepProgress
from headloom.insight.samples import Sample, sample_rows
from headloom.nn.attention import recording_attention
from headloom.training.averaging import WeightAverage
from headloom.training.checkpoint import CheckpointFolder, load_checkpoint, load_weights
from headloom.training.interrupt import noting_interrupts
from headloom.training.loop import Loop
from headloom.training.precision import autocast_dtype, choose_device
from headloom.training.random_state import restore_random_state, seed_everything
from headloom.training.trainer import Trainer

logger = logging.getLogger(__name__)

MAPPED_TOKENS = (6, 24)
"""Fewest and most tokens a side of the sentence whose attention is drawn, where there is such a one."""


class TrainingRun:
    """Everything a run needs, from a configuration; `run` trains."""

    def __init__(self, config: TrainConfig, run_dir: Path) -> None:
        self.config = config
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
        self.resumed_from = _resume_path(config.resume, run_dir)
        self.contents = None if self.resumed_from is None else load_checkpoint(self.resumed_from)
        if self.contents is not None:
            check_resumed(self.contents["config"], saved.to_plain(config))
        self._prepare_data()
        self._build()

    def _prepare_data(self) -> None:
        config = self.config
        prepared = config.data.folder / "prepared"
        corpus = build.build_corpus(config.data)
        self.corpus_fingerprint = corpus.train.fingerprint
        if self.contents is not None and self.contents["corpus"] != self.corpus_fingerprint:
            raise CheckpointError(
                f"the training pairs of {corpus.name} are not those that {self.resumed_from} was trained on: "
                "put them back, or start a new run"
            )
        if self.contents is None:
            self.tokenizers = build.build_tokenizers(config.tokenizer, corpus.train, prepared)
        else:
            self.tokenizers = build.saved_tokenizers(self.contents["tokenizers"])
        source, target = self.tokenizers
        stores = [
            tokenize_pairs(
                pairs,
                source,
                target,
                folder=prepared,
                max_length=config.data.max_length,
                truncate=name != "train",
                description=f"{corpus.name} {name}",
            )
            for name, pairs in (("train", corpus.train), ("valid", corpus.valid))
        ]
        train_pairs, self.valid_pairs = stores
        max_tokens = config.trainer.max_tokens
        self.train_batches = TrainingBatches(
            train_pairs,
            source,
            target,
            max_tokens=max_tokens,
            seed=config.seed,
            pad_to_multiple=config.trainer.pad_to_multiple,
            sampling=source.sampling > 0 or target.sampling > 0,
        )
        self.valid_batches = EvaluationBatches(self.valid_pairs, source, target, max_tokens=max_tokens)
        logger.info(
            "%s: %d training pairs, %d validation pairs; vocabulary %s",
            corpus.name,
            len(train_pairs),
            len(self.valid_pairs),
            source.vocab_size if source is target else f"{source.vocab_size} and {target.vocab_size}",
        )

    def _build(self) -> None:
        config, trainer = self.config, self.config.trainer
        source, target = self.tokenizers
        seed_everything(config.seed)
        self.model = build_model(config, source_vocab_size=source.vocab_size, target_vocab_size=target.vocab_size)
        if self.contents is not None:
            assert self.resumed_from is not None
            load_weights(self.model, self.contents["model"], path=self.resumed_from)
        self.model.to(self.device).train()
        self.task = build.build_task(config.task)
        self.average = None if trainer.average_decay is None else WeightAverage(self.model, decay=trainer.average_decay)
        self.trainer = Trainer(
            self.model,
            self.task,
            build.build_optimizer(config.optimizer, self.model, device=self.device),
            learning_rate=build.build_learning_rate(config),
            device=self.device,
            autocast_dtype=self.dtype,
            max_grad_norm=trainer.max_grad_norm,
            average=self.average,
        )
        self.translator = build.build_translator(
            config.decoding,
            self.model,
            self.tokenizers,
            max_source_length=config.data.max_length,
            device=self.device,
            autocast_dtype=self.dtype,
        )
        self.sample_rows = sample_rows(len(self.valid_pairs))
        self.mapped_row = self._row_to_map()

    def run(self) -> float:
        """Train; the best headline metric. See `headloom.run.train`."""
        config, trainer = self.config, self.config.trainer
        first_step = 0 if self.contents is None else int(self.contents["step"])
        num_parameters = sum(parameter.numel() for parameter in self.model.parameters())
        logger.info(
            "%s parameters on %s (%s), %d threads, seed %d, at most %d tokens a batch and %d batches an update",
            f"{num_parameters:,}",
            self.device,
            "float32" if self.dtype is None else str(self.dtype).removeprefix("torch."),
            torch.get_num_threads(),
            config.seed,
            trainer.max_tokens,
            trainer.accumulation,
        )
        loop = Loop(
            trainer=self.trainer,
            batches=self.train_batches,
            checkpoints=self.checkpoints,
            saved={
                "config": saved.to_plain(config),
                "corpus": self.corpus_fingerprint,
                "tokenizers": self._tokenizer_states(),
            },
            validate=self.validate,
            record=lambda step, values: self.dashboard.record(step, values),
            progress=lambda step, loss, rate: progress.update(step, loss=loss, tokens_per_second=rate),
            max_steps=trainer.max_steps,
            accumulation=trainer.accumulation,
            log_every=trainer.log_every,
            evaluate_every=trainer.evaluate_every,
            save_every=trainer.save_every,
            patience=trainer.patience,
        )
        if self.contents is not None:
            logger.info("going on from %s at step %d", self.resumed_from, first_step)
            loop.load_contents(self.contents)
            # Last of all, since building the parts drew numbers.
            restore_random_state(self.contents["random"])
            self.contents = None  # it holds a second copy of everything
        if loop.is_finished:
            logger.info("already finished at step %d: raise trainer.max_steps to train on", first_step)
            return loop.headline
        self.checkpoints.remove_partial()
        with (
            Dashboard(self.run_dir, first_step=first_step) as self.dashboard,
            StepProgress(first_step=first_step, max_steps=trainer.max_steps) as progress,
            noting_interrupts() as interrupt,
        ):
            headline = loop.run(interrupt)
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

    def validate(self, step: int) -> Mapping[str, float]:
        """Score the validation set and show its samples and attention; no random number is drawn."""
        if self.average is None:
            return self._validate(step)
        with self.average.applied():
            return self._validate(step)

    def _validate(self, step: int) -> Mapping[str, float]:
        decodes = self.task.headline != "loss"
        evaluation = self.task.evaluate(
            self.model,
            self.valid_batches,
            self.translator if decodes else None,
            device=self.device,
            autocast_dtype=self.dtype,
            description="validation",
        )
        texts = [self.valid_pairs.text(row) for row in self.sample_rows]
        if decodes:
            translations = [evaluation.hypotheses[row] for row in self.sample_rows]
        else:
            translations = self.translator.translate([source for source, _ in texts])
        self.dashboard.samples(
            step, [Sample(source, target, out) for (source, target), out in zip(texts, translations, strict=True)]
        )
        self._draw_attention(step)
        return evaluation.metrics

    def _draw_attention(self, step: int) -> None:
        source, target = self.tokenizers
        source_ids = [int(i) for i in self.valid_pairs.source(self.mapped_row)]
        input_ids = [target.bos_id, *(int(i) for i in self.valid_pairs.target(self.mapped_row)[:-1])]
        with evaluating(self.model), recording_attention(self.model) as weights:
            self.model(
                torch.tensor([source_ids], device=self.device), None, torch.tensor([input_ids], device=self.device)
            )
        for tag, pixels in attention_figures(
            weights, source_pieces=source.pieces(source_ids), target_pieces=target.pieces(input_ids)
        ):
            self.dashboard.figure(step, tag, pixels)

    def _row_to_map(self) -> int:
        """The first sample of a readable length; the first one where there is none."""
        fewest, most = MAPPED_TOKENS
        for row in self.sample_rows:
            lengths = int(self.valid_pairs.source_lengths[row]), int(self.valid_pairs.target_lengths[row])
            if fewest <= min(lengths) and max(lengths) <= most:
                return row
        return self.sample_rows[0]

    def _tokenizer_states(self) -> dict[str, Any]:
        source, target = self.tokenizers
        return {"source": source.state(), "target": None if target is source else target.state()}


def _resume_path(resume: str, run_dir: Path) -> Path | None:
    """The checkpoint that `resume` names; None for a fresh run.

    Raises:
        CheckpointError: a path was given where no checkpoint is.
    """
    if resume == "never":
        return None
    if resume == "auto":
        last = run_dir / "checkpoints" / "last.pt"
        return last if last.exists() else None
    path = Path(resume).expanduser()
    if path.is_dir():
        path = path / "checkpoints" / "last.pt"
    if not path.exists():
        raise CheckpointError(f"resume={resume}: there is no {path}; give a checkpoint, a run's folder, auto or never")
    return path
