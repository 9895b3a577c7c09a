"""Task by task: which work trains it, and how its checkpoints are used.

Modules are imported where they are used, so that a translation starts fast.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from headloom.build_stretched import stretch_config, stretch_model
from headloom.config import rules, saved, schema_labelled, schema_language, schema_pretraining, schema_text
from headloom.config.rules import no_effect
from headloom.config.schema import TrainConfig
from headloom.config.schema_decoding import as_trained, check_engine, differences, option_that_was_set
from headloom.config.schema_position import StretchConfig
from headloom.config.schema_use import EvaluateConfig, TranslateConfig
from headloom.decoding.lines import Predictor
from headloom.errors import CheckpointError, ConfigError
from headloom.nn.init import NothingDrawn
from headloom.nn.packing import hold_in_float16
from headloom.training.checkpoint import load_checkpoint, load_weights
from headloom.training.precision import choose_device, dtype_of_use
from headloom.work.base import Trained, Work
from headloom.work.warm_start import WarmStart

logger = logging.getLogger(__name__)

Use = TypeVar("Use", EvaluateConfig, TranslateConfig)


def start_work(config: TrainConfig, contents: Mapping[str, Any] | None, warm: WarmStart | None = None) -> Work:
    """The work that `config` describes; `contents` is the checkpoint of a run that goes on, `warm` one that a fresh run
    begins with."""
    match config.task:
        case schema_text.TranslationConfig():
            from headloom.work.translation import TranslationWork

            return TranslationWork(config, contents, warm)
        case schema_labelled.LabelTaskConfig() | schema_labelled.RegressionConfig():
            from headloom.work.classification import ClassificationWork

            return ClassificationWork(config, contents, warm)
        case schema_language.LanguageModelingConfig():
            from headloom.work.language_modeling import LanguageModelingWork

            return LanguageModelingWork(config, contents, warm)
        case schema_pretraining.MaskedLanguageModelingConfig():
            from headloom.work.masked_language_modeling import MaskedLanguageModelingWork

            return MaskedLanguageModelingWork(config, contents, warm)
        case schema_pretraining.EmbeddingConfig():
            from headloom.work.embedding import EmbeddingWork

            return EmbeddingWork(config, contents, warm)
        case _:
            raise AssertionError(config.task)


def load_trained(path: Path, *, device: str, precision: str, position: StretchConfig | None = None) -> Trained:
    """The model of a checkpoint, which needs no other file, with its positions changed as `position` says.

    Raises:
        CheckpointError: the file cannot be read or does not fit this version, or its weights are not finite or beyond
            the precision.
        ConfigError: the device or precision is not to be had here, or the positions cannot be changed so.
    """
    target = choose_device(device)
    contents = load_checkpoint(path, target)
    config = saved.from_plain(contents["config"])
    stretched = config if position is None else stretch_config(config, position)
    with NothingDrawn():  # every weight is overwritten
        model = fresh_model(config, contents)
    load_weights(model, contents.pop("model"), path=path)
    if contents["average"] is not None:
        model.load_state_dict(contents["average"]["weights"], strict=False)  # parameters; tied ones once
    for name, weight in model.named_parameters():
        if not torch.stack(weight.aminmax()).isfinite().all():  # a tenth of the time that asking each number takes
            raise CheckpointError(
                f"{path}: {name} holds numbers that are not finite; choose a checkpoint from before its training "
                "diverged"
            )
    if stretched is not config:
        stretch_model(model, stretched)
        config = stretched
    model.to(target).eval()
    dtype = dtype_of_use(precision, target)
    if dtype is torch.float16 and target.type == "cpu":
        try:
            hold_in_float16(model)
        except OverflowError as error:
            raise CheckpointError(f"{path}: {error}: use precision=float32") from error
    step = contents["step"]
    kept = {name: value for name, value in contents.items() if name not in ("average", "optimizer")}
    return Trained(config, model, kept, step, target, dtype)


def fresh_model(config: TrainConfig, contents: Mapping[str, Any]) -> nn.Module:
    """The model of a checkpoint, before its weights are loaded; `contents` holds its tokenizers and labels."""
    match config.task:
        case schema_text.TranslationConfig():
            from headloom.work import translation

            return translation.fresh_model(config, contents)
        case schema_labelled.LabelTaskConfig() | schema_labelled.RegressionConfig():
            from headloom.work import classification

            return classification.fresh_model(config, contents)
        case schema_language.LanguageModelingConfig():
            from headloom.work import language_modeling

            return language_modeling.fresh_model(config, contents)
        case schema_pretraining.MaskedLanguageModelingConfig():
            from headloom.work import masked_language_modeling

            return masked_language_modeling.fresh_model(config, contents)
        case schema_pretraining.EmbeddingConfig():
            from headloom.work import embedding

            return embedding.fresh_model(config, contents)
        case _:
            raise AssertionError(config.task)


def evaluate(
    trained: Trained, config: EvaluateConfig, output: Path, ensemble: Sequence[Trained] = ()
) -> dict[str, Any]:
    """Score a checkpoint, print the scores and write them with their texts to the folder `output`.

    `ensemble`: further checkpoints with which it translates.

    Raises:
        ConfigError: an option has no meaning for this task.
    """
    if config.data.stride is not None and not isinstance(trained.config.task, schema_language.LanguageModelingConfig):
        raise rules.no_effect(
            f"data.stride={config.data.stride}", f"task={trained.config.task.kind.name}, which reads no windows"
        )
    if config.baseline and isinstance(
        trained.config.task, schema_text.TranslationConfig | schema_language.LanguageModelingConfig
    ):
        raise no_effect("baseline=true", f"a checkpoint of task={trained.config.task.kind.name}")
    if not isinstance(trained.config.task, schema_text.TranslationConfig):
        _refuse_decoding(config, trained)
        for option in ("comet", "lengths"):
            if getattr(config, option) != getattr(EvaluateConfig(decoding=config.decoding), option):
                raise no_effect(option, f"a checkpoint of task={trained.config.task.kind.name}")
    match trained.config.task:
        case schema_text.TranslationConfig():
            from headloom.work.translation_use import evaluate_translation

            return evaluate_translation(trained, config, output, ensemble)
        case schema_labelled.LabelTaskConfig() | schema_labelled.RegressionConfig():
            from headloom.work.classification_use import evaluate_classification

            return evaluate_classification(trained, config, output)
        case schema_language.LanguageModelingConfig():
            from headloom.work.language_modeling_use import evaluate_language_model

            return evaluate_language_model(trained, config, output)
        case schema_pretraining.MaskedLanguageModelingConfig():
            from headloom.work.masked_language_modeling_use import evaluate_masked_language_model

            return evaluate_masked_language_model(trained, config, output)
        case schema_pretraining.EmbeddingConfig():
            from headloom.work.embedding_use import evaluate_embedding

            return evaluate_embedding(trained, config, output)
        case _:
            raise AssertionError(trained.config.task)


def predictor(trained: Trained, config: TranslateConfig, ensemble: Sequence[Trained]) -> Predictor[Any]:
    """What translate.py does with each line; `ensemble`: further checkpoints whose probabilities are averaged with it.

    Raises:
        ConfigError: an option has no meaning for this task, or the ensemble does not go together.
    """
    if config.normalize is not None and not isinstance(trained.config.task, schema_pretraining.EmbeddingConfig):
        raise rules.no_effect(f"normalize={str(config.normalize).lower()}", f"task={trained.config.task.kind.name}")
    if not isinstance(trained.config.task, schema_text.TranslationConfig | schema_language.LanguageModelingConfig):
        _refuse_decoding(config, trained)
    match trained.config.task:
        case schema_text.TranslationConfig():
            from headloom.work.translation_use import translation_predictor

            return translation_predictor(trained, config, ensemble)
        case schema_labelled.LabelTaskConfig() | schema_labelled.RegressionConfig():
            from headloom.work.classification_filter import label_predictor

            return label_predictor(trained, config, ensemble)
        case schema_language.LanguageModelingConfig():
            from headloom.work.language_modeling_use import language_model_predictor

            return language_model_predictor(trained, config, ensemble)
        case schema_pretraining.MaskedLanguageModelingConfig():
            raise ConfigError(
                "a checkpoint of task=masked_language_modeling has no answer for a line: train one that has, beginning "
                "with this one by warm_start="
            )
        case schema_pretraining.EmbeddingConfig():
            from headloom.work.embedding_use import vector_predictor

            return vector_predictor(trained, config, ensemble)
        case _:
            raise AssertionError(trained.config.task)


def decoding_as_trained(config: Use, trained: Trained, given: frozenset[str]) -> Use:
    """`config`, with options of `decoding` that were not `given` as in the training, where text is written.

    Raises:
        ConfigError: they do not go together with those that were given.
    """
    task = trained.config.task
    continues = isinstance(task, schema_language.LanguageModelingConfig) and isinstance(config, TranslateConfig)
    if not (continues or isinstance(task, schema_text.TranslationConfig)):
        _refuse_decoding(config, trained, given)
        return config
    decoding = as_trained(config.decoding, trained.config.decoding, given)
    if trained.engine is not None:
        check_engine(decoding)
    if decoding != config.decoding:
        logger.info("as in the training: %s", " ".join(differences(decoding, config.decoding)))
    return replace(config, decoding=decoding)


def _refuse_decoding(config: EvaluateConfig | TranslateConfig, trained: Trained, given: Collection[str] = ()) -> None:
    is_evaluated = isinstance(config, EvaluateConfig)
    reason = f"a checkpoint of task={trained.config.task.kind.name}, "
    reason += "whose evaluation writes no text" if is_evaluated else "which writes no text"
    named = sorted(name for name in given if name.partition(".")[0] == "decoding")
    for option in (option_that_was_set(config.decoding), *named):
        if option is not None:
            raise no_effect(option, reason)
    if config.ensemble and is_evaluated:
        raise no_effect("ensemble", reason)
