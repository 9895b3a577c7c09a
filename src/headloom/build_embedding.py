"""From configuration to what an embedding of sentences needs: batches, pairs to compare, model, task."""

import logging
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from headloom import build
from headloom.build_language import (
    EVALUATION_TOKENS,
    build_running_text_tokenizer,
    build_text_corpus,
    build_text_sampler,
)
from headloom.build_parts import Parts
from headloom.config import schema_language
from headloom.config import schema_pretraining as schema
from headloom.config.schema import TrainConfig
from headloom.config.schema_labelled import ClassifierConfig, PoolingKind
from headloom.data.batch import EvaluationBatches, TrainingBatches
from headloom.data.labelled import Columns, open_labelled, split_texts
from headloom.data.prepared import lines_folder
from headloom.data.running_text import TextCorpus
from headloom.data.sentence_batch import (
    LineBatches,
    LineEvaluationBatches,
    PairedBatches,
    PairedEvaluationBatches,
)
from headloom.data.text import Corpus
from headloom.data.text_sampler import DocumentSampler, document_rows
from headloom.data.text_store import TextTokens, tokenize_text
from headloom.data.token_store import TokenPairs, tokenize_pairs
from headloom.data.tokenizer_base import Tokenizer
from headloom.errors import ConfigError, DataError
from headloom.models.classifier import Pool, Pooling
from headloom.models.embedder import Embedder
from headloom.tasks.embedding import EmbeddingTask, Encoding, LikenessRows

logger = logging.getLogger(__name__)

MAX_ALONE = 0.05
"""A larger share of sentences that are alone in their batch, and teach nothing, is warned of."""

EvaluationOfSentences = LineEvaluationBatches | PairedEvaluationBatches


@dataclass(frozen=True)
class SentenceCorpus:
    """Running text or pairs of lines."""

    corpus: TextCorpus | Corpus
    texts: TextCorpus | None
    pairs: Corpus | None

    @classmethod
    def of(cls, config: TrainConfig) -> "SentenceCorpus":
        """The corpus of a configuration.

        Raises:
            DataError: it cannot be had, or a file of it cannot be used.
        """
        if isinstance(config.data, schema_language.RunningTextConfig):
            texts = build_text_corpus(config.data)
            return cls(texts, texts, None)
        pairs = build.build_corpus(config.data)
        return cls(pairs, None, pairs)

    def tokenizer(self, config: TrainConfig) -> Tokenizer:
        """A tokenizer, trained on the training text where none is given."""
        prepared = config.data.folder / "prepared"
        if self.texts is not None:
            return build_running_text_tokenizer(config.tokenizer, self.texts.train, prepared)
        assert self.pairs is not None
        return build.build_tokenizers(config.tokenizer, self.pairs.train, prepared)[0]

    def tokens(self, config: TrainConfig, tokenizer: Tokenizer, split: str) -> TextTokens | TokenPairs:
        """The ids of the split train, valid or test.

        Raises:
            DataError: there is no such split.
        """
        prepared = config.data.folder / "prepared"
        found = getattr(self.corpus, split)
        if found is None:
            raise DataError(
                f"{self.corpus.name} has no {split} split: score data.split=valid, or pairs with data.path="
            )
        description = f"{self.corpus.name} {split}"
        if self.texts is not None:
            return tokenize_text(found, tokenizer, folder=prepared, description=description)
        return tokenize_pairs(
            found,
            tokenizer,
            tokenizer,
            folder=prepared,
            max_length=config.data.max_length,
            truncate=split != "train",
            description=description,
        )


def build_training_batches(
    config: TrainConfig, tokens: TextTokens | TokenPairs, tokenizer: Tokenizer
) -> LineBatches | PairedBatches:
    """Endless batches.

    Raises:
        ConfigError: every sentence would be alone in its batch, and have none to be told from.
    """
    trainer = config.trainer
    _look_for_sentences_alone(config, tokens)
    if isinstance(tokens, TextTokens):
        sampler = build_text_sampler(config, tokens, length=config.data.max_length - 1)  # what leads a row has room
        assert isinstance(sampler, DocumentSampler)
        return LineBatches(tokens, tokenizer, sampler, pad_to_multiple=trainer.pad_to_multiple)
    batches = TrainingBatches(
        tokens,
        tokenizer,
        tokenizer,
        max_tokens=trainer.max_tokens,
        seed=config.seed,
        pad_to_multiple=trainer.pad_to_multiple,
        sampling=tokenizer.sampling > 0,
    )
    return PairedBatches(batches, tokenizer)


def _look_for_sentences_alone(config: TrainConfig, tokens: TextTokens | TokenPairs) -> None:
    """Sentences longer than half a batch are alone in it: their loss is 0, whatever the model makes of them."""
    if isinstance(tokens, TextTokens):
        lengths = document_rows(tokens, config.data.max_length - 1)[1]
    else:
        lengths = np.maximum(tokens.source_lengths, tokens.target_lengths)
    multiple, max_tokens = config.trainer.pad_to_multiple, config.trainer.max_tokens
    widths = -(-lengths // multiple) * multiple
    is_alone = widths > max_tokens // 2
    remedy = f"raise trainer.max_tokens={max_tokens}, such as to {32 * int(widths.max())}"
    if len(widths) - int(is_alone.sum()) < 2:
        raise ConfigError(
            f"every sentence would be alone in its batch, and task=embedding tells it from the others there: {remedy}"
            if len(widths) > 1
            else "task=embedding tells a sentence from others, and there is one to train on: give it more lines"
        )
    if is_alone.mean() > MAX_ALONE:
        logger.warning(
            "%.0f%% of the sentences are alone in their batch and teach nothing, since task=embedding tells a sentence "
            "from the others there: %s",
            100 * is_alone.mean(),
            remedy,
        )


def build_evaluation_batches(
    config: TrainConfig, tokens: TextTokens | TokenPairs, tokenizer: Tokenizer
) -> EvaluationOfSentences:
    """Of the size of those in training: the loss depends on it."""
    if isinstance(tokens, TextTokens):
        return LineEvaluationBatches(
            tokens, tokenizer, length=config.data.max_length - 1, max_tokens=config.trainer.max_tokens
        )
    batches = EvaluationBatches(tokens, tokenizer, tokenizer, max_tokens=config.trainer.max_tokens)
    return PairedEvaluationBatches(batches, tokenizer)


def read_likeness(path: Path, *, cache: Path) -> LikenessRows:
    """Pairs of texts with a number each: see `task.sts`.

    Raises:
        DataError: the file cannot be used, or a label is no number.
    """
    is_jsonl = any(suffix in (".jsonl", ".ndjson") for suffix in path.suffixes)
    rows = open_labelled(
        path, columns=Columns(second_text="second_text" if is_jsonl else "1"), cache=lines_folder(cache)
    )
    first, second, likeness = [], [], []
    for number, (source, label) in enumerate(rows, start=1):
        one, other = split_texts(source)
        try:
            value = float(label)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise DataError(f"{path}: row {number}: {label!r} is no number that says how alike two texts are")
        first.append(one)
        second.append(other)
        likeness.append(value)
    return LikenessRows(first, second, np.array(likeness))


def build_embedder(config: TrainConfig, tokenizer: Tokenizer) -> Embedder:
    """A freshly initialised model."""
    model = config.model
    assert isinstance(model, ClassifierConfig)
    parts = Parts(config)
    table = nn.Embedding(tokenizer.vocab_size, model.d_model)
    pooling = PoolingKind.mean if model.pooling is None else model.pooling
    built = Embedder(parts.encoder(table, num_layers=model.num_layers), Pool(Pooling[pooling.name], model.d_model))
    parts.initialise(built, num_residuals=2 * model.num_layers)
    return built


def build_embedding_task(config: TrainConfig) -> EmbeddingTask:
    task = config.task
    assert isinstance(task, schema.EmbeddingConfig)
    assert task.headline is not None
    return EmbeddingTask(temperature=task.temperature, headline=task.headline.name)


def build_encoding(
    config: TrainConfig, tokenizer: Tokenizer, *, device: torch.device, autocast_dtype: torch.dtype | None
) -> Encoding:
    return Encoding(
        tokenizer,
        config.data.max_length,
        max(config.trainer.max_tokens, EVALUATION_TOKENS),
        device,
        autocast_dtype,
    )
