"""A language-model checkpoint in use: a text scored by evaluate.py, lines continued by translate.py."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headloom import build_language as build
from headloom.config import rules, schema_language
from headloom.config.schema_data import DataConfig
from headloom.config.schema_use import EvaluateConfig, TranslateConfig
from headloom.config.strict import check_can_be_written
from headloom.data.prepared import lines_folder
from headloom.data.running_text import RunningText, open_text
from headloom.data.text_store import tokenize_text
from headloom.errors import ConfigError, DataError
from headloom.models.lm import LanguageModel
from headloom.work.base import Trained
from headloom.work.language_modeling_filter import ContinuingPredictor
from headloom.work.results_file import write_results
from headloom.work.running_text import saved_tokenizer


def language_model_predictor(
    trained: Trained, config: TranslateConfig, ensemble: Sequence[Trained]
) -> ContinuingPredictor:
    """What continues each line, as `config.decoding` says.

    Raises:
        ConfigError: an option is one for translations.
    """
    if ensemble:
        raise rules.no_effect("ensemble", "a language model, which is searched alone")
    if config.alignments:
        raise rules.no_effect("alignments", "a language model, which has no source to align")
    assert isinstance(trained.model, LanguageModel)
    continuer = build.build_continuer(
        config.decoding,
        trained.model,
        saved_tokenizer(trained.contents),
        context_length=trained.config.data.max_length,
        device=trained.device,
        autocast_dtype=trained.dtype,
    )
    return ContinuingPredictor(continuer)


def evaluate_language_model(trained: Trained, config: EvaluateConfig, output: Path) -> dict[str, Any]:
    """Score on a split of the corpus or on a text; print the scores and write evaluation.json to `output`.

    Raises:
        ConfigError, DataError: it cannot be scored; the message says why.
    """
    if config.data.source is not None:
        raise ConfigError("data.source and data.target are for translation; score a text with data.path=")
    task = trained.config.task
    assert isinstance(task, schema_language.LanguageModelingConfig)
    # The folder of the training may be another machine's.
    kept = replace(trained.config.data, folder=config.data.folder or trained.config.data.folder)
    stride = config.data.stride or min(task.stride or kept.max_length, kept.max_length)
    if stride > kept.max_length:
        raise ConfigError(
            f"data.stride={stride} passes the window of the checkpoint, data.max_length={kept.max_length}: lower it"
        )
    check_can_be_written("data.folder", kept.folder, folder=True)
    text, name = text_to_score(config, kept)
    tokenizer = saved_tokenizer(trained.contents)
    tokens = tokenize_text(text, tokenizer, folder=kept.folder / "prepared", description=name)
    scored_by = replace(trained.config, task=replace(task, stride=stride))
    batches = build.build_evaluation_batches(scored_by, tokens, tokenizer)
    assert isinstance(trained.model, LanguageModel)
    metrics = build.build_language_task(trained.config.task).evaluate(
        trained.model, batches, device=trained.device, autocast_dtype=trained.dtype, description=name
    )
    results = {
        "checkpoint": str(config.checkpoint),
        "step": trained.step,
        "data": name,
        "num_tokens": len(tokens),
        "num_characters": tokens.num_characters,
        "num_documents": tokens.num_documents,
        "window": kept.max_length,
        "stride": stride,
        **metrics,
    }
    output.mkdir(parents=True, exist_ok=True)
    write_results(output / "evaluation.json", results)
    for key, value in metrics.items():
        sys.stdout.write(f"{key:<20}{value:>9.4f}\n")
    sys.stdout.write(f"{len(tokens):,} tokens of {name}; evaluation.json in {output}\n")
    return results


def text_to_score(config: EvaluateConfig, kept: DataConfig) -> tuple[RunningText, str]:
    """The text and what to call it. `kept`: the corpus of the training, and where it is kept here."""
    if config.data.path is not None:
        text = open_text(config.data.path, build.documents_of(kept), cache=lines_folder(kept.folder))
        return text, text.name
    corpus = build.build_text_corpus(kept)
    split = config.data.name
    found = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}[split]
    if found is None:
        raise DataError(f"{corpus.name} has no test split: score data.split=valid, or a text with data.path=")
    return found, f"{corpus.name} {split}"
