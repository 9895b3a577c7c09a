"""What the entry points and the tests call: train, evaluate, translate.

Modules that only one of them needs are imported inside it, so that a
translation starts fast.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, assert_never

import torch

from headloom.config import saved
from headloom.config.schema import Check, TrainConfig
from headloom.config.schema_decoding import DecodingEngine
from headloom.config.schema_use import EvaluateConfig, TranslateConfig
from headloom.config.strict import check_can_be_written
from headloom.decoding.filter import filter_lines
from headloom.decoding.lines import Format, OnBadLine
from headloom.decoding.vectors import VECTOR_SUFFIX, write_vectors
from headloom.nn.packing import pack_weights
from headloom.ranks import ALONE, Ranks
from headloom.training.checkpoint import load_checkpoint
from headloom.training.memory import keep_freed_memory
from headloom.work import families
from headloom.work.base import Trained
from headloom.work.families import load_trained
from headloom.work.systems import evaluate_systems


def train(config: TrainConfig, run_dir: Path, ranks: Ranks = ALONE) -> float:
    """Train as `config` says, with everything the run leaves in `run_dir`; the best headline metric reached.

    Of several `ranks` each calls this with the same `config` and `run_dir`; rank 0 alone writes there.
    With `check` it trains nothing: see checks.py and resume_check.py. The result is then NaN.

    Raises:
        ConfigError, DataError, CheckpointError: the run cannot start or go on; the message says why.
        TrainingDiverged: see `Trainer.train_step`.
        RankLost: another rank ended, or does not answer.
        SystemExit: it was interrupted, after `last.pt` was written; the status is 128 + the signal's number.
    """
    from headloom.training_run import TrainingRun

    keep_freed_memory()
    match config.check:
        case Check.none:
            with ranks.watching():
                return TrainingRun(config, run_dir, ranks).run()
        case Check.lr:
            from headloom.checks import find_learning_rate

            find_learning_rate(config, run_dir)
            return math.nan
        case Check.resume:
            from headloom.resume_check import prove_resume

            prove_resume(config, run_dir)
            return math.nan
        case _:
            assert_never(config.check)


def evaluate(config: EvaluateConfig, given: frozenset[str] | None = None) -> dict[str, Any]:
    """Score a checkpoint; print the scores and write them, with the texts, to its `evaluation/` folder or `output`.

    With `compare` several of them, and with `hypothesis` files in their place: see work/systems.py. `given`: the
    options that were set, None for all; those of `decoding` that were not are as in the training of each checkpoint,
    so that the scores are those of its validations.

    Raises:
        ConfigError, DataError, CheckpointError: it cannot be scored; the message says why.
    """
    keep_freed_memory()
    output = config.output
    if output is None and config.checkpoint is not None:
        kind = "comparison" if config.compare else "evaluation"
        output = _run_dir(config.checkpoint) / kind / config.data.name
        check_can_be_written("output", output, folder=True)  # one that is named is checked with the other options

    data = config.data
    if config.source is not None:
        data = replace(data, source=config.source, target=config.reference)

    def score(path: Path, folder: Path) -> dict[str, Any]:
        one = replace(
            config,
            checkpoint=path,
            hypothesis=None,
            reference=None,
            source=None,
            compare=[],
            resamples=EvaluateConfig.resamples,
            seed=EvaluateConfig.seed,
            data=data,
        )
        trained = _load(config, path)
        if given is not None:
            one = families.decoding_as_trained(one, trained, given)
        return families.evaluate(trained, one, folder, [_load(config, more) for more in config.ensemble])

    def pairs_of(path: Path) -> str:
        from headloom.work.translation_use import fingerprint_to_score

        return fingerprint_to_score(data, _config_of(path).data)

    for path in config.compare:
        if path.is_dir():  # before another system is scored, which may take hours
            from headloom.export.use import check_exported

            check_exported(path, config)
    return evaluate_systems(
        config, output, score, task_of=lambda path: _config_of(path).task.kind.name, pairs_of=pairs_of
    )


def translate(config: TranslateConfig, given: frozenset[str] | None = None) -> None:
    """What the checkpoint makes of each line of a stream or file: one line out for each line in, in order.

    `given`: see `evaluate`.

    Raises:
        ConfigError, DataError, CheckpointError: the message says why; a file named by `output` is then as it was.
    """
    keep_freed_memory()
    trained, *ensemble = (_load(config, path) for path in (config.checkpoint, *config.ensemble))
    for member in (trained, *ensemble):
        if member.model is not None:
            pack_weights(member.model, member.dtype or torch.float32)  # for good: at a terminal every line is a batch
    if given is not None:
        config = families.decoding_as_trained(config, trained, given)
    predictor = families.predictor(trained, config, ensemble)
    if config.output.suffix == VECTOR_SUFFIX:
        write_vectors(
            predictor,
            source=config.input,
            target=config.output,
            line_format=Format[config.format.name],
            on_bad_line=OnBadLine[config.on_bad_line.name],
            buffer_lines=config.buffer_lines,
        )
        return
    filter_lines(
        predictor,
        source=config.input,
        target=config.output,
        line_format=Format[config.format.name],
        on_bad_line=OnBadLine[config.on_bad_line.name],
        buffer_lines=config.buffer_lines,
    )


def _load(config: EvaluateConfig | TranslateConfig, path: Path) -> Trained:
    if path.is_dir():
        from headloom.export.use import load_exported

        return load_exported(path, config)
    trained = load_trained(path, device=config.device.name, precision=config.precision.name, position=config.position)
    if config.decoding.engine is DecodingEngine.ctranslate2:
        from headloom.export.use import with_engine

        return with_engine(trained, path)
    return trained


def _config_of(path: Path) -> TrainConfig:
    if path.is_dir():
        from headloom.export.folder import read_description

        return read_description(path).config
    return saved.from_plain(load_checkpoint(path, mapped=True)["config"])


def _run_dir(checkpoint: Path) -> Path:
    """The run's folder of RUN/checkpoints/NAME.pt; the file's own folder where it lies elsewhere; an export itself."""
    if checkpoint.is_dir():
        return checkpoint
    folder = checkpoint.resolve().parent
    return folder.parent if folder.name == "checkpoints" else folder
