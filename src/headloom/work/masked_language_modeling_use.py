"""A checkpoint of masked language modelling in use: a text scored by evaluate.py."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from headloom import build_pretraining
from headloom.config.schema_use import EvaluateConfig
from headloom.config.strict import check_can_be_written
from headloom.data.text_store import tokenize_text
from headloom.errors import ConfigError
from headloom.models.masked import MaskedLanguageModel
from headloom.work.base import Trained
from headloom.work.language_modeling_use import text_to_score
from headloom.work.results_file import write_results
from headloom.work.running_text import saved_tokenizer


def evaluate_masked_language_model(trained: Trained, config: EvaluateConfig, output: Path) -> dict[str, Any]:
    """Score on a split of the corpus or on a text; print the scores and write evaluation.json to `output`.

    Raises:
        ConfigError, DataError: it cannot be scored; the message says why.
    """
    if config.data.source is not None:
        raise ConfigError("data.source and data.target are for translation; score a text with data.path=")
    # The folder of the training may be another machine's.
    kept = replace(trained.config.data, folder=config.data.folder or trained.config.data.folder)
    check_can_be_written("data.folder", kept.folder, folder=True)
    text, name = text_to_score(config, kept)
    tokenizer = saved_tokenizer(trained.contents)
    tokens = tokenize_text(text, tokenizer, folder=kept.folder / "prepared", description=name)
    assert isinstance(trained.model, MaskedLanguageModel)
    metrics = build_pretraining.build_masked_task(trained.config).evaluate(
        trained.model,
        build_pretraining.build_masked_evaluation(trained.config, tokens, tokenizer),
        device=trained.device,
        autocast_dtype=trained.dtype,
        description=name,
    )
    results = {
        "checkpoint": str(config.checkpoint),
        "step": trained.step,
        "data": name,
        "num_tokens": len(tokens),
        **metrics,
    }
    output.mkdir(parents=True, exist_ok=True)
    write_results(output / "evaluation.json", results)
    for key, value in metrics.items():
        sys.stdout.write(f"{key:<12}{value:>9.4f}\n")
    sys.stdout.write(f"{len(tokens):,} tokens of {name}; evaluation.json in {output}\n")
    return results
