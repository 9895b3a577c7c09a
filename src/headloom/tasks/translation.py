"""Translation: one line to one line, with an encoder-decoder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from headloom import metrics
from headloom.data.batch import Batch, EvaluationBatches
from headloom.decoding.translator import Translator
from headloom.errors import ConfigError
from headloom.models.seq2seq import Seq2Seq
from headloom.nn.divergence import symmetric_divergence
from headloom.nn.loss import IGNORE, LossSum, sequence_loss
from headloom.ranks import ALONE, Ranks
from headloom.tasks.scheduled_sampling import ScheduledSampling
from headloom.tasks.scoring import score_batches

HEADLINES = {"bleu": True, "chrf": True, "loss": False}
"""Metrics that can choose the best checkpoint, and whether higher is better."""


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found.

    `metrics` has loss (nats per target token, eos counted, never smoothed),
    perplexity (its exponential) and accuracy (share of target tokens that get
    the highest logit, given the true ones before them); with a translator, also
    the scores of `metrics.translation_scores` (0 to 100) of the translations,
    whose `signatures` and texts (`hypotheses`, in the order of the corpus) are
    then there too.
    """

    metrics: Mapping[str, float]
    signatures: Mapping[str, str] = field(default_factory=dict)
    hypotheses: list[str] = field(default_factory=list)


class TranslationTask:
    """Cross-entropy with label smoothing in training, text against text in evaluation.

    `r_drop` is the weight of the disagreement of two passes with different
    dropout; 0: one pass. `sampling`: what the decoder reads in training; None:
    the true tokens. Neither touches an evaluation.

    Raises:
        ConfigError: `headline` is none of HEADLINES.
    """

    def __init__(
        self, *, label_smoothing: float, headline: str, r_drop: float = 0.0, sampling: ScheduledSampling | None = None
    ) -> None:
        if headline not in HEADLINES:
            raise ConfigError(f"task.headline ({headline}) must be one of {', '.join(HEADLINES)}")
        self.label_smoothing = label_smoothing
        self.r_drop = r_drop
        self.sampling = sampling
        self.headline = headline
        self.higher_is_better = HEADLINES[headline]

    def loss_sum(self, model: Seq2Seq, batch: Batch) -> LossSum:
        """Smoothed cross-entropy of the targets of `batch`, each given the true tokens before it."""
        real_BT = batch.target_BT != IGNORE if model.routes_tokens else None
        if model.training and self.sampling is not None:
            batch = replace(batch, target_input_BT=self.sampling.inputs(model, batch, real_BT))
        if model.training and self.r_drop > 0:
            return self._agreeing_loss_sum(model, batch)
        hidden_BTD = model(batch.source_BS, batch.source_allowed_BS, batch.target_input_BT, real_BT)
        return sequence_loss(
            hidden_BTD,
            batch.target_BT,
            model.output_weight,
            label_smoothing=self.label_smoothing,
            num_targets=batch.num_targets,
        )

    def _agreeing_loss_sum(self, model: Seq2Seq, batch: Batch) -> LossSum:
        """R-Drop: Liang et al. (2021), section 2.2, equation 4, divided by 2, so that it stays in nats a target.

        The two passes are one of every row twice: what is dropped is drawn for each element on its own.
        """
        allowed = batch.source_allowed_BS
        target_BT = _twice(batch.target_BT)
        hidden_BTD = model(
            _twice(batch.source_BS),
            None if allowed is None else _twice(allowed),
            _twice(batch.target_input_BT),
            target_BT != IGNORE if model.routes_tokens else None,
        )
        both = sequence_loss(
            hidden_BTD,
            target_BT,
            model.output_weight,
            label_smoothing=self.label_smoothing,
            num_targets=2 * batch.num_targets,
        )
        one_BTD, other_BTD = hidden_BTD.chunk(2)
        counts_BT = batch.target_BT != IGNORE
        divergence = symmetric_divergence(one_BTD[counts_BT], other_BTD[counts_BT], model.output_weight)
        return replace(
            both,
            loss=both.loss / 2 + self.r_drop / 4 * divergence,
            nll=both.nll / 2,
            num_correct=both.num_correct // 2,
            num_targets=batch.num_targets,
        )

    def at_step(self, step: int) -> None:
        """`step` updates were made."""
        if self.sampling is not None:
            self.sampling.step = step

    def evaluate(
        self,
        model: Seq2Seq | None,
        batches: EvaluationBatches,
        translator: Translator | None,
        *,
        device: torch.device,
        autocast_dtype: torch.dtype | None,
        description: str = "evaluation",
        ranks: Ranks = ALONE,
        scores: Sequence[str] = metrics.QUICK_SCORES,
    ) -> Evaluation:
        """Score `model` on every pair of `batches`; no result depends on how they are batched.

        None: there is a translator only, whose scores these are.
        `translator` translates the raw sources of the corpus, so that the
        `scores`, by their names in `metrics.TRANSLATION_SCORES`, are those of
        `translate.py` and sacreBLEU; None leaves them out.
        The model is afterwards in the mode it was in, and no random number is
        drawn. `description` names the progress bars, which stderr shows if it
        is a terminal. Each of `ranks` scores and translates its share, and all
        get the evaluation of the whole.
        """
        values: dict[str, float] = {}
        if model is not None:
            totals = score_batches(
                self,
                model,
                batches,
                device=device,
                autocast_dtype=autocast_dtype,
                description=description,
                ranks=ranks,
            )
            assert totals.num_targets > 0, "a token store holds at least one pair, and every pair an eos"
            values = {"loss": totals.loss, "perplexity": totals.perplexity, "accuracy": totals.accuracy}
        if translator is None:
            return Evaluation(values)
        texts = [batches.pairs.text(row) for row in range(len(batches.pairs))]
        own = list(ranks.share(source for source, _ in texts))
        hypotheses = ranks.in_order(translator.translate(own, description=f"{description}: translating"))
        references = [target for _, target in texts]
        found = metrics.translation_scores(hypotheses, references, scores)
        return Evaluation(
            metrics={**values, **{name: score.value for name, score in found.items()}},
            signatures={name: score.signature for name, score in found.items() if score.signature},
            hypotheses=hypotheses,
        )


def _twice(rows: Tensor) -> Tensor:
    return torch.cat([rows, rows])
