"""Classification: one of some labels for a text, or for two.

Shapes: B batch, C classes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headloom import metrics
from headloom.bar import progress_bar
from headloom.data.labelled_batch import LabelledBatch, LabelledEvaluationBatches
from headloom.metrics import ClassScore
from headloom.models.classifier import Classifier
from headloom.nn.evaluating import evaluating_in
from headloom.nn.loss import LossSum

HEADLINES = {"accuracy": True, "macro_f1": True, "loss": False}
"""Metrics that can choose the best checkpoint, and whether higher is better."""


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found; rows in the order of the corpus.

    `metrics` has loss (nats a text, neither smoothed nor weighted), accuracy and macro_f1.
    """

    metrics: Mapping[str, float]
    scores: list[ClassScore]
    confusion: np.ndarray
    """How often each class (row) was taken for each (column)."""
    gold: np.ndarray
    predicted: np.ndarray
    probability: np.ndarray
    """Of the predicted class."""


class ClassificationTask:
    """Cross-entropy over the classes of `names`.

    `class_weights` multiply the loss of a text by the weight of its label; the
    sum is divided by the number of texts all the same, so weights that average
    1 over the training texts leave the learning rate what it was.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] | None = None,
        headline: str = "accuracy",
    ) -> None:
        assert class_weights is None or len(class_weights) == len(names)
        self.names = list(names)
        self.label_smoothing = label_smoothing
        self.class_weights = None if class_weights is None else torch.tensor(class_weights)
        self.headline = headline
        self.higher_is_better = HEADLINES[headline]

    def loss_sum(self, model: Classifier, batch: LabelledBatch) -> LossSum:
        """Smoothed and weighted cross-entropy of the labels of `batch`."""
        logits_BC = model(batch.token_BS, batch.allowed_BS)
        return label_loss(
            logits_BC, batch.target, label_smoothing=self.label_smoothing, class_weights=self.class_weights
        )

    def evaluate(
        self,
        model: Classifier,
        batches: LabelledEvaluationBatches,
        *,
        device: torch.device,
        autocast_dtype: torch.dtype | None,
        description: str = "evaluation",
    ) -> Evaluation:
        """Score `model` on every row of `batches`; no result depends on how they are batched.

        The model is afterwards in the mode it was in, and no random number is drawn.
        """
        num_rows = len(batches.tokens)
        gold = np.zeros(num_rows, np.int64)
        predicted = np.zeros(num_rows, np.int64)
        probability = np.zeros(num_rows, np.float64)
        nll = torch.zeros((), dtype=torch.float64, device=device)
        with evaluating_in(model, device, autocast_dtype):
            for batch in progress_bar(batches, desc=description, unit="batch", leave=False):
                log_p_BC = mean_log_probability(answers(model, batch.segmentations, device))
                nll -= log_p_BC.gather(-1, batch.target.to(device)[:, None]).sum()
                best_B = log_p_BC.max(-1)
                gold[batch.rows] = batch.target.numpy()
                predicted[batch.rows] = best_B.indices.cpu().numpy()
                probability[batch.rows] = best_B.values.exp().cpu().numpy()
        confusion = metrics.confusion_matrix(gold, predicted, num_classes=len(self.names))
        scores = metrics.class_scores(confusion, self.names)
        values = {
            "loss": nll.item() / num_rows,
            "accuracy": float((gold == predicted).mean()),
            "macro_f1": metrics.macro_f1(scores),
        }
        return Evaluation(values, scores, confusion, gold, predicted, probability)


def answers(model: Classifier, segmentations: Sequence[tuple[Tensor, Tensor | None]], device: torch.device) -> Tensor:
    """What `model` answers to some rows, once for each segmentation (token_BS and allowed_BS) of them; float64."""
    found = [
        model(token_BS.to(device), None if allowed_BS is None else allowed_BS.to(device))
        for token_BS, allowed_BS in segmentations
    ]
    return torch.stack([answer.double() for answer in found])


def mean_log_probability(logits_KBC: Tensor) -> Tensor:
    """log_p_BC, of the mean of the probabilities that K segmentations of a text give: Takase et al. (2022)."""
    return logits_KBC.log_softmax(-1).logsumexp(0) - math.log(len(logits_KBC))


def label_loss(logits_NC: Tensor, target_N: Tensor, *, label_smoothing: float, class_weights: Tensor | None) -> LossSum:
    """Cross-entropy as a sum over the targets, each times the weight of its class.

    With smoothing e the target distribution is (1 - e) on the label plus e / C
    on every class (Szegedy et al. 2016, section 7).
    """
    log_p_NC = logits_NC.log_softmax(-1)
    nll_N = F.nll_loss(log_p_NC, target_N, reduction="none")
    loss_N = nll_N
    if label_smoothing > 0:
        loss_N = (1 - label_smoothing) * nll_N - label_smoothing * log_p_NC.mean(-1)
    if class_weights is not None:
        loss_N = loss_N * class_weights.to(loss_N.device)[target_N]
    num_correct = (logits_NC.detach().argmax(-1) == target_N).sum()
    # With weights of classes the likelihood is not what is maximised, and guessing may have a better one.
    num_choices = logits_NC.size(-1) if class_weights is None else 0
    return LossSum(loss_N.sum(), nll_N.detach().sum(), num_correct, target_N.numel(), num_choices)


def balanced_weights(counts: Sequence[int]) -> list[float]:
    """Weights that give every class the same sum over the training texts, and average 1 over these."""
    total = sum(counts)
    return [total / (len(counts) * count) for count in counts]
