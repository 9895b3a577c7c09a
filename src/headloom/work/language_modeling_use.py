"""A language-model checkpoint in use: a text scored by evaluate.py, lines continued by translate.py."""

import json
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
from headloom.data.files import written_beside
from headloom.data.running_text import RunningText
from headloom.data.text_store import tokenize_text
from headloom.errors import DataError
from headloom.models.lm import LanguageModel
from headloom.work.base import Trained
from headloom.work.language_modeling import saved_tokenizer
from headloom.work.language_modeling_filter import ContinuingPredictor


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
    """Score on a split of the corpus; print the scores and write evaluation.json to `output`.

    Raises:
        ConfigError, DataError: it cannot be scored; the message says why.
    """
    # The folder of the training may be another machine's.
    kept = replace(trained.config.data, folder=config.data.folder or trained.config.data.folder)
    check_can_be_written("data.folder", kept.folder, folder=True)
    text, name = _text_to_score(config, kept)
    tokenizer = saved_tokenizer(trained.contents)
    tokens = tokenize_text(text, tokenizer, folder=kept.folder / "prepared", description=name)
    batches = build.build_evaluation_batches(trained.config, tokens, tokenizer)
    assert isinstance(trained.model, LanguageModel)
    metrics = build.build_language_task(trained.config.task).evaluate(
        trained.model, batches, device=trained.device, autocast_dtype=trained.dtype, description=name
    )
    assert isinstance(trained.config.task, schema_language.LanguageModelingConfig)
    results = {
        "checkpoint": str(config.checkpoint),
        "step": trained.step,
        "data": name,
        "num_tokens": len(tokens),
        "num_characters": tokens.num_characters,
        "num_documents": tokens.num_documents,
        "window": kept.max_length,
        "stride": trained.config.task.stride or kept.max_length,
        **metrics,
    }
    output.mkdir(parents=True, exist_ok=True)
    with written_beside(output / "evaluation.json") as partial:
        partial.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")
    for key, value in metrics.items():
        sys.stdout.write(f"{key:<20}{value:>9.4f}\n")
    sys.stdout.write(f"{len(tokens):,} tokens of {name}; evaluation.json in {output}\n")
    return results


def _text_to_score(config: EvaluateConfig, kept: DataConfig) -> tuple[RunningText, str]:
    """The text and what to call it. `kept`: the corpus of the training, and where it is kept here."""
    corpus = build.build_text_corpus(kept)
    split = config.data.name
    found = corpus.test if split == "test" else corpus.valid
    if found is None:
        raise DataError(f"{corpus.name} has no test split: score data.split=valid")
    return found, f"{corpus.name} {split}"
