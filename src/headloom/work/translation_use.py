"""A translation checkpoint in use: scored by evaluate.py, a filter in translate.py."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headloom import build, metrics
from headloom.build_decoding import build_translator
from headloom.config import saved
from headloom.config.schema_data import DataConfig
from headloom.config.schema_decoding import DecodingConfig, ScoreConfig
from headloom.config.schema_use import EvaluateConfig, EvaluateDataConfig, TranslateConfig
from headloom.config.strict import check_can_be_written
from headloom.data.files import open_parallel
from headloom.decoding.translator import Translator
from headloom.errors import ConfigError, DataError
from headloom.models.seq2seq import Seq2Seq
from headloom.work.base import Trained
from headloom.work.translation_filter import PairScorer, TranslationPredictor
from headloom.work.translation_scores import Texts, add_scores, print_scores, require_comet, write_evaluation

if TYPE_CHECKING:
    from headloom.data.text import TextPairs


OF_ONE_MODEL = ("loss", "perplexity", "accuracy")
"""What is said of the true tokens; of an ensemble it would be that of its first member."""


def translator_of(
    trained: Trained, decoding: DecodingConfig, *, ensemble: Sequence[Trained] = (), with_alignments: bool = False
) -> Translator:
    """The search that `decoding` describes, over the model of a checkpoint, or over it and those of `ensemble`.

    Raises:
        ConfigError: a member of the ensemble is no translation model, or has other tokenizers.
    """
    states = trained.contents["tokenizers"]
    models = []
    for member in (trained, *ensemble) if trained.engine is None else ():
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
        engine=trained.engine,
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


def evaluate_translation(
    trained: Trained, config: EvaluateConfig, output: Path, ensemble: Sequence[Trained] = ()
) -> dict[str, Any]:
    """Score on a split of the corpus or on two files; print the scores and write them with the texts.

    With an `ensemble` it translates, and has no loss: that of one model is not that of all.

    Writes evaluation.json, hypotheses.txt, source.txt, reference.txt and by_source_length.png to `output`.

    Raises:
        ConfigError, DataError: it cannot be scored; the message says why.
    """
    from headloom.data.batch import EvaluationBatches
    from headloom.data.token_store import tokenize_pairs

    if config.comet is not None:
        require_comet()
    if config.data.path is not None:
        raise ConfigError(
            "data.path is for one text or labelled file; score a translation with data.source= and data.target="
        )
    kept = _kept(config.data, trained.config.data)
    pairs, name = _pairs_to_score(config.data, kept)
    tokenizers = build.saved_tokenizers(trained.contents["tokenizers"])
    tokens = tokenize_pairs(
        pairs,
        *tokenizers,
        folder=kept.folder / "prepared",
        max_length=trained.config.data.max_length,
        truncate=True,
        description=name,
    )
    assert trained.model is None or isinstance(trained.model, Seq2Seq)

    def batches(rows: np.ndarray | None = None) -> EvaluationBatches:
        return EvaluationBatches(tokens, *tokenizers, max_tokens=trained.config.trainer.max_tokens, rows=rows)

    task = build.build_task(trained.config.task)
    evaluation = task.evaluate(
        trained.model,
        batches(),
        translator_of(trained, config.decoding, ensemble=ensemble),
        device=trained.device,
        autocast_dtype=trained.dtype,
        description=name,
        scores=tuple(metrics.TRANSLATION_SCORES),
    )

    scores = {name: value for name, value in evaluation.metrics.items() if not ensemble or name not in OF_ONE_MODEL}

    def loss(rows: np.ndarray) -> float:
        assert isinstance(trained.model, Seq2Seq)
        some = task.evaluate(
            trained.model,
            batches(rows),
            None,
            device=trained.device,
            autocast_dtype=trained.dtype,
            description=f"{name}, by length",
        )
        return some.metrics["loss"]

    results: dict[str, Any] = {
        "checkpoint": str(config.checkpoint),
        "step": trained.step,
        **({"ensemble": list(map(str, config.ensemble))} if ensemble else {}),
        "data": name,
        "num_pairs": len(tokens),
        **scores,
        "signatures": dict(evaluation.signatures),
        "decoding": saved.to_plain(config.decoding),
    }
    sources, references = zip(*(tokens.text(row) for row in range(len(tokens))), strict=True)
    texts = Texts(evaluation.hypotheses, references, sources)
    has_loss = trained.model is not None and not ensemble
    add_scores(results, texts, longest=config.lengths, comet=config.comet, loss=loss if has_loss else None)
    write_evaluation(output, results, texts)
    print_scores(results, [*scores, *(["comet"] if config.comet is not None else [])])
    sys.stdout.write(f"{len(tokens)} pairs of {name}; texts and evaluation.json in {output}\n")
    return results


def fingerprint_to_score(data: EvaluateDataConfig, trained_on: DataConfig) -> str:
    """Equal for checkpoints that `data` has scored on the same pairs.

    Raises:
        DataError: these cannot be read, or the corpus has no such split.
    """
    return _pairs_to_score(data, _kept(data, trained_on))[0].fingerprint


def _kept(data: EvaluateDataConfig, trained_on: DataConfig) -> DataConfig:
    """The corpus where it is kept here: the folder of the training may be another machine's."""
    kept = replace(trained_on, folder=data.folder or trained_on.folder)
    check_can_be_written("data.folder", kept.folder, folder=True)
    return kept


def _pairs_to_score(data: EvaluateDataConfig, kept: DataConfig) -> tuple["TextPairs", str]:
    """The pairs and what to call them."""
    if data.source is not None and data.target is not None:
        pairs = open_parallel(data.source, data.target, cache=kept.folder / "prepared")
        return pairs, pairs.name
    corpus = build.build_corpus(kept)
    split = data.name
    found = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}[split]
    if found is None:
        raise DataError(
            f"{corpus.name} has no test split: score data.split=valid, or two files with data.source= and data.target="
        )
    return found, f"{corpus.name} {split}"
