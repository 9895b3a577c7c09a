"""Language modelling: every token of a text, given those before it."""

import math
from collections.abc import Mapping

import torch

from headloom.data.text_batch import TextBatch, TextEvaluationBatches
from headloom.errors import ConfigError
from headloom.models.lm import LanguageModel
from headloom.nn.loss import LossSum, sequence_loss
from headloom.ranks import ALONE, Ranks
from headloom.tasks.scoring import score_batches

HEADLINES = {"loss": False, "bits_per_character": False, "accuracy": True}
"""Metrics that can choose the best checkpoint, and whether higher is better."""


class LanguageModelingTask:
    """Cross-entropy with label smoothing in training, without it in evaluation.

    Raises:
        ConfigError: `headline` is none of HEADLINES.
    """

    def __init__(self, *, label_smoothing: float, headline: str) -> None:
        if headline not in HEADLINES:
            raise ConfigError(f"task.headline ({headline}) must be one of {', '.join(HEADLINES)}")
        self.label_smoothing = label_smoothing
        self.headline = headline
        self.higher_is_better = HEADLINES[headline]

    def loss_sum(self, model: LanguageModel, batch: TextBatch) -> LossSum:
        """Smoothed cross-entropy of the targets of `batch`, each given the tokens before it in its row."""
        hidden_BTD = model(
            batch.input_BT, batch.stretch_BT, batch.position_BT, batch.real_BT() if model.routes_tokens else None
        )
        return sequence_loss(
            hidden_BTD,
            batch.target_BT,
            model.output_weight,
            label_smoothing=self.label_smoothing,
            num_targets=batch.num_targets,
        )

    def evaluate(
        self,
        model: LanguageModel,
        batches: TextEvaluationBatches,
        *,
        device: torch.device,
        autocast_dtype: torch.dtype | None,
        description: str = "evaluation",
        ranks: Ranks = ALONE,
    ) -> Mapping[str, float]:
        """Score `model` on a text, every token once; no result depends on how it is batched.

        loss: nats a token, eos of each document counted, never smoothed.
        perplexity: its exponential. bits_per_character, bits_per_byte: the same
        total over the characters and the UTF-8 bytes of the text, in bits, so
        that models with different tokenizers compare. accuracy: share of tokens
        that get the highest logit.

        The model is afterwards in the mode it was in, and no random number is
        drawn. `description` names the progress bar. Each of `ranks` scores its
        share, and all get the metrics of the whole.
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
        tokens = batches.tokens
        assert totals.num_targets == len(tokens), "windows score every target once"
        bits = totals.nll / math.log(2)
        return {
            "loss": totals.loss,
            "perplexity": totals.perplexity,
            "bits_per_character": bits / tokens.num_characters,
            "bits_per_byte": bits / tokens.num_bytes,
            "accuracy": totals.accuracy,
        }
