"""A translation checkpoint in use: scored by evaluate.py, a filter in translate.py."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headloom import build
from headloom.build_decoding import build_translator
from headloom.config import saved
from headloom.config.schema_data import DataConfig
from headloom.config.schema_decoding import DecodingConfig, ScoreConfig
from headloom.config.schema_use import EvaluateConfig, TranslateConfig
from headloom.config.strict import check_can_be_written
from headloom.data.files import open_parallel, written_beside
from headloom.decoding.translator import Translator
from headloom.errors import ConfigError, DataError
from headloom.models.seq2seq import Seq2Seq
from headloom.work.base import Trained
from headloom.work.translation_filter import PairScorer, TranslationPredictor

if TYPE_CHECKING:
    from headloom.data.text import TextPairs


def translator_of(
    trained: Trained, decoding: DecodingConfig, *, ensemble: Sequence[Trained] = (), with_alignments: bool = False
) -> Translator:
    """The search that `decoding` describes, over the model of a checkpoint, or over it and those of `ensemble`.

    Raises:
        ConfigError: a member of the ensemble is no translation model, or has other tokenizers.
    """
    states = trained.contents["tokenizers"]
    models = []
    for member in (trained, *ensemble):
        if not isinstance(member.model, Seq2Seq):
            raise ConfigError("ensemble holds a checkpoint that does not translate: remove it")
        if _fingerprints(member.contents["tokenizers"]) != _fingerprints(states):
            raise ConfigError(
                "ensemble holds a checkpoint with another tokenizer than checkpoint: give checkpoints of one tokenizer"
            )
        models.append(member.model)
    return build_translator(
        decoding,
        models,
        build.saved_tokenizers(states),
        max_source_length=min(member.config.data.max_length for member in (trained, *ensemble)),
        device=trained.device,
        autocast_dtype=trained.dtype,
        with_alignments=with_alignments,
    )


def _fingerprints(states: dict[str, Any]) -> list[str]:
    source, target = build.saved_tokenizers(states)
    return [source.fingerprint, target.fingerprint]


def translation_predictor(
    trained: Trained, config: TranslateConfig, ensemble: Sequence[Trained]
) -> TranslationPredictor | PairScorer:
    """What translate.py does with each line.

    Raises:
        ConfigError: the ensemble does not go together.
    """
    translator = translator_of(trained, config.decoding, ensemble=ensemble, with_alignments=config.alignments)
    return PairScorer(translator) if isinstance(config.decoding, ScoreConfig) else TranslationPredictor(translator)


def evaluate_translation(trained: Trained, config: EvaluateConfig, output: Path) -> dict[str, Any]:
    """Score on a split of the corpus or on two files; print the scores and write them with the texts.

    Writes evaluation.json, hypotheses.txt, source.txt and reference.txt to `output`.

    Raises:
        ConfigError, DataError: it cannot be scored; the message says why.
    """
    from headloom.data.batch import EvaluationBatches
    from headloom.data.token_store import tokenize_pairs

    # The folder of the training may be another machine's.
    kept = replace(trained.config.data, folder=config.data.folder or trained.config.data.folder)
    check_can_be_written("data.folder", kept.folder, folder=True)
    pairs, name = _pairs_to_score(config, kept)
    tokenizers = build.saved_tokenizers(trained.contents["tokenizers"])
    tokens = tokenize_pairs(
        pairs,
        *tokenizers,
        folder=kept.folder / "prepared",
        max_length=trained.config.data.max_length,
        truncate=True,
        description=name,
    )
    batches = EvaluationBatches(tokens, *tokenizers, max_tokens=trained.config.trainer.max_tokens)
    assert isinstance(trained.model, Seq2Seq)
    evaluation = build.build_task(trained.config.task).evaluate(
        trained.model,
        batches,
        translator_of(trained, config.decoding),
        device=trained.device,
        autocast_dtype=trained.dtype,
        description=name,
    )
    results = {
        "checkpoint": str(config.checkpoint),
        "step": trained.step,
        "data": name,
        "num_pairs": len(tokens),
        **{key: value for key, value in evaluation.metrics.items()},
        "signatures": dict(evaluation.signatures),
        "decoding": saved.to_plain(config.decoding),
    }
    texts = [tokens.text(row) for row in range(len(tokens))]
    output.mkdir(parents=True, exist_ok=True)
    _write_lines(output / "source.txt", [source for source, _ in texts])
    _write_lines(output / "reference.txt", [target for _, target in texts])
    _write_lines(output / "hypotheses.txt", evaluation.hypotheses)
    with written_beside(output / "evaluation.json") as partial:
        partial.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")
    for key, value in evaluation.metrics.items():
        signature = evaluation.signatures.get(key)
        sys.stdout.write(f"{key:<12}{value:>9.4f}" + (f"   {signature}" if signature else "") + "\n")
    sys.stdout.write(f"{len(tokens)} pairs of {name}; texts and evaluation.json in {output}\n")
    return results


def _pairs_to_score(config: EvaluateConfig, kept: DataConfig) -> tuple["TextPairs", str]:
    """The pairs and what to call them. `kept`: the corpus of the training, and where it is kept here."""
    if config.data.source is not None and config.data.target is not None:
        pairs = open_parallel(config.data.source, config.data.target, cache=kept.folder / "prepared")
        return pairs, pairs.name
    corpus = build.build_corpus(kept)
    split = config.data.name
    found = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}[split]
    if found is None:
        raise DataError(
            f"{corpus.name} has no test split: score data.split=valid, or two files with data.source= and data.target="
        )
    return found, f"{corpus.name} {split}"


def _write_lines(path: Path, lines: list[str]) -> None:
    with written_beside(path) as partial:
        partial.write_text("".join(line + "\n" for line in lines), encoding="utf-8", newline="\n")
