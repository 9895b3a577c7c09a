"""Language modelling as a work: running text, one tokenizer, a decoder-only model, continuations and attention maps."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from headloom import build_language as build
from headloom.config.schema import TrainConfig
from headloom.data.text_batch import TextBatch
from headloom.data.text_store import TextTokens
from headloom.decoding.continuation import Prompt
from headloom.insight.samples import Sample, sample_rows
from headloom.models.lm import LanguageModel
from headloom.nn.attention import recording_attention
from headloom.nn.evaluating import evaluating
from headloom.ranks import Ranks
from headloom.tasks.language_modeling import LanguageModelingTask
from headloom.work.running_text import RunningTextWork, saved_tokenizer
from headloom.work.warm_start import WarmStart

if TYPE_CHECKING:
    from headloom.insight.dashboard import Dashboard  # loads TensorBoard: not to use a checkpoint

MAPPED_TOKENS = 24
"""Tokens of the text whose attention is drawn, bos counted, where the model reads as many."""

NUM_SAMPLES, PROMPT_TOKENS, CONTINUED_TOKENS = 5, 32, 64
"""Places of the text that the model goes on from, tokens that it reads before each, and that it writes, at most."""


def fresh_model(config: TrainConfig, contents: Mapping[str, Any]) -> LanguageModel:
    """The model of a checkpoint, before its weights are loaded."""
    return build.build_language_model(config, vocab_size=saved_tokenizer(contents).vocab_size)


class LanguageModelingWork(RunningTextWork):
    """See `work.base.Work`."""

    model: LanguageModel
    task: LanguageModelingTask

    def __init__(self, config: TrainConfig, contents: Mapping[str, Any] | None, warm: WarmStart | None = None) -> None:
        super().__init__(config, contents, warm)
        self.train_batches = build.build_training_batches(config, self.train_tokens, self.tokenizer)
        self.valid_batches = build.build_evaluation_batches(config, self.valid_tokens, self.tokenizer)

    def summary(self) -> str:
        def counted(tokens: TextTokens) -> str:
            documents = f" in {tokens.num_documents:,} documents" if tokens.num_documents > 1 else ""
            return f"{len(tokens):,} tokens of {tokens.num_characters:,} characters{documents}"

        rows = build.rows_in_words(self.config.data)
        return (
            f"{self.corpus.name}: {counted(self.train_tokens)} to train on, {counted(self.valid_tokens)} to validate "
            f"on; vocabulary {self.tokenizer.vocab_size}; {rows}"
        )

    def texts(self, batch: TextBatch) -> Sequence[str]:
        return [self.tokenizer.decode(row) for row in batch.target_BT.tolist()]

    def build(self, device: torch.device, dtype: torch.dtype | None) -> None:
        self.device, self.dtype = device, dtype
        self.model = build.build_language_model(self.config, vocab_size=self.tokenizer.vocab_size)
        self.model.to(device).train()
        self.task = build.build_language_task(self.config.task)
        self.continuer = build.build_continuer(
            self.config.decoding,
            self.model,
            self.tokenizer,
            context_length=self.config.data.max_length,
            device=device,
            autocast_dtype=dtype,
            max_length=CONTINUED_TOKENS,
        )

    def validate(self, step: int, dashboard: "Dashboard", ranks: Ranks) -> Mapping[str, float]:
        metrics = self.task.evaluate(
            self.model,
            self.valid_batches,
            device=self.device,
            autocast_dtype=self.dtype,
            description="validation",
            ranks=ranks,
        )
        dashboard.samples(step, self._samples())
        self._draw_attention(step, dashboard)
        return metrics

    def _samples(self) -> list[Sample]:
        """Places all over the validation text: what comes before each, what follows, and what the model writes."""
        tokens, decode = self.valid_tokens, self.tokenizer.decode
        begin = {self.tokenizer.eos_id: self.tokenizer.bos_id}  # where a document ends the next one begins
        prompts, following = [], []
        for place in sample_rows(max(len(tokens) - PROMPT_TOKENS, 1), num_samples=NUM_SAMPLES):
            stop = min(place + PROMPT_TOKENS, len(tokens))
            prompts.append(tokens.targets(place, stop).tolist())
            following.append(tokens.targets(stop, min(stop + CONTINUED_TOKENS, len(tokens))).tolist())
        texts = [""] * len(prompts)
        for place, [best, *_] in self.continuer.continued([Prompt([begin.get(i, i) for i in ids]) for ids in prompts]):
            texts[place] = decode(best.ids)
        return [
            Sample(decode(prompt), decode(real), text)
            for prompt, real, text in zip(prompts, following, texts, strict=True)
        ]

    def _draw_attention(self, step: int, dashboard: "Dashboard") -> None:
        """How the first tokens of the validation text attend."""
        from headloom.insight.attention_maps import attention_figures  # loads matplotlib: not to use a checkpoint

        longest = min(MAPPED_TOKENS, self.config.data.max_length, len(self.valid_tokens))
        text = self.valid_tokens.targets(0, longest - 1).tolist()
        bos = self.tokenizer.bos_id
        input_ids = [bos, *(bos if i == self.tokenizer.eos_id else i for i in text)]
        with evaluating(self.model), recording_attention(self.model) as weights:
            self.model(torch.tensor([input_ids], device=self.device))
        pieces = self.tokenizer.pieces(input_ids)
        for tag, pixels in attention_figures(weights, source_pieces=pieces, target_pieces=pieces):
            dashboard.figure(step, tag, pixels)
