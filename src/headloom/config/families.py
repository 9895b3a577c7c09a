"""Which model, task, data and tokenizer speak of one kind of thing."""

from headloom.config import rules
from headloom.config.schema_data import DataConfig
from headloom.config.schema_labelled import (
    ClassifierConfig,
    LabelledTextConfig,
    PoolingKind,
    TaggingConfig,
    WholeTextConfig,
)
from headloom.config.schema_language import (
    LanguageModelingConfig,
    LmConfig,
    RunningTextConfig,
    check_language_modeling,
)
from headloom.config.schema_model import ModelConfig, ModelKind, Seq2SeqConfig, Tying
from headloom.config.schema_parts import AttentionConfig
from headloom.config.schema_pretraining import (
    EmbeddingConfig,
    MaskedLanguageModelingConfig,
    check_embedding,
    check_masked_language_modeling,
)
from headloom.config.schema_text import SampledSide, SubwordConfig, TaskConfig, TokenizerConfig, TranslationConfig
from headloom.errors import ConfigError


def check_family(
    model: ModelConfig, task: TaskConfig, data: DataConfig, tokenizer: TokenizerConfig, attention: AttentionConfig
) -> None:
    """Each suits the others.

    Raises:
        ConfigError: one does not; the message says which choice would.
    """
    family, fits, wanted = _needs(task, data)
    if model.kind is not family:
        raise ConfigError(
            f"task={task.kind.name} needs model={family.name}, not model={model.kind.name}: choose model={family.name}"
        )
    if not fits:
        raise ConfigError(f"task={task.kind.name} needs {wanted}; data={data.kind.name} is something else")
    match model:
        case Seq2SeqConfig(tying=Tying.all) if not tokenizer.shares_one_vocabulary:
            raise ConfigError(
                "model.tying=all needs one vocabulary for both sides: set tokenizer.joint=true or model.tying=decoder"
            )
        case ClassifierConfig() | LmConfig() if not tokenizer.shares_one_vocabulary:
            raise rules.no_effect("tokenizer.joint=false", f"model={model.kind.name}, which has one side")
        case ClassifierConfig(pooling=PoolingKind() as pooling) if isinstance(task, TaggingConfig):
            raise rules.no_effect(f"model.pooling={pooling.name}", "task=tagging: each word has an answer")
    if isinstance(task, WholeTextConfig) and task.num_segmentations > 1 and not tokenizer.samples:
        raise ConfigError(
            f"task.num_segmentations={task.num_segmentations} needs segmentations that are drawn: set "
            "tokenizer.dropout with tokenizer=bpe, or tokenizer.sampling_alpha with tokenizer=unigram"
        )
    if isinstance(task, TranslationConfig):
        _check_r_drop(task, model)
    elif isinstance(tokenizer, SubwordConfig) and tokenizer.sampled_side is not SampledSide.both:
        raise rules.no_effect(
            f"tokenizer.sampled_side={tokenizer.sampled_side.name}", f"task={task.kind.name}, which has one side"
        )
    if isinstance(task, EmbeddingConfig):
        check_embedding(model, data, tokenizer)
    if isinstance(task, MaskedLanguageModelingConfig):
        check_masked_language_modeling(model, data, tokenizer)
    if isinstance(task, LanguageModelingConfig):
        check_language_modeling(data, task, tokenizer, attention)


def _check_r_drop(task: TranslationConfig, model: ModelConfig) -> None:
    if task.r_drop > 0 and not model.drops:
        raise rules.no_effect(f"task.r_drop={task.r_drop}", "model.dropout=0: both passes would be one")


def _needs(task: TaskConfig, data: DataConfig) -> tuple[ModelKind, bool, str]:
    """The family that learns `task`, whether `data` is of the right kind, and that kind in words."""
    match task:
        case TranslationConfig():
            has_pairs = not isinstance(data, LabelledTextConfig | RunningTextConfig)
            return ModelKind.seq2seq, has_pairs, "pairs of lines, such as data=tsv"
        case LanguageModelingConfig():
            return ModelKind.lm, isinstance(data, RunningTextConfig), "running text, such as data=text"
        case EmbeddingConfig():
            fits = not isinstance(data, LabelledTextConfig)
            return ModelKind.classifier, fits, "pairs of lines, such as data=tsv, or running text, such as data=text"
        case MaskedLanguageModelingConfig():
            return ModelKind.classifier, isinstance(data, RunningTextConfig), "running text, such as data=text"
        case TaggingConfig():
            has_tags = isinstance(data, LabelledTextConfig) and data.has_tags
            return ModelKind.classifier, has_tags, "tagged words, such as data=conll"
        case _:
            has_labels = isinstance(data, LabelledTextConfig) and not data.has_tags
            return ModelKind.classifier, has_labels, "labelled text, such as data=labelled"
