"""Tagging: a label for each word of a sentence, such as which words are names (BIO).

Shapes: B batch, S length of a row, N words, C tags.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from headloom import metrics
from headloom.bar import progress_bar
from headloom.data.labelled_batch import LabelledBatch, LabelledEvaluationBatches
from headloom.metrics import ClassScore
from headloom.models.classifier import Classifier
from headloom.nn.evaluating import evaluating_in
from headloom.nn.loss import IGNORE, LossSum
from headloom.tasks.classification import answers, label_loss

HEADLINES = {"f1": True, "accuracy": True, "loss": False}
"""Metrics that can choose the best checkpoint, and whether higher is better."""

OUTSIDE = "O"


def outside_of(names: Sequence[str]) -> str:
    """The tag of a word that is part of nothing: O, or the first of `names` where there is no O."""
    return OUTSIDE if OUTSIDE in names else names[0]


@dataclass(frozen=True)
class TaggingEvaluation:
    """What an evaluation found; sentences in the order of the corpus, and a tag for each of their words.

    `metrics` has loss (nats a word), accuracy (share of words whose tag is
    right) and, where the tags are BIO, precision, recall and f1 of entities. A
    word that was cut off with the end of its sentence counts as tagged O, or as
    the first tag where there is no O, and is no part of the loss.
    """

    metrics: Mapping[str, float]
    scores: list[ClassScore]
    """Of all entities, and of each kind; empty where the tags are not BIO."""
    gold: list[list[str]]
    predicted: list[list[str]]


class TaggingTask:
    """Cross-entropy over the tags of `names`, at the first piece of each word.

    The headline f1 is for tags in BIO (`metrics.not_bio`).
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] | None = None,
        headline: str = "f1",
    ) -> None:
        self.names = list(names)
        self.outside = outside_of(names)
        self.has_entities = metrics.not_bio(names) is None
        self.label_smoothing = label_smoothing
        self.class_weights = None if class_weights is None else torch.tensor(class_weights)
        self.headline = headline
        self.higher_is_better = HEADLINES[headline]

    def loss_sum(self, model: Classifier, batch: LabelledBatch) -> LossSum:
        """Smoothed and weighted cross-entropy of the tags of `batch`."""
        logits_BSC = model(batch.token_BS, batch.allowed_BS)
        has_tag_BS = batch.target != IGNORE
        return label_loss(
            logits_BSC[has_tag_BS],
            batch.target[has_tag_BS],
            label_smoothing=self.label_smoothing,
            class_weights=self.class_weights,
        )

    def evaluate(
        self,
        model: Classifier,
        batches: LabelledEvaluationBatches,
        *,
        device: torch.device,
        autocast_dtype: torch.dtype | None,
        description: str = "evaluation",
    ) -> TaggingEvaluation:
        """Score `model` on every sentence of `batches`; no result depends on how they are batched."""
        tokens = batches.tokens
        gold = [tokens.text(row)[1].split(" ") for row in range(len(tokens))]
        predicted: list[list[str]] = [[] for _ in gold]
        nll = torch.zeros((), dtype=torch.float64, device=device)
        num_targets = 0
        with evaluating_in(model, device, autocast_dtype):
            for batch in progress_bar(batches, desc=description, unit="batch", leave=False):
                has_tag_BS = batch.target != IGNORE
                [logits_BSC] = answers(model, batch.segmentations, device)
                logits_NC = logits_BSC[has_tag_BS.to(device)]
                target_N = batch.target[has_tag_BS].to(device)
                nll -= logits_NC.log_softmax(-1).gather(-1, target_N[:, None]).sum()
                num_targets += batch.num_targets
                found = iter(logits_NC.argmax(-1).tolist())
                for row, num_words in zip(batch.rows.tolist(), has_tag_BS.sum(-1).tolist(), strict=True):
                    predicted[row] = [self.names[next(found)] for _ in range(num_words)]
        for tags, wanted in zip(predicted, gold, strict=True):
            tags += [self.outside] * (len(wanted) - len(tags))
        return self._evaluation(gold, predicted, nll.item() / num_targets)

    def _evaluation(self, gold: list[list[str]], predicted: list[list[str]], loss: float) -> TaggingEvaluation:
        num_right = sum(
            a == b for wanted, tags in zip(gold, predicted, strict=True) for a, b in zip(wanted, tags, strict=True)
        )
        values = {"loss": loss, "accuracy": num_right / sum(map(len, gold))}
        scores = metrics.entity_scores(gold, predicted) if self.has_entities else []
        if scores:
            values |= {"precision": scores[0].precision, "recall": scores[0].recall, "f1": scores[0].f1}
        return TaggingEvaluation(values, scores, gold, predicted)
