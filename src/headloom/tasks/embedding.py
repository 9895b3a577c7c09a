"""Sentence embedding: what belongs together lies in one direction, what does not in others.

Shapes: B batch, S length of a row, D model width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headloom import metrics
from headloom.data.sentence_batch import SentenceBatch, text_batches
from headloom.data.tokenizer_base import Tokenizer
from headloom.models.embedder import Embedder
from headloom.nn.evaluating import evaluating_in
from headloom.nn.loss import LossSum
from headloom.ranks import ALONE, Ranks
from headloom.tasks.scoring import CountedBatches, score_batches

HEADLINES = {"spearman": True, "loss": False}
"""Metrics that can choose the best checkpoint, and whether higher is better."""


@dataclass(frozen=True)
class LikenessRows:
    """Pairs of texts, and how alike people find them: semantic textual similarity."""

    first: Sequence[str]
    second: Sequence[str]
    likeness: np.ndarray


@dataclass(frozen=True)
class Encoding:
    """How texts become vectors."""

    tokenizer: Tokenizer
    max_length: int
    """Longest row in tokens, bos and eos counted; a longer text is cut."""
    max_tokens: int
    device: torch.device
    autocast_dtype: torch.dtype | None


class EmbeddingTask:
    """Contrastive learning with the other rows of a batch as negatives: SimCSE, Gao et al. (2021).

    Unsupervised (section 3, equation 4) a row is read twice, and dropout makes
    the two vectors differ; supervised (section 4, equation 5 without hard
    negatives) a row is read with what belongs to it.

    The loss is a sum over rows as everywhere, but what a row is told from are
    the rows of its batch: it depends on how rows are batched, and an update of
    two batches is not one of a batch twice as large.
    """

    def __init__(self, *, temperature: float, headline: str) -> None:
        self.temperature = temperature
        self.headline = headline
        self.higher_is_better = HEADLINES[headline]

    def loss_sum(self, model: Embedder, batch: SentenceBatch) -> LossSum:
        """Cross-entropy of finding, by cosine over the temperature, what belongs to each row among all of the batch."""
        first_BD, second_BD = self._vectors(model, batch)
        logits_BB = F.normalize(first_BD, dim=-1) @ F.normalize(second_BD, dim=-1).T / self.temperature
        own_B = torch.arange(logits_BB.size(0), device=logits_BB.device)
        loss = F.cross_entropy(logits_BB, own_B, reduction="sum")
        num_correct = (logits_BB.detach().argmax(-1) == own_B).sum()
        return LossSum(loss, loss.detach(), num_correct, batch.num_targets)

    def _vectors(self, model: Embedder, batch: SentenceBatch) -> tuple[Tensor, Tensor]:
        if batch.second_BS is not None:
            return model(batch.token_BS, batch.allowed_BS), model(batch.second_BS, batch.second_allowed_BS)
        # One pass of every row twice: what is dropped is drawn for each element on its own.
        allowed_BS = None if batch.allowed_BS is None else torch.cat([batch.allowed_BS] * 2)
        first_BD, second_BD = model(torch.cat([batch.token_BS] * 2), allowed_BS).chunk(2)
        return first_BD, second_BD

    def evaluate(
        self,
        model: Embedder,
        batches: CountedBatches,
        rows: LikenessRows | None,
        encoding: Encoding,
        *,
        description: str = "evaluation",
        ranks: Ranks = ALONE,
    ) -> Mapping[str, float]:
        """Score `model`: loss and accuracy over `batches`, and with `rows` the rank correlation of cosine and likeness.

        Without dropout a row that is read twice has one vector: the loss of an unsupervised model says how far it lies
        from the others. The model is afterwards in the mode it was in, and no random number is drawn.
        """
        totals = score_batches(
            self,
            model,
            batches,
            device=encoding.device,
            autocast_dtype=encoding.autocast_dtype,
            description=description,
            ranks=ranks,
        )
        values = {"loss": totals.loss, "accuracy": totals.accuracy}
        return values if rows is None else {**values, "spearman": likeness_correlation(model, rows, encoding)}


def likeness_correlation(model: Embedder, rows: LikenessRows, encoding: Encoding) -> float:
    """Spearman's correlation of cosines with how alike people find two texts: Gao et al. (2021), section 6.1."""
    first_ND, second_ND = (embed(model, list(texts), encoding, normalize=True) for texts in (rows.first, rows.second))
    return metrics.spearman((first_ND * second_ND).sum(-1, dtype=np.float64), rows.likeness)


def embed(model: Embedder, texts: list[str], encoding: Encoding, *, normalize: bool) -> np.ndarray:
    """vector_ND of some texts, float32; no vector depends on the texts beside it. `normalize`: to length 1."""
    out = np.empty((len(texts), model.encoder.embedding.table.embedding_dim), np.float32)
    if not texts:
        return out
    device = encoding.device
    with evaluating_in(model, device, encoding.autocast_dtype):
        for places, token_BS, allowed_BS in text_batches(
            texts, encoding.tokenizer, max_length=encoding.max_length, max_tokens=encoding.max_tokens
        ):
            vector_BD = model(token_BS.to(device), None if allowed_BS is None else allowed_BS.to(device))
            out[places] = (F.normalize(vector_BD, dim=-1) if normalize else vector_BD).float().cpu().numpy()
    return out
