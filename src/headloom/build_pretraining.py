"""From configuration to what an encoder needs to learn from text without labels: batches, model, task."""

from torch import nn

from headloom.build_language import EVALUATION_TOKENS, build_text_sampler
from headloom.build_parts import Parts
from headloom.config import schema_language
from headloom.config import schema_pretraining as schema
from headloom.config.schema import TrainConfig
from headloom.config.schema_labelled import ClassifierConfig
from headloom.data.masking import (
    MaskedBatches,
    MaskedEvaluationBatches,
    MaskedRows,
    Masker,
    Masking,
    mask_id,
)
from headloom.data.text_store import TextTokens
from headloom.data.tokenizer_base import Tokenizer
from headloom.models.masked import MaskedLanguageModel, MaskEmbedding
from headloom.tasks.masked_language_modeling import MaskedLanguageModelingTask


def build_masked_batches(config: TrainConfig, tokens: TextTokens, tokenizer: Tokenizer) -> MaskedBatches:
    """Endless batches of rows of `data.max_length` tokens at most, what leads a row counted."""
    rows = MaskedRows(tokens, tokenizer, _masker(config, tokenizer), pad_to_multiple=config.trainer.pad_to_multiple)
    sampler = build_text_sampler(config, tokens, length=config.data.max_length - 1)
    return MaskedBatches(rows, sampler, seed=config.seed)


def build_masked_evaluation(config: TrainConfig, tokens: TextTokens, tokenizer: Tokenizer) -> MaskedEvaluationBatches:
    """Every stretch of a text once, within documents unless blocks cross their ends."""
    data = config.data
    assert isinstance(data, schema_language.RunningTextConfig)
    return MaskedEvaluationBatches(
        tokens,
        MaskedRows(tokens, tokenizer, _masker(config, tokenizer)),
        length=data.max_length - 1,
        max_tokens=max(config.trainer.max_tokens, EVALUATION_TOKENS),
        within_documents=data.batching is not schema_language.Batching.blocks,
    )


def _masker(config: TrainConfig, tokenizer: Tokenizer) -> Masker:
    task = config.task
    assert isinstance(task, schema.MaskedLanguageModelingConfig)
    return Masker(
        tokenizer,
        Masking(
            probability=task.probability,
            mask_share=task.mask_share,
            random_share=task.random_share,
            whole_words=task.whole_words,
        ),
    )


def build_masked_model(config: TrainConfig, tokenizer: Tokenizer) -> MaskedLanguageModel:
    """A freshly initialised model."""
    model = config.model
    assert isinstance(model, ClassifierConfig)
    parts = Parts(config)
    table = nn.Embedding(tokenizer.vocab_size, model.d_model)
    encoder = parts.encoder(table, num_layers=model.num_layers)
    plain = encoder.embedding
    encoder.embedding = MaskEmbedding(
        table,
        plain.positional,
        scaled=plain.scale != 1.0,
        dropout=plain.dropout.probability,
        mask_id=mask_id(tokenizer),
    )
    built = MaskedLanguageModel(encoder, nn.Linear(model.d_model, tokenizer.vocab_size, bias=False))
    parts.initialise(built, num_residuals=2 * model.num_layers)
    built.output.weight = table.weight
    return built


def build_masked_task(config: TrainConfig) -> MaskedLanguageModelingTask:
    assert isinstance(config.task, schema.MaskedLanguageModelingConfig)
    return MaskedLanguageModelingTask(headline=config.task.headline.name)
