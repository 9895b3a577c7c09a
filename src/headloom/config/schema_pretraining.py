"""Options of what an encoder learns from text without labels: hidden tokens, and vectors of sentences."""

from dataclasses import dataclass
from enum import Enum

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


PRETRAINING_TASKS = {"masked_language_modeling": MaskedLanguageModelingConfig}
"""The choices of task= that make an encoder for other tasks."""


def check_masked_language_modeling(model: ModelConfig, data: DataConfig, tokenizer: TokenizerConfig) -> None:
    """Rules between groups.

    Raises:
        ConfigError: one is broken.
    """
    task = "task=masked_language_modeling"
    _refuse_head(model, task)
    if isinstance(data, RunningTextConfig) and data.batching is Batching.packed:
        raise ConfigError(f"data.batching=packed is for task=language_modeling: with {task} choose blocks or documents")
    for option, off in {"dropout": 0.0, "sampling_alpha": None}.items():
        if getattr(tokenizer, option, off) != off:
            raise rules.no_effect(
                f"tokenizer.{option}={getattr(tokenizer, option)}", f"{task}, which encodes a text once"
            )


def _refuse_head(model: ModelConfig, task: str) -> None:
    assert isinstance(model, ClassifierConfig)
    for option in ("pooling", "head_dropout"):
        value = getattr(model, option)
        if value is not None:
            shown = value.name if isinstance(value, Enum) else value
            raise rules.no_effect(f"model.{option}={shown}", f"{task}, which has no such head")
