"""Masked language modelling: hidden tokens of a text, given those on both sides."""

from collections.abc import Mapping

import torch

from headloom.data.labelled_batch import LabelledBatch
from headloom.data.masking import MaskedEvaluationBatches
from headloom.models.masked import MaskedLanguageModel
from headloom.nn.loss import LossSum, sequence_loss
from headloom.ranks import ALONE, Ranks
from headloom.tasks.scoring import score_batches

HEADLINES = {"loss": False, "accuracy": True}
"""Metrics that can choose the best checkpoint, and whether higher is better."""


class MaskedLanguageModelingTask:
    """Cross-entropy of the hidden tokens: Devlin et al. (2019), section 3.1, task 1."""

    def __init__(self, *, headline: str) -> None:
        self.headline = headline
        self.higher_is_better = HEADLINES[headline]

    def loss_sum(self, model: MaskedLanguageModel, batch: LabelledBatch) -> LossSum:
        """Cross-entropy of what is to be predicted in `batch`; nothing else is projected to the vocabulary."""
        hidden_BSD = model(batch.token_BS, batch.allowed_BS)
        return sequence_loss(
            hidden_BSD, batch.target, model.output_weight, label_smoothing=0.0, num_targets=batch.num_targets
        )

    def evaluate(
        self,
        model: MaskedLanguageModel,
        batches: MaskedEvaluationBatches,
        *,
        device: torch.device,
        autocast_dtype: torch.dtype | None,
        description: str = "evaluation",
        ranks: Ranks = ALONE,
    ) -> Mapping[str, float]:
        """Score `model` on the hidden tokens of a text, which are the same each time.

        loss: nats a hidden token. perplexity: its exponential. accuracy: share
        of the hidden tokens that get the highest logit.

        The model is afterwards in the mode it was in, and no random number is
        drawn. Each of `ranks` scores its share, and all get the metrics of the whole.
        """
        totals = score_batches(
            self,
            model,
            batches,
            device=device,
            autocast_dtype=autocast_dtype,
            description=description,
            ranks=ranks,
        )
        return {"loss": totals.loss, "perplexity": totals.perplexity, "accuracy": totals.accuracy}
