"""The encoder with a head as a work: classification, regression and tagging of texts."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from headloom import build, build_labelled
from headloom.config.schema import TrainConfig
from headloom.data.labelled import TextsOnly, split_texts
from headloom.data.labelled_batch import LabelledBatch, LabelledBatches
from headloom.data.labelled_store import tokenize_rows
from headloom.data.tokenizer import tokenizer_from_state
from headloom.insight.samples import Sample, sample_rows
from headloom.models.classifier import Classifier
from headloom.nn.attention import recording_attention
from headloom.nn.evaluating import evaluating
from headloom.ranks import Ranks
from headloom.tasks.classification import Evaluation
from headloom.tasks.regression import RegressionEvaluation
from headloom.tasks.tagging import TaggingEvaluation
from headloom.work.warm_start import WarmStart

if TYPE_CHECKING:
    from headloom.insight.dashboard import Dashboard  # loads TensorBoard: not to use a checkpoint

MAPPED_TOKENS = (6, 24)
"""Fewest and most tokens of the text whose attention is drawn, where there is such a one."""
MAX_DRAWN_CLASSES = 60

SAMPLE_NAMES = ("text", "label", "prediction")

LabelledEvaluation = Evaluation | RegressionEvaluation | TaggingEvaluation


def fresh_model(config: TrainConfig, contents: Mapping[str, Any]) -> Classifier:
    """The model of a checkpoint, before its weights are loaded."""
    tokenizer = tokenizer_from_state(contents["tokenizers"]["source"])
    return build_labelled.build_classifier(config, tokenizer, contents["labels"])


class ClassificationWork:
    """See `work.base.Work`."""

    model: Classifier
    task: build_labelled.LabelledTask

    def __init__(self, config: TrainConfig, contents: Mapping[str, Any] | None, warm: WarmStart | None = None) -> None:
        self.config = config
        self.corpus = build_labelled.build_labelled_corpus(config.data)
        train = self.corpus.train
        prepared = config.data.folder / "prepared"
        if contents is None:
            self.tokenizer = (
                warm.tokenizer(config.tokenizer)
                if warm is not None
                else build.build_text_tokenizer(config.tokenizer, TextsOnly(train), prepared)
            )
            self.labels = build_labelled.find_targets(config, train, prepared)
        else:
            self.tokenizer = tokenizer_from_state(contents["tokenizers"]["source"])
            self.labels = contents["labels"]
        encoder = build_labelled.build_encoder(config, self.tokenizer, self.labels)
        self.train_tokens, self.valid_tokens = (
            tokenize_rows(rows, encoder, folder=prepared, description=f"{self.corpus.name} {name}")
            for name, rows in (("train", train), ("valid", self.corpus.valid))
        )
        trainer = config.trainer
        self.train_batches = LabelledBatches(
            self.train_tokens,
            encoder,
            max_tokens=trainer.max_tokens,
            seed=config.seed,
            pad_to_multiple=trainer.pad_to_multiple,
        )
        self.valid_batches = build_labelled.build_evaluation_batches(config, self.valid_tokens, encoder)
        self.sample_rows = sample_rows(len(self.valid_tokens))
        self.mapped_row = self._row_to_map()

    @property
    def corpus_fingerprint(self) -> str:
        return self.corpus.train.fingerprint

    @property
    def valid_fingerprint(self) -> str:
        return self.corpus.valid.fingerprint

    def summary(self) -> str:
        return (
            f"{self.corpus.name}: {len(self.train_tokens)} training rows, {len(self.valid_tokens)} validation rows; "
            f"vocabulary {self.tokenizer.vocab_size}; {described(self.labels)}"
        )

    def texts(self, batch: LabelledBatch) -> Sequence[str]:
        return [" => ".join(self.train_tokens.text(int(row))) for row in batch.rows]

    def saved(self) -> dict[str, Any]:
        return {"tokenizers": {"source": self.tokenizer.state(), "target": None}, "labels": self.labels}

    def build(self, device: torch.device, dtype: torch.dtype | None) -> None:
        self.device, self.dtype = device, dtype
        self.model = build_labelled.build_classifier(self.config, self.tokenizer, self.labels)
        self.model.to(device).train()
        self.task = build_labelled.build_labelled_task(self.config, self.labels)

    def validate(self, step: int, dashboard: "Dashboard", ranks: Ranks) -> Mapping[str, float]:
        evaluation = self.task.evaluate(
            self.model, self.valid_batches, device=self.device, autocast_dtype=self.dtype, description="validation"
        )
        told = predictions(evaluation, self.labels)
        samples = []
        for row in self.sample_rows:
            source, label = self.valid_tokens.text(row)
            samples.append(Sample(" | ".join(split_texts(source)), label, told[row]))
        dashboard.samples(step, samples, SAMPLE_NAMES)
        if isinstance(evaluation, Evaluation) and len(evaluation.scores) <= MAX_DRAWN_CLASSES:
            from headloom.insight.confusion import confusion_figure  # loads matplotlib: not to use a checkpoint

            dashboard.figure(step, "confusion", confusion_figure(evaluation.confusion, self.labels["names"]))
        self._draw_attention(step, dashboard)
        return evaluation.metrics

    def _draw_attention(self, step: int, dashboard: "Dashboard") -> None:
        from headloom.insight.attention_maps import attention_figures  # loads matplotlib: not to use a checkpoint

        ids = [int(i) for i in self.valid_tokens.source(self.mapped_row)]
        with evaluating(self.model), recording_attention(self.model) as weights:
            self.model(torch.tensor([ids], device=self.device), None)
        for tag, pixels in attention_figures(weights, source_pieces=self.tokenizer.pieces(ids), target_pieces=[]):
            dashboard.figure(step, tag, pixels)

    def _row_to_map(self) -> int:
        """The first sample of a readable length; the first one where there is none."""
        fewest, most = MAPPED_TOKENS
        readable = (row for row in self.sample_rows if fewest <= int(self.valid_tokens.source_lengths[row]) <= most)
        return next(readable, self.sample_rows[0])


def described(labels: Mapping[str, Any]) -> str:
    """The labels in a line."""
    if "names" not in labels:
        return f"values around {labels['centre']:.4g}, deviation {labels['spread']:.4g}"
    names, counts = labels["names"], labels["counts"]
    shown = ", ".join(f"{name} {count}" for name, count in list(zip(names, counts, strict=True))[:10])
    return f"{len(names)} labels: {shown}{', ...' if len(names) > 10 else ''}"


def predictions(evaluation: LabelledEvaluation, labels: Mapping[str, Any]) -> Sequence[str]:
    """What was predicted for each row, in words."""
    match evaluation:
        case Evaluation():
            names = labels["names"]
            return [f"{names[i]} ({p:.2f})" for i, p in zip(evaluation.predicted, evaluation.probability, strict=True)]
        case RegressionEvaluation():
            return [f"{value:.4g}" for value in evaluation.predicted]
        case TaggingEvaluation():
            return [" ".join(tags) for tags in evaluation.predicted]
