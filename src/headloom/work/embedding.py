"""Sentence embedding as a work: running text or pairs, one tokenizer, an encoder, and pairs to compare."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from headloom import build_embedding
from headloom.config import schema_pretraining
from headloom.config.schema import TrainConfig
from headloom.data.sentence_batch import SentenceBatch
from headloom.data.text import content_hash
from headloom.insight.samples import Sample, sample_rows
from headloom.models.embedder import Embedder
from headloom.ranks import Ranks
from headloom.tasks.embedding import EmbeddingTask, LikenessRows, embed
from headloom.work.running_text import chosen_tokenizer, saved_tokenizer
from headloom.work.warm_start import WarmStart

if TYPE_CHECKING:
    from headloom.insight.dashboard import Dashboard  # loads TensorBoard: not to use a checkpoint

SAMPLE_NAMES = ("texts", "likeness", "cosine")


def fresh_model(config: TrainConfig, contents: Mapping[str, Any]) -> Embedder:
    """The model of a checkpoint, before its weights are loaded."""
    return build_embedding.build_embedder(config, saved_tokenizer(contents))


class EmbeddingWork:
    """See `work.base.Work`."""

    model: Embedder
    task: EmbeddingTask

    def __init__(self, config: TrainConfig, contents: Mapping[str, Any] | None, warm: WarmStart | None = None) -> None:
        self.config = config
        self.corpus = build_embedding.SentenceCorpus.of(config)
        self.tokenizer = chosen_tokenizer(config, contents, warm, lambda: self.corpus.tokenizer(config))
        self.train_tokens, self.valid_tokens = (
            self.corpus.tokens(config, self.tokenizer, split) for split in ("train", "valid")
        )
        self.train_batches = build_embedding.build_training_batches(config, self.train_tokens, self.tokenizer)
        self.valid_batches = build_embedding.build_evaluation_batches(config, self.valid_tokens, self.tokenizer)
        assert isinstance(config.task, schema_pretraining.EmbeddingConfig)
        self.likeness: LikenessRows | None = None
        if config.task.sts is not None:
            self.likeness = build_embedding.read_likeness(config.task.sts, cache=config.data.folder)

    @property
    def corpus_fingerprint(self) -> str:
        return self.corpus.corpus.train.fingerprint

    @property
    def valid_fingerprint(self) -> str:
        likeness = self.likeness
        compared = [] if likeness is None else [*likeness.first, *likeness.second, *map(str, likeness.likeness)]
        return content_hash([self.corpus.corpus.valid.fingerprint, *compared])

    def summary(self) -> str:
        compared = "" if self.likeness is None else f", {len(self.likeness.likeness):,} pairs to compare"
        what = "pairs" if self.corpus.texts is None else "tokens"
        return (
            f"{self.corpus.corpus.name}: {len(self.train_tokens):,} {what} to train on, {len(self.valid_tokens):,} to "
            f"validate on{compared}; vocabulary {self.tokenizer.vocab_size}"
        )

    def saved(self) -> dict[str, Any]:
        return {"tokenizers": {"text": self.tokenizer.state()}}

    def texts(self, batch: SentenceBatch) -> Sequence[str]:
        first = [self.tokenizer.decode(row) for row in batch.token_BS.tolist()]
        if batch.second_BS is None:
            return first
        second = [self.tokenizer.decode(row) for row in batch.second_BS.tolist()]
        return [" => ".join(pair) for pair in zip(first, second, strict=True)]

    def build(self, device: torch.device, dtype: torch.dtype | None) -> None:
        self.encoding = build_embedding.build_encoding(self.config, self.tokenizer, device=device, autocast_dtype=dtype)
        self.model = build_embedding.build_embedder(self.config, self.tokenizer)
        self.model.to(device).train()
        self.task = build_embedding.build_embedding_task(self.config)

    def validate(self, step: int, dashboard: "Dashboard", ranks: Ranks) -> Mapping[str, float]:
        metrics = self.task.evaluate(
            self.model, self.valid_batches, self.likeness, self.encoding, description="validation", ranks=ranks
        )
        if self.likeness is not None:
            dashboard.samples(step, self._samples(self.likeness), SAMPLE_NAMES)
        return metrics

    def _samples(self, rows: LikenessRows) -> list[Sample]:
        samples = []
        for row in sample_rows(len(rows.likeness)):
            texts = [rows.first[row], rows.second[row]]
            one_D, other_D = embed(self.model, texts, self.encoding, normalize=True)
            samples.append(Sample(" | ".join(texts), f"{rows.likeness[row]:.4g}", f"{one_D @ other_D:.3f}"))
        return samples
