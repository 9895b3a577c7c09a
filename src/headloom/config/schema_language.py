"""Options of the decoder-only language model: model, running text and the task on it."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from omegaconf import MISSING

from headloom.config import rules
from headloom.config.schema_data import DEFAULT_VALID_SHARE, DataConfig, DataKind
from headloom.config.schema_model import ModelConfig, ModelKind
from headloom.config.schema_parts import AttentionConfig, BlockSparseConfig
from headloom.config.schema_text import TaskConfig, TaskKind, TokenizerConfig
from headloom.errors import ConfigError


@dataclass(kw_only=True)
class LmConfig(ModelConfig):
    """Decoder only: Radford et al. (2018), section 3.1."""

    kind: ModelKind = ModelKind.lm
    """The family; set by model=."""
    tie_output: bool = True
    """The output matrix is the embedding: Press and Wolf (2017)."""


class Batching(Enum):
    blocks = "blocks"  # stretches of one length, over the ends of documents
    documents = "documents"  # a document a row
    packed = "packed"  # documents behind each other in a row, none seeing another


class BlockOrder(Enum):
    shuffled = "shuffled"
    random = "random"
    sequential = "sequential"


class Documents(Enum):
    file = "file"
    blank_line = "blank_line"
    line = "line"


@dataclass(kw_only=True)
class RunningTextConfig(DataConfig):
    """Running text."""

    max_length: int = 256
    """Longest row in tokens: of a block, of packed documents, or of one document, which is cut where it is longer."""
    batching: Batching = Batching.blocks
    """What a row of a batch is. blocks: data.max_length tokens that lie together, over the ends of documents (an end
    shows as eos, and the next one begins after bos); attention needs no mask, so that PyTorch's Flash kernel is
    eligible. documents: one document. packed: documents behind each other until the row is full, none of which sees
    another; exact as documents are and without their padding, but attention takes a mask, which the Flash kernel does
    not."""
    order: BlockOrder | None = None
    """How blocks are cut: shuffled (from another place in each epoch, in another order, every token once), random
    (each begins anywhere: some tokens come twice, some not) or sequential (from the first to the last). null:
    shuffled."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order is not None and self.batching is not Batching.blocks:
            raise rules.no_effect("data.order", f"data.batching={self.batching.name}")


@dataclass(kw_only=True)
class AliceConfig(RunningTextConfig):
    """Alice's Adventures in Wonderland, in English (public domain)."""

    kind: DataKind = DataKind.alice
    """The corpus; set by data=."""
    path: Path | None = None
    """A copy of brotli-1.2.1.tar.gz, or of its alice29.txt, on this machine. null: fetched once."""
    valid_share: float = 0.1
    """Share at the end of the text that is validated on, in (0, 1)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.share("data.valid_share", self.valid_share, with_zero=False)


@dataclass(kw_only=True)
class TinyShakespeareConfig(RunningTextConfig):
    """40,000 lines of Shakespeare's plays, one megabyte (public domain). Karpathy (2015)."""

    kind: DataKind = DataKind.tiny_shakespeare
    """The corpus; set by data=."""
    path: Path | None = None
    """A copy of its input.txt on this machine. null: fetched once."""
    valid_share: float = 0.1
    """Share at the end of the text that is validated on, in (0, 1)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.share("data.valid_share", self.valid_share, with_zero=False)


@dataclass(kw_only=True)
class TextConfig(RunningTextConfig):
    """Text of the user's, plain or .gz: a file, or the .txt and .txt.gz files of a folder by the order of names."""

    kind: DataKind = DataKind.text
    """The corpus; set by data=."""
    path: Path = MISSING
    """Training text: a file or a folder."""
    valid_path: Path | None = None
    """Validation text: a file or a folder. null: split off, see valid_share."""
    test_path: Path | None = None
    """Test text: a file or a folder. null: no test set."""
    documents: Documents = Documents.file
    """What ends a document: file (the end of a file), blank_line or line. Blank lines, and the line ends of line,
    belong to no document; all else of the text does, so that it can be written back as it was."""
    valid_share: float | None = None
    """Share at the end of the training text that is validated on, in (0, 1), cut where a document begins; of
    documents=file between two characters. null: 0.01 when no validation file is given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.share("data.valid_share", self.valid_share, with_zero=False)
        if self.valid_share is not None and self.valid_path is not None:
            raise rules.no_effect("data.valid_share", "data.valid_path")

    @property
    def share_split_off(self) -> float | None:
        """`valid_share` with its default; None when there is a validation file."""
        if self.valid_path is not None:
            return None
        return DEFAULT_VALID_SHARE if self.valid_share is None else self.valid_share


class LanguageHeadline(Enum):
    loss = "loss"  # nats a token, lower is better
    bits_per_character = "bits_per_character"  # lower is better; of models with different tokenizers too
    accuracy = "accuracy"  # share of tokens with the highest logit


@dataclass(kw_only=True)
class LanguageModelingConfig(TaskConfig):
    """Each token of a text, given those before it."""

    kind: TaskKind = TaskKind.language_modeling
    """The task; set by task=."""
    label_smoothing: float = 0.0
    """Share of the target probability spread over the vocabulary, in [0, 1): Szegedy et al. (2016), section 7."""
    headline: LanguageHeadline = LanguageHeadline.loss
    """The validation metric that decides checkpoints/best.pt: loss, bits_per_character or accuracy."""
    stride: int | None = None
    """Tokens by which the windows of data.max_length tokens that a text is scored in lie apart, from 1 to
    data.max_length; each token is scored once, in the first window that holds it. Small: every token has much before
    it, at more cost. null: data.max_length, windows that do not overlap."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.share("task.label_smoothing", self.label_smoothing)
        rules.at_least("task.stride", self.stride, 1)


def check_language_modeling(
    data: DataConfig, task: LanguageModelingConfig, tokenizer: TokenizerConfig, attention: AttentionConfig
) -> None:
    """Rules between groups.

    Raises:
        ConfigError: one is broken.
    """
    if task.stride is not None and task.stride > data.max_length:
        raise ConfigError(
            f"task.stride={task.stride} passes data.max_length={data.max_length}: windows would leave tokens out; "
            "lower it"
        )
    packed = isinstance(data, RunningTextConfig) and data.batching is Batching.packed
    if packed and isinstance(attention, BlockSparseConfig):
        raise ConfigError(
            "attention=block_sparse counts its blocks from the start of a row, and with data.batching=packed documents "
            "begin inside one: choose data.batching=documents or attention=window"
        )
    sampling = {"dropout": 0.0, "sampling_alpha": None}
    for option, off in sampling.items():
        if getattr(tokenizer, option, off) != off:
            raise rules.no_effect(
                f"tokenizer.{option}={getattr(tokenizer, option)}", "task=language_modeling, which encodes a text once"
            )
