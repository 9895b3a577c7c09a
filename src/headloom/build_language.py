"""From configuration to what a language model needs: text, tokenizer, batches, model, task."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import assert_never

import torch
from torch import nn

from headloom.build import RUN_OPTIONS
from headloom.build_decoding import build_search
from headloom.build_parts import Parts
from headloom.config import rules, schema_decoding, schema_text
from headloom.config import schema_language as schema
from headloom.config.saved import to_plain
from headloom.config.schema import TrainConfig
from headloom.config.schema_data import DataConfig
from headloom.data import text_corpora
from headloom.data.running_text import Documents, RunningText, TextCorpus
from headloom.data.sampled import Sampler
from headloom.data.text_batch import TextEvaluationBatches, TextTrainingBatches
from headloom.data.text_sampler import (
    BlockOrder,
    BlockSampler,
    DocumentSampler,
    PackedSampler,
    Stretches,
    rows_for,
)
from headloom.data.text_store import TextTokens
from headloom.data.tokenizer import ByteTokenizer, load_tokenizer
from headloom.data.tokenizer_base import Tokenizer
from headloom.data.tokenizer_training import train_tokenizer
from headloom.data.whole_files import written_beside
from headloom.decoding.continuation import Continuer
from headloom.decoding.requests import Beam, MinimumBayesRisk
from headloom.errors import ConfigError
from headloom.models.lm import LanguageModel
from headloom.nn.linear import Linear
from headloom.tasks.language_modeling import LanguageModelingTask

MAX_TOKENIZER_CHARACTERS = 200_000_000
"""Characters a tokenizer is trained on: the first ones of a longer text."""


def build_text_corpus(config: DataConfig) -> TextCorpus:
    """The splits of the text; one that is not there yet is fetched under `data.folder`.

    Raises:
        DataError: it cannot be had, or a file of it cannot be used.
    """
    match config:
        case schema.AliceConfig():
            return text_corpora.alice(valid_share=config.valid_share, folder=config.folder, path=config.path)
        case schema.TinyShakespeareConfig():
            return text_corpora.tiny_shakespeare(valid_share=config.valid_share, folder=config.folder, path=config.path)
        case schema.TextConfig():
            return text_corpora.own_text(
                path=config.path,
                valid_path=config.valid_path,
                test_path=config.test_path,
                valid_share=config.share_split_off,
                documents=Documents[config.documents.name],
                folder=config.folder,
            )
        case _:
            raise AssertionError(config)


def documents_of(config: DataConfig) -> Documents:
    """What ends a document of the corpus."""
    return Documents[config.documents.name] if isinstance(config, schema.TextConfig) else Documents.file


def build_running_text_tokenizer(config: schema_text.TokenizerConfig, text: RunningText, folder: Path) -> Tokenizer:
    """A tokenizer that keeps line ends and blanks, trained on `text` where none is given.

    A trained one is kept in `folder` under the hash of text and options, so
    that it is made once, and never used for other text or options.
    """
    match config:
        case schema_text.ByteConfig():
            return ByteTokenizer()
        case schema_text.CharConfig():
            return _trained(config, text, folder)
        case schema_text.BpeConfig() | schema_text.UnigramConfig():
            if config.source_model is not None:
                return load_tokenizer(config.source_model, running_text=True)
            return _trained(config, text, folder)
        case _:
            raise AssertionError(config)


def _trained(config: schema_text.CharConfig | schema_text.SubwordConfig, text: RunningText, folder: Path) -> Tokenizer:
    options = {name: value for name, value in to_plain(config).items() if name not in RUN_OPTIONS}
    content = json.dumps(["running text", 1, text.fingerprint, options, MAX_TOKENIZER_CHARACTERS])
    path = folder / f"tokenizer-{hashlib.sha256(content.encode()).hexdigest()[:32]}.model"
    if not path.exists():
        if isinstance(config, schema_text.SubwordConfig):
            tokenizer = train_tokenizer(
                _lines(text),
                kind=config.kind.name,
                vocab_size=config.vocab_size,
                normalization=config.normalization.name if config.normalization else "identity",
                character_coverage=config.character_coverage,
                byte_fallback=config.byte_fallback,
                running_text=True,
            )
        else:
            tokenizer = train_tokenizer(
                _lines(text),
                kind=config.kind.name,
                vocab_size=None,
                normalization="identity",
                byte_fallback=False,
                running_text=True,
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_beside(path) as partial:
            partial.write_bytes(tokenizer.state()["model"])
    return load_tokenizer(path, running_text=True)


def _lines(text: RunningText) -> Iterator[str]:
    num_characters = 0
    for piece in text.pieces():
        yield piece.text.removesuffix("\n")
        num_characters += len(piece.text)
        if num_characters >= MAX_TOKENIZER_CHARACTERS:
            return


def build_training_batches(config: TrainConfig, tokens: TextTokens, tokenizer: Tokenizer) -> TextTrainingBatches:
    """Endless batches of at most `trainer.max_tokens` tokens."""
    sampler = build_text_sampler(config, tokens, length=config.data.max_length)
    return TextTrainingBatches(tokens, tokenizer, sampler, pad_to_multiple=config.trainer.pad_to_multiple)


def build_text_sampler(config: TrainConfig, tokens: TextTokens, *, length: int) -> Sampler[Stretches]:
    """Rows of `length` targets at most, as many a batch as rows of `data.max_length` fit."""
    data = config.data
    assert isinstance(data, schema.RunningTextConfig)
    max_tokens, seed = config.trainer.max_tokens, config.seed
    num_rows = rows_for(max_tokens, data.max_length)
    match data.batching:
        case schema.Batching.blocks:
            order = BlockOrder[(data.order or schema.BlockOrder.shuffled).name]
            return BlockSampler(len(tokens), length=length, num_rows=num_rows, order=order, seed=seed)
        case schema.Batching.documents:
            return DocumentSampler(
                tokens,
                length=length,
                max_tokens=max_tokens,
                seed=seed,
                pad_to_multiple=config.trainer.pad_to_multiple,
            )
        case schema.Batching.packed:
            return PackedSampler(tokens, length=length, num_rows=num_rows, seed=seed)
        case _:
            assert_never(data.batching)


def rows_in_words(data: DataConfig) -> str:
    """What a row of a batch is, and what that asks of attention: for the log."""
    assert isinstance(data, schema.RunningTextConfig)
    match data.batching:
        case schema.Batching.blocks:
            return f"rows are blocks of {data.max_length} tokens, over the ends of documents, without a mask"
        case schema.Batching.documents:
            return f"a row is a document of at most {data.max_length} tokens, without a mask"
        case schema.Batching.packed:
            return (
                f"rows of {data.max_length} tokens are packed with documents that do not see each other: "
                "in training attention takes a mask, which PyTorch's Flash kernel does not"
            )
        case _:
            assert_never(data.batching)


def build_evaluation_batches(config: TrainConfig, tokens: TextTokens, tokenizer: Tokenizer) -> TextEvaluationBatches:
    """Windows over a text, by `data.max_length` and `task.stride`; within documents unless blocks cross their ends."""
    data, task = config.data, config.task
    assert isinstance(data, schema.RunningTextConfig)
    assert isinstance(task, schema.LanguageModelingConfig)
    return TextEvaluationBatches(
        tokens,
        tokenizer,
        length=data.max_length,
        stride=task.stride or data.max_length,
        max_tokens=max(config.trainer.max_tokens, EVALUATION_TOKENS),
        within_documents=data.batching is not schema.Batching.blocks,
    )


EVALUATION_TOKENS = 4096
"""Tokens of a batch that is only scored, where `trainer.max_tokens` is smaller: no gradient is kept."""


def build_language_model(config: TrainConfig, *, vocab_size: int) -> LanguageModel:
    """A freshly initialised model; the vocabulary size comes from the tokenizer, never from a file."""
    model = config.model
    assert isinstance(model, schema.LmConfig)
    parts = Parts(config)
    table = nn.Embedding(vocab_size, model.d_model)
    output = Linear(model.d_model, vocab_size, bias=False)
    built = LanguageModel(parts.causal_stack(table, num_layers=model.num_layers), output)
    parts.initialise(built, num_residuals=2 * model.num_layers)
    if model.tie_output:
        output.weight = table.weight
    return built


def build_language_task(config: schema_text.TaskConfig) -> LanguageModelingTask:
    assert isinstance(config, schema.LanguageModelingConfig)
    return LanguageModelingTask(label_smoothing=config.label_smoothing, headline=config.headline.name)


def build_continuer(
    config: schema_decoding.DecodingConfig,
    model: LanguageModel,
    tokenizer: Tokenizer,
    *,
    context_length: int,
    device: torch.device,
    autocast_dtype: torch.dtype | None,
    max_length: int | None = None,
) -> Continuer:
    """`context_length` is `data.max_length` of the training; `max_length` shortens outputs further.

    Raises:
        ConfigError: the search, or an option of it, is one for translations.
    """
    search = build_search(config)
    if not isinstance(config, schema_decoding.SearchConfig) or isinstance(search, MinimumBayesRisk):
        raise ConfigError(
            f"decoding={config.kind.name} is for translation: a language model takes greedy, beam or sample"
        )
    if isinstance(search, Beam) and search.ranking.coverage_penalty:
        raise rules.no_effect("decoding.coverage_penalty", "a language model, which has no source to cover")
    for name in ("max_ratio", "min_ratio"):
        if getattr(config, name) != getattr(schema_decoding.SearchConfig, name):
            raise rules.no_effect(
                f"decoding.{name}",
                "a language model, which has no source (decoding.max_length and min_length limit it)",
            )
    return Continuer(
        model,
        tokenizer,
        search=search,
        max_length=config.max_length if max_length is None else min(max_length, config.max_length),
        context_length=context_length,
        max_tokens=config.max_tokens,
        device=device,
        autocast_dtype=autocast_dtype,
        min_length=config.min_length,
        no_repeat_ngram=config.no_repeat_ngram,
        forbidden=config.forbidden,
        required=config.required if isinstance(config, schema_decoding.BeamConfig) else (),
    )
