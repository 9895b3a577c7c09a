"""Options of how text is cut into ids, and of what is trained on it."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from omegaconf import MISSING

from headloom.config import rules
from headloom.errors import ConfigError

FEWEST_PIECES_WITH_BYTES = 261
"""Four special pieces, a byte each, and one to learn; the training counts them itself, after reading the text."""


class TokenizerKind(Enum):
    bpe = "bpe"
    unigram = "unigram"
    char = "char"
    byte = "byte"


class Normalization(Enum):
    nmt_nfkc = "nmt_nfkc"  # NFKC with some more kinds of space and control characters folded
    nmt_nfkc_cf = "nmt_nfkc_cf"  # that, and case folded
    nfkc = "nfkc"
    identity = "identity"


@dataclass(kw_only=True)
class TokenizerConfig:
    """How text becomes ids. train.py trains it on the training text where no model is given."""

    kind: TokenizerKind = MISSING
    """The kind; set by tokenizer=."""

    def __post_init__(self) -> None:
        rules.follows_group("tokenizer", "kind", self)

    @property
    def shares_one_vocabulary(self) -> bool:
        """True when source and target ids mean the same pieces."""
        return True

    @property
    def samples(self) -> bool:
        """True when segmentations are drawn in training."""
        return False


class SampledSide(Enum):
    both = "both"
    source = "source"
    target = "target"


@dataclass(kw_only=True)
class SubwordConfig(TokenizerConfig):
    """What BPE and unigram have in common: a SentencePiece model of either kind."""

    vocab_size: int = 8000
    """Pieces of a tokenizer that is trained here; the size of a given model is its own."""
    joint: bool = True
    """One tokenizer for both languages; false: one a side."""
    source_model: Path | None = None
    """SentencePiece model file for the source, or for both sides when joint. null: train one."""
    target_model: Path | None = None
    """SentencePiece model file for the target; only with joint=false. null: train one."""
    normalization: Normalization | None = None
    """Unicode folding before pieces are cut: nmt_nfkc, nmt_nfkc_cf (which makes small letters of capitals, for texts
    that are only read), nfkc or identity. null: nmt_nfkc, but identity for task=language_modeling, whose text is to
    come back as it was. A given model has its own, and so has it what the next two options say."""
    character_coverage: float = 1.0
    """Share of the text's characters that get a piece of their own, in (0, 1]."""
    byte_fallback: bool = True
    """Spell a character that has no piece as its UTF-8 bytes, so that no text is unknown."""
    sampled_side: SampledSide = SampledSide.both
    """Of a translation, the side whose segmentations are drawn anew in training: both, source or target (as BPE-dropout
    of Provilkov et al. (2020), section 3, may be)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.at_least("tokenizer.vocab_size", self.vocab_size, 8)
        is_trained = self.source_model is None or not (self.joint or self.target_model)
        if is_trained and self.byte_fallback and self.vocab_size < FEWEST_PIECES_WITH_BYTES:
            raise ConfigError(
                f"tokenizer.vocab_size={self.vocab_size} has no room for the 256 bytes of tokenizer.byte_fallback: "
                "it needs those, 4 specials and a piece for each character of the text; raise it, or set "
                "tokenizer.byte_fallback=false"
            )
        rules.share("tokenizer.character_coverage", self.character_coverage, with_zero=False, with_one=True)
        if self.joint and self.target_model is not None:
            raise rules.no_effect("tokenizer.target_model", "tokenizer.joint=true")

    @property
    def shares_one_vocabulary(self) -> bool:
        return self.joint

    def _check_sampled_side(self, option: str) -> None:
        if self.sampled_side is not SampledSide.both and not self.samples:
            raise rules.no_effect(f"tokenizer.sampled_side={self.sampled_side.name}", f"tokenizer.{option}")


@dataclass(kw_only=True)
class BpeConfig(SubwordConfig):
    """Byte-pair encoding: Sennrich et al. (2016)."""

    kind: TokenizerKind = TokenizerKind.bpe
    """The kind; set by tokenizer=."""
    dropout: float = 0.0
    """Probability that a merge is skipped in training, in [0, 1): BPE-dropout, Provilkov et al. (2020)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.share("tokenizer.dropout", self.dropout)
        self._check_sampled_side("dropout=0")

    @property
    def samples(self) -> bool:
        return self.dropout > 0


@dataclass(kw_only=True)
class UnigramConfig(SubwordConfig):
    """Unigram language model over pieces: Kudo (2018)."""

    kind: TokenizerKind = TokenizerKind.unigram
    """The kind; set by tokenizer=."""
    sampling_alpha: float | None = None
    """Smoothing of the segmentations sampled in training, above 0 (smaller: more varied): Kudo (2018), section 3.3.
    null: the best one always."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.above_zero("tokenizer.sampling_alpha", self.sampling_alpha)
        self._check_sampled_side("sampling_alpha=null")

    @property
    def samples(self) -> bool:
        return self.sampling_alpha is not None


@dataclass(kw_only=True)
class CharConfig(TokenizerConfig):
    """One piece a character."""

    kind: TokenizerKind = TokenizerKind.char
    """The kind; set by tokenizer=."""
    joint: bool = True
    """One tokenizer for both languages; false: one a side."""

    @property
    def shares_one_vocabulary(self) -> bool:
        return self.joint


@dataclass(kw_only=True)
class ByteConfig(TokenizerConfig):
    """One piece a byte of UTF-8: 256 pieces and the special ones, nothing is trained."""

    kind: TokenizerKind = TokenizerKind.byte
    """The kind; set by tokenizer=."""


class TaskKind(Enum):
    translation = "translation"
    classification = "classification"
    regression = "regression"
    tagging = "tagging"
    language_modeling = "language_modeling"
    masked_language_modeling = "masked_language_modeling"
    embedding = "embedding"


class SamplingDecay(Enum):
    constant = "constant"
    linear = "linear"
    exponential = "exponential"
    inverse_sigmoid = "inverse_sigmoid"


class Headline(Enum):
    bleu = "bleu"  # sacreBLEU, higher is better
    chrf = "chrf"  # sacreBLEU, higher is better
    loss = "loss"  # nats a target token, lower is better; nothing is decoded


@dataclass(kw_only=True)
class TaskConfig:
    """What the model is trained for."""

    kind: TaskKind = MISSING
    """The task; set by task=."""

    def __post_init__(self) -> None:
        rules.follows_group("task", "kind", self)


@dataclass(kw_only=True)
class TranslationConfig(TaskConfig):
    """Each source line has one target line."""

    kind: TaskKind = TaskKind.translation
    """The task; set by task=."""
    label_smoothing: float = 0.1
    """Share of the target probability spread over the vocabulary, in [0, 1): Szegedy et al. (2016), section 7."""
    headline: Headline = Headline.bleu
    """The validation metric that decides checkpoints/best.pt: bleu, chrf or loss."""
    r_drop: float = 0.0
    """Weight of the divergence of two passes with different dropout: R-Drop, Liang et al. (2021), equation 4, whose
    alpha it is (5 for translation there); the mean of the two losses is taken. Twice the cost. 0: one pass."""
    scheduled_sampling: float = 0.0
    """Probability, in [0, 1], that the decoder reads its own likeliest token in training in place of the true one:
    Bengio et al. (2015), by two passes as Mihaylova and Martins (2019), section 3. Costs a pass without gradient. It is
    what task.sampling_decay goes to. 0: the true tokens."""
    sampling_decay: SamplingDecay = SamplingDecay.constant
    """How the probability rises to task.scheduled_sampling, by the share of true tokens (Bengio et al. 2015, section
    2.4) after i updates, with k = task.sampling_updates: constant (there from the start), linear (1 - i/k), exponential
    (exp(-i/k)) or inverse_sigmoid (k / (k + exp(i/k)), half at about k ln k)."""
    sampling_updates: int | None = None
    """k of task.sampling_decay, in updates. null: of constant, which needs none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.share("task.label_smoothing", self.label_smoothing)
        rules.at_least("task.r_drop", self.r_drop, 0)
        rules.share("task.scheduled_sampling", self.scheduled_sampling, with_one=True)
        rules.at_least("task.sampling_updates", self.sampling_updates, 1)
        decays = self.sampling_decay is not SamplingDecay.constant
        if decays and self.scheduled_sampling == 0:
            raise rules.no_effect(f"task.sampling_decay={self.sampling_decay.name}", "task.scheduled_sampling=0")
        if decays and self.sampling_updates is None:
            raise ConfigError(
                f"task.sampling_decay={self.sampling_decay.name} needs a number of updates: set task.sampling_updates"
            )
        if not decays and self.sampling_updates is not None:
            raise rules.no_effect(f"task.sampling_updates={self.sampling_updates}", "task.sampling_decay=constant")
