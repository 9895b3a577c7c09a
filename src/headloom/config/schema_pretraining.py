"""Options of what an encoder learns from text without labels: hidden tokens, and vectors of sentences."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from headloom.config import rules
from headloom.config.schema_data import DataConfig
from headloom.config.schema_labelled import ClassifierConfig
from headloom.config.schema_language import Batching, RunningTextConfig
from headloom.config.schema_model import ModelConfig
from headloom.config.schema_text import TaskConfig, TaskKind, TokenizerConfig
from headloom.errors import ConfigError


class MaskedHeadline(Enum):
    loss = "loss"  # nats a hidden token, lower is better
    accuracy = "accuracy"


@dataclass(kw_only=True)
class MaskedLanguageModelingConfig(TaskConfig):
    """Hidden tokens of a text, given those on both sides: Devlin et al. (2019), section 3.1. Its checkpoints are what
    other runs begin with (warm_start)."""

    kind: TaskKind = TaskKind.masked_language_modeling
    """The task; set by task=."""
    probability: float = 0.15
    """Share of the tokens of each row that are to be predicted, in (0, 1]; one at least."""
    mask_share: float = 0.8
    """Share of these that are replaced by the mask, in [0, 1]."""
    random_share: float = 0.1
    """Share of these that are replaced by a random piece, in [0, 1]; the rest stays as it is."""
    whole_words: bool = False
    """Choose words, all of whose pieces are to be predicted, in place of pieces. A word begins at a blank; in scripts
    that write none, each character that a piece begins with."""
    headline: MaskedHeadline = MaskedHeadline.loss
    """The validation metric that decides checkpoints/best.pt: loss or accuracy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.share("task.probability", self.probability, with_zero=False, with_one=True)
        rules.share("task.mask_share", self.mask_share, with_one=True)
        rules.share("task.random_share", self.random_share, with_one=True)
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise ConfigError(
                f"task.mask_share={self.mask_share} and task.random_share={self.random_share} pass 1 in sum: lower one"
            )


class EmbeddingHeadline(Enum):
    spearman = "spearman"
    loss = "loss"  # lower is better


@dataclass(kw_only=True)
class EmbeddingConfig(TaskConfig):
    """A vector for each sentence, near to those of sentences like it: SimCSE, Gao et al. (2021). Of running text each
    document is read twice, with different dropout (section 3); of pairs, such as data=tsv, what is in one line belongs
    together (section 4). What a sentence is told from are the others of its batch, so that the loss depends on
    trainer.max_tokens; more batches an update, or more processes, add none."""

    kind: TaskKind = TaskKind.embedding
    """The task; set by task=."""
    temperature: float = 0.05
    """What cosines are divided by, above 0; small: the most similar negatives count most."""
    sts: Path | None = None
    """File of two texts and how alike they are (STS), to validate on by Spearman's correlation: tab-separated in this
    order with or without a line of names, or JSON Lines with text, second_text and label; plain or .gz. null: none."""
    headline: EmbeddingHeadline | None = None
    """The validation metric that decides checkpoints/best.pt: spearman or loss. null: spearman where task.sts is given,
    else loss."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.above_zero("task.temperature", self.temperature)
        if self.headline is None:
            self.headline = EmbeddingHeadline.loss if self.sts is None else EmbeddingHeadline.spearman
        if self.headline is EmbeddingHeadline.spearman and self.sts is None:
            raise ConfigError("task.headline=spearman needs sentences to compare: set task.sts, or task.headline=loss")


PRETRAINING_TASKS = {"masked_language_modeling": MaskedLanguageModelingConfig, "embedding": EmbeddingConfig}
"""The choices of task= that need no labels and train an encoder."""


def check_embedding(model: ModelConfig, data: DataConfig, tokenizer: TokenizerConfig) -> None:
    """Rules between groups.

    Raises:
        ConfigError: one is broken.
    """
    assert isinstance(model, ClassifierConfig)
    task = "task=embedding"
    if model.head_dropout is not None:
        raise rules.no_effect(f"model.head_dropout={model.head_dropout}", f"{task}, which has no such head")
    if not isinstance(data, RunningTextConfig):
        return
    if data.batching is not Batching.documents:
        raise ConfigError(
            f"{task} reads a document as a sentence, not data.batching={data.batching.name}: "
            "set data.batching=documents, and data.documents=line where each line is one"
        )
    if not model.drops:
        raise ConfigError(f"{task} tells a sentence read twice by its dropout, and model.dropout=0: raise it")
    _refuse_sampling(tokenizer, task)


def check_masked_language_modeling(model: ModelConfig, data: DataConfig, tokenizer: TokenizerConfig) -> None:
    """Rules between groups.

    Raises:
        ConfigError: one is broken.
    """
    task = "task=masked_language_modeling"
    _refuse_head(model, task)
    if isinstance(data, RunningTextConfig) and data.batching is Batching.packed:
        raise ConfigError(f"data.batching=packed is for task=language_modeling: with {task} choose blocks or documents")
    _refuse_sampling(tokenizer, task)


def _refuse_sampling(tokenizer: TokenizerConfig, task: str) -> None:
    for option, off in {"dropout": 0.0, "sampling_alpha": None}.items():
        if getattr(tokenizer, option, off) != off:
            raise rules.no_effect(
                f"tokenizer.{option}={getattr(tokenizer, option)}", f"{task} on running text, which is encoded once"
            )


def _refuse_head(model: ModelConfig, task: str) -> None:
    assert isinstance(model, ClassifierConfig)
    for option in ("pooling", "head_dropout"):
        value = getattr(model, option)
        if value is not None:
            shown = value.name if isinstance(value, Enum) else value
            raise rules.no_effect(f"model.{option}={shown}", f"{task}, which has no such head")
