"""A checkpoint of the encoder with a head, scored by evaluate.py."""

import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from headloom import build_labelled
from headloom.config import schema_labelled
from headloom.config.schema_use import EvaluateConfig
from headloom.config.strict import check_can_be_written
from headloom.data.files import written_beside
from headloom.data.labelled_store import tokenize_rows
from headloom.data.tokenizer import tokenizer_from_state
from headloom.errors import ConfigError, DataError
from headloom.metrics import ClassScore
from headloom.models.classifier import Classifier
from headloom.tasks.classification import Evaluation
from headloom.tasks.regression import RegressionEvaluation
from headloom.tasks.tagging import TaggingEvaluation
from headloom.work.base import Trained
from headloom.work.baseline import baseline_scores, require_baseline
from headloom.work.classification import MAX_DRAWN_CLASSES, LabelledEvaluation
from headloom.work.results_file import write_results

if TYPE_CHECKING:
    from headloom.data.text import Corpus, TextPairs

SHOWN_SCORES = 50  # rows of the table on stdout; evaluation.json has all


def evaluate_classification(trained: Trained, config: EvaluateConfig, output: Path) -> dict[str, Any]:
    """Score on a split of the corpus or on a file; print the scores and write them with the predictions.

    Writes evaluation.json, predictions.tsv (for tagging predictions.conll) and, of classes, confusion.png to `output`.

    Raises:
        ConfigError, DataError: it cannot be scored; the message says why.
    """
    if config.data.source is not None:
        raise ConfigError("data.source and data.target are for translation; score a labelled file with data.path=")
    if config.baseline:
        require_baseline()
    # The folder of the training may be another machine's.
    kept = replace(trained.config.data, folder=config.data.folder or trained.config.data.folder)
    check_can_be_written("data.folder", kept.folder, folder=True)
    rows, name = _rows_to_score(config, kept)
    labels = trained.contents["labels"]
    tokenizer = tokenizer_from_state(trained.contents["tokenizers"]["source"])
    encoder = build_labelled.build_encoder(trained.config, tokenizer, labels)
    tokens = tokenize_rows(rows, encoder, folder=kept.folder / "prepared", description=name)
    batches = build_labelled.build_evaluation_batches(trained.config, tokens, encoder)
    assert isinstance(trained.model, Classifier)
    evaluation = build_labelled.build_labelled_task(trained.config, labels).evaluate(
        trained.model, batches, device=trained.device, autocast_dtype=trained.dtype, description=name
    )
    results: dict[str, Any] = {
        "checkpoint": str(config.checkpoint),
        "step": trained.step,
        "data": name,
        "num_rows": len(tokens),
        **evaluation.metrics,
    }
    output.mkdir(parents=True, exist_ok=True)
    texts = [tokens.text(row) for row in range(len(tokens))]
    _write_predictions(output, texts, evaluation, labels)
    if not isinstance(evaluation, RegressionEvaluation):
        results["scores"] = [vars(score) for score in evaluation.scores]
    if isinstance(evaluation, Evaluation):
        results["labels"] = labels["names"]
        results["confusion"] = evaluation.confusion.tolist()
    if config.baseline:
        corpus = build_labelled.build_labelled_corpus(kept)
        results["baseline"] = baseline_scores(trained.config, corpus.train, corpus.valid, rows)
    write_results(output / "evaluation.json", results)
    _print_scores(evaluation.metrics, results.get("baseline", {}))
    if not isinstance(evaluation, RegressionEvaluation) and evaluation.scores:
        sys.stdout.write(scores_table(evaluation.scores[:SHOWN_SCORES]))
    sys.stdout.write(f"{len(tokens)} rows of {name}; predictions and evaluation.json in {output}\n")
    return results


def _print_scores(scores: Mapping[str, float], baseline: Mapping[str, Any]) -> None:
    """Each score, and beside it that of the linear baseline where it has one."""
    if baseline:
        sys.stdout.write(f"{'':<12}{'model':>9}{'baseline':>11}   ({baseline['chosen']})\n")
    for key, value in scores.items():
        beside = f"{baseline[key]:>11.4f}" if key in baseline else ""
        sys.stdout.write(f"{key:<12}{value:>9.4f}{beside}\n")


def scores_table(scores: Sequence[ClassScore]) -> str:
    """Precision, recall and F1 of each class as lines of a table."""
    width = max(5, *(len(score.name) for score in scores))
    lines = [f"{'':<{width}}  precision     recall         f1       true  predicted"]
    lines += [
        f"{score.name:<{width}}{score.precision:>11.4f}{score.recall:>11.4f}{score.f1:>11.4f}"
        f"{score.num_gold:>11,}{score.num_predicted:>11,}"
        for score in scores
    ]
    return "".join(line + "\n" for line in lines)


def _rows_to_score(config: EvaluateConfig, kept: "schema_labelled.LabelledTextConfig | Any") -> tuple["TextPairs", str]:
    """The rows and what to call them. `kept`: the corpus of the training, and where it is kept here."""
    if config.data.path is not None:
        rows = build_labelled.open_as_trained(kept, config.data.path)
        return rows, rows.name
    corpus: Corpus = build_labelled.build_labelled_corpus(kept)
    split = config.data.name
    found = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}[split]
    if found is None:
        raise DataError(f"{corpus.name} has no test split: score data.split=valid, or a labelled file with data.path=")
    return found, f"{corpus.name} {split}"


def _write_predictions(
    output: Path, texts: Sequence[tuple[str, str]], evaluation: LabelledEvaluation, labels: Mapping[str, Any]
) -> None:
    match evaluation:
        case Evaluation():
            name = "predictions.tsv"
            lines = ["label\tprediction\tprobability\ttext"]
            for (text, label), i, p in zip(texts, evaluation.predicted, evaluation.probability, strict=True):
                lines.append(f"{label}\t{labels['names'][i]}\t{p:.6f}\t{text}")
            if len(labels["names"]) <= MAX_DRAWN_CLASSES:
                _write_picture(output / "confusion.png", evaluation.confusion, labels["names"])
        case RegressionEvaluation():
            name = "predictions.tsv"
            lines = ["label\tprediction\ttext"]
            lines += [
                f"{label}\t{value:.6g}\t{text}"
                for (text, label), value in zip(texts, evaluation.predicted, strict=True)
            ]
        case TaggingEvaluation():
            name = "predictions.conll"
            lines = []
            for (text, _), gold, tags in zip(texts, evaluation.gold, evaluation.predicted, strict=True):
                lines += ["\t".join(columns) for columns in zip(text.split(" "), gold, tags, strict=True)]
                lines.append("")
    with written_beside(output / name) as partial:
        partial.write_text("".join(line + "\n" for line in lines), encoding="utf-8", newline="\n")


def _write_picture(path: Path, confusion: np.ndarray, names: Sequence[str]) -> None:
    from headloom.insight.confusion import confusion_figure

    png = io.BytesIO()
    Image.fromarray(confusion_figure(confusion, names)).save(png, format="png")
    with written_beside(path) as partial:
        partial.write_bytes(png.getvalue())
