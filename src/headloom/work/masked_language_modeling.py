"""Masked language modelling as a work: running text, one tokenizer, an encoder, hidden tokens and attention maps."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from headloom import build_pretraining
from headloom.config.schema import TrainConfig
from headloom.data.labelled_batch import LabelledBatch
from headloom.data.masking import mask_id
from headloom.insight.samples import Sample
from headloom.models.masked import MaskedLanguageModel
from headloom.nn.attention import recording_attention
from headloom.nn.evaluating import evaluating, evaluating_in
from headloom.nn.loss import IGNORE
from headloom.ranks import Ranks
from headloom.tasks.masked_language_modeling import MaskedLanguageModelingTask
from headloom.work.running_text import RunningTextWork, saved_tokenizer
from headloom.work.warm_start import WarmStart

if TYPE_CHECKING:
    from headloom.insight.dashboard import Dashboard  # loads TensorBoard: not to use a checkpoint

NUM_SAMPLES, SHOWN_TOKENS, MAPPED_TOKENS = 5, 48, 24
"""Rows of the validation text that are shown, tokens of each, and tokens of the row whose attention is drawn."""
SAMPLE_NAMES = ("text", "hidden", "prediction")
MASK = "[MASK]"


def fresh_model(config: TrainConfig, contents: Mapping[str, Any]) -> MaskedLanguageModel:
    """The model of a checkpoint, before its weights are loaded."""
    return build_pretraining.build_masked_model(config, saved_tokenizer(contents))


class MaskedLanguageModelingWork(RunningTextWork):
    """See `work.base.Work`."""

    model: MaskedLanguageModel
    task: MaskedLanguageModelingTask

    def __init__(self, config: TrainConfig, contents: Mapping[str, Any] | None, warm: WarmStart | None = None) -> None:
        super().__init__(config, contents, warm)
        self.train_batches = build_pretraining.build_masked_batches(config, self.train_tokens, self.tokenizer)
        self.valid_batches = build_pretraining.build_masked_evaluation(config, self.valid_tokens, self.tokenizer)

    def summary(self) -> str:
        return (
            f"{self.corpus.name}: {len(self.train_tokens):,} tokens to train on, {len(self.valid_tokens):,} to "
            f"validate on; vocabulary {self.tokenizer.vocab_size}, and the mask"
        )

    def texts(self, batch: LabelledBatch) -> Sequence[str]:
        whole_BS = torch.where(batch.target == IGNORE, batch.token_BS, batch.target)
        return [self.tokenizer.decode(row) for row in whole_BS.tolist()]

    def build(self, device: torch.device, dtype: torch.dtype | None) -> None:
        self.device, self.dtype = device, dtype
        self.model = build_pretraining.build_masked_model(self.config, self.tokenizer)
        self.model.to(device).train()
        self.task = build_pretraining.build_masked_task(self.config)

    def validate(self, step: int, dashboard: "Dashboard", ranks: Ranks) -> Mapping[str, float]:
        metrics = self.task.evaluate(
            self.model,
            self.valid_batches,
            device=self.device,
            autocast_dtype=self.dtype,
            description="validation",
            ranks=ranks,
        )
        batch = next(iter(self.valid_batches)).to(self.device)
        dashboard.samples(step, self._samples(batch), SAMPLE_NAMES)
        self._draw_attention(step, dashboard, batch)
        return metrics

    def _samples(self, batch: LabelledBatch) -> list[Sample]:
        token_BS, target_BS = (rows_BS[:NUM_SAMPLES] for rows_BS in (batch.token_BS, batch.target))
        allowed_BS = None if batch.allowed_BS is None else batch.allowed_BS[:NUM_SAMPLES]
        with evaluating_in(self.model, self.device, self.dtype):
            hidden_BSD = self.model(token_BS, allowed_BS)[:, :SHOWN_TOKENS]
            best_BS = (hidden_BSD @ self.model.output_weight.to(hidden_BSD.dtype).T).argmax(-1)
        samples = []
        for row, target, best in zip(token_BS.tolist(), target_BS.tolist(), best_BS.tolist(), strict=True):
            asked = [place for place, wanted in enumerate(target[:SHOWN_TOKENS]) if wanted != IGNORE]
            hidden, predicted = ([ids[place] for place in asked] for ids in (target, best))
            samples.append(Sample(self._shown(row[:SHOWN_TOKENS]), self._shown(hidden), self._shown(predicted)))
        return samples

    def _shown(self, ids: Sequence[int]) -> str:
        return " ".join(self._pieces([i for i in ids if i != self.tokenizer.pad_id])).replace("\n", "<0x0A>")

    def _pieces(self, ids: Sequence[int]) -> list[str]:
        mask = mask_id(self.tokenizer)
        known = iter(self.tokenizer.pieces([i for i in ids if i != mask]))
        return [MASK if i == mask else next(known) for i in ids]

    def _draw_attention(self, step: int, dashboard: "Dashboard", batch: LabelledBatch) -> None:
        from headloom.insight.attention_maps import attention_figures  # loads matplotlib: not to use a checkpoint

        token_1S = batch.token_BS[:1]
        if batch.allowed_BS is not None:
            token_1S = token_1S[:, batch.allowed_BS[0]]
        token_1S = token_1S[:, :MAPPED_TOKENS]
        with evaluating(self.model), recording_attention(self.model) as weights:
            self.model(token_1S, None)
        pieces = self._pieces(token_1S[0].tolist())
        for tag, pixels in attention_figures(weights, source_pieces=pieces, target_pieces=[]):
            dashboard.figure(step, tag, pixels)
