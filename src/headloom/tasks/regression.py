"""Regression: a number for a text, or for two, such as how alike they are.

Shapes: B batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from headloom import metrics
from headloom.bar import progress_bar
from headloom.data.labelled_batch import LabelledBatch, LabelledEvaluationBatches
from headloom.models.classifier import Classifier
from headloom.nn.evaluating import evaluating_in
from headloom.nn.loss import LossSum
from headloom.tasks.classification import answers

HEADLINES = {"pearson": True, "spearman": True, "loss": False}
"""Metrics that can choose the best checkpoint, and whether higher is better."""


@dataclass(frozen=True)
class RegressionEvaluation:
    """What an evaluation found; rows in the order of the corpus.

    `metrics` has loss (mean squared error over the variance of the training
    values), mse (in the values' own unit), pearson and spearman.
    """

    metrics: Mapping[str, float]
    gold: np.ndarray
    predicted: np.ndarray


class RegressionTask:
    """Squared error, in units of the deviation of the training values, so that a rate suits values of any size.

    The model's output is how many deviations `spread` a value lies above their mean `centre`.
    """

    def __init__(self, *, centre: float, spread: float, headline: str = "pearson") -> None:
        assert spread > 0
        self.centre = centre
        self.spread = spread
        self.headline = headline
        self.higher_is_better = HEADLINES[headline]

    def loss_sum(self, model: Classifier, batch: LabelledBatch) -> LossSum:
        """Squared error of the values of `batch`. No value is ever counted as correct."""
        output_B = model(batch.token_BS, batch.allowed_BS).squeeze(-1)
        loss = (output_B - (batch.target - self.centre) / self.spread).square().sum()
        return LossSum(loss, loss.detach(), torch.zeros((), dtype=torch.int64, device=loss.device), len(batch.rows))

    def evaluate(
        self,
        model: Classifier,
        batches: LabelledEvaluationBatches,
        *,
        device: torch.device,
        autocast_dtype: torch.dtype | None,
        description: str = "evaluation",
    ) -> RegressionEvaluation:
        """Score `model` on every row of `batches`; no result depends on how they are batched."""
        gold = np.zeros(len(batches.tokens), np.float64)
        predicted = np.zeros(len(batches.tokens), np.float64)
        with evaluating_in(model, device, autocast_dtype):
            for batch in progress_bar(batches, desc=description, unit="batch", leave=False):
                output_B = answers(model, batch.segmentations, device).mean(0).squeeze(-1).cpu().numpy()
                gold[batch.rows] = batch.target.numpy()
                predicted[batch.rows] = self.centre + self.spread * output_B
        mse = float(np.square(gold - predicted).mean())
        values = {
            "loss": mse / self.spread**2,
            "mse": mse,
            "pearson": metrics.pearson(gold, predicted),
            "spearman": metrics.spearman(gold, predicted),
        }
        return RegressionEvaluation(values, gold, predicted)
