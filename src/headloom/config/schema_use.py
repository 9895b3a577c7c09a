"""Options of the commands that use a checkpoint: evaluate.py and translate.py."""

from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from omegaconf import MISSING

from headloom.config import rules
from headloom.config.schema_decoding import DecodingConfig, DecodingEngine, ScoreConfig, check_engine, check_search
from headloom.config.schema_position import StretchConfig
from headloom.config.schema_training import Device, Precision
from headloom.errors import ConfigError


class Split(Enum):
    train = "train"
    valid = "valid"
    test = "test"


@dataclass(kw_only=True)
class EvaluateDataConfig:
    """What evaluate.py scores on: a split of the corpus the model was trained on, or two files."""

    split: Split | None = None
    """Split of the training corpus: train, valid or test. null: test, or the files below."""
    source: Path | None = None
    """Source text to translate in place of the split."""
    target: Path | None = None
    """Reference translation of data.source, line by line."""
    path: Path | None = None
    """Labelled file to score in place of the split, read as the training file was: for classification, regression and
    tagging. For a language model running text, a file or a folder."""
    stride: int | None = None
    """Of a language model: tokens by which the windows lie apart, see task.stride. null: as trained."""
    folder: Path | None = None
    """Folder where corpora are kept and what is scored is prepared. null: the one of the training."""

    def __post_init__(self) -> None:
        rules.together("data.source", self.source, "data.target", self.target)
        rules.at_least("data.stride", self.stride, 1)
        if self.split is not None and self.source is not None:
            raise rules.no_effect("data.split", "data.source, which is scored in place of a split")
        for option in ("split", "source"):
            if self.path is not None and getattr(self, option) is not None:
                raise rules.no_effect(f"data.{option}", "data.path, which is scored in its place")

    @property
    def name(self) -> str:
        """What is scored, in a word: train, valid, test or files."""
        if self.source is not None or self.path is not None:
            return "files"
        return (self.split or Split.test).name


@dataclass(kw_only=True)
class EvaluateConfig:
    """Options of evaluate.py. The architecture, the tokenizer, the corpus and what is not set of decoding come from the
    checkpoint; translations that are there already (hypothesis, reference) need none."""

    checkpoint: Path | None = None
    """The checkpoint, such as outputs/RUN/checkpoints/best.pt; or the folder of a translation model that python -m
    headloom.export format=ctranslate2 wrote, which has no loss."""
    hypothesis: Path | None = None
    """Translations to score in place of a checkpoint, one a line; no model is loaded."""
    reference: Path | None = None
    """Reference translations of hypothesis, line by line."""
    source: Path | None = None
    """What hypothesis translates, line by line: for scores by source length, for comet, and for checkpoints in
    compare."""
    compare: list[Path] = field(default_factory=list)
    """More systems beside the one above, in one table: checkpoints, or files of translations of the same sources.
    Translations are tested against those of the first system by paired bootstrap resampling."""
    resamples: int = 1000
    """Resamples of the paired bootstrap."""
    seed: int = 12345
    """Seed of the resamples; sacreBLEU's own unless set."""
    lengths: list[int] = field(default_factory=lambda: [5, 10, 15, 20, 30, 40, 60])
    """Longest source of each row in the table by source length, in words divided by white space; a last row takes what
    is longer. []: no table."""
    comet: str | None = None
    """A COMET model whose score is added, such as Unbabel/wmt22-comet-da (fetched when it is not there), or its .ckpt
    file; opening one may run code that is in it. Needs the extra headloom[comet]."""
    ensemble: list[Path] = field(default_factory=list)
    """More checkpoints with the same tokenizer: the mean of all their probabilities is searched, and there is no loss.
    For translation."""
    data: EvaluateDataConfig = field(default_factory=EvaluateDataConfig)
    position: StretchConfig = field(default_factory=StretchConfig)
    decoding: DecodingConfig = MISSING
    device: Device = Device.auto
    """Where it computes: auto (a GPU when there is one), cpu or cuda."""
    precision: Precision = Precision.auto
    """Type of the matrix products: auto, float32, bfloat16 or float16 (on a CPU of the weights alone)."""
    output: Path | None = None
    """Folder for evaluation.json, the texts and the plot by source length. null: evaluation/valid, /test or /files in
    the checkpoint's run folder, comparison/ in place of evaluation/ with compare, and nothing written for
    hypothesis."""
    baseline: bool = False
    """Print beside the scores those of a linear model of the same training rows (TF-IDF and logistic regression), tuned
    on the validation rows; for classification, regression and tagging. Needs the extra headloom[baseline]."""

    def __post_init__(self) -> None:
        check_search("evaluate.py", self.decoding)
        if self.decoding.engine is DecodingEngine.ctranslate2:
            check_ctranslate2(self)
        rules.together("hypothesis", self.hypothesis, "reference", self.reference)
        rules.at_least("resamples", self.resamples, 1)
        rules.at_least("seed", self.seed, 1)
        if any(longest < 1 for longest in self.lengths) or sorted(set(self.lengths)) != self.lengths:
            raise ConfigError(f"lengths={self.lengths} must be numbers of words above 0 that grow, such as [10,20,40]")
        if self.hypothesis is None and self.source is not None:
            raise rules.no_effect("source", "no hypothesis")
        if self.hypothesis is not None and self.checkpoint is not None:
            raise ConfigError("hypothesis is scored in place of a checkpoint: to compare the two, name it in compare")
        if self.hypothesis is not None and replace(self.data, folder=None) != EvaluateDataConfig():
            raise rules.no_effect("data", "hypothesis, which is scored on reference")
        if self.hypothesis is not None and self.comet is not None and self.source is None:
            raise ConfigError("comet reads sources too: set source to the file that hypothesis translates")
        if self.ensemble and self.hypothesis is not None:
            raise rules.no_effect("ensemble", "hypothesis, which no model writes here")
        if self.ensemble and self.compare:
            raise ConfigError("ensemble and compare do not go together: score the ensemble, then compare its files")
        systems = [self.hypothesis or self.checkpoint, *self.compare]
        if again := [path for path in self.compare if systems.count(path) > 1]:
            raise ConfigError(f"compare holds {again[0]}, which is there twice: name it once")
        if not self.compare:
            self.refuse_resampling("nothing in compare")

    def refuse_resampling(self, reason: str) -> None:
        """For evaluations without a paired bootstrap.

        Raises:
            ConfigError: an option of it was set; `reason` says with what it has no effect.
        """
        for option in ("resamples", "seed"):
            if (value := getattr(self, option)) != getattr(EvaluateConfig, option):
                raise rules.no_effect(f"{option}={value}", reason)


def check_ctranslate2(config: "EvaluateConfig | TranslateConfig") -> None:
    """Rules of a search by CTranslate2, asked for by decoding.engine or by the export that is named as checkpoint.

    Raises:
        ConfigError: it has not the search, or has no use for an option.
    """
    check_engine(config.decoding)
    if config.precision is not Precision.auto:
        raise rules.no_effect(f"precision={config.precision.name}", "CTranslate2, which computes as it was exported")
    if config.position != StretchConfig():
        raise rules.no_effect("position", "CTranslate2, whose positions are those of the training")
    for option in ("ensemble", "alignments"):
        if getattr(config, option, None):
            raise ConfigError(
                f"CTranslate2 has no {option}: remove it, or name the checkpoint's own file with "
                "decoding.engine=headloom"
            )


class LineFormat(Enum):
    text = "text"
    jsonl = "jsonl"


class OnBadLine(Enum):
    fail = "fail"
    skip = "skip"
    replace = "replace"


@dataclass(kw_only=True)
class TranslateConfig:
    """Options of translate.py; the architecture and the tokenizer come from the checkpoint. Every line of input gets
    one line of output, in order."""

    checkpoint: Path = MISSING
    """The checkpoint, such as outputs/RUN/checkpoints/best.pt; or the folder of a translation model that python -m
    headloom.export format=ctranslate2 wrote."""
    input: Path = Path("-")
    """Text to translate, one sentence a line. -: stdin."""
    output: Path = Path("-")
    """File for the translations, one a line, which appears when it is whole. -: stdout. Of a checkpoint of
    task=embedding a file.npy: an array of float32 with a row for each line."""
    format: LineFormat = LineFormat.text
    """text, or jsonl: lines in and out are JSON objects, whose other fields pass through. A translation model reads
    source and, where there are any, prefix (what the translation begins with), required, forbidden and seed; it adds
    translation, score, log_probability, and n_best where decoding.num_best is above 1. A classifier reads text, and
    second_text where it was trained on two; it adds label and probability, value, or tags. An
    embedding reads text and adds vector."""
    normalize: bool | None = None
    """Of a checkpoint of task=embedding: vectors of length 1, whose product is their cosine. null: yes."""
    on_bad_line: OnBadLine = OnBadLine.fail
    """A line that is not UTF-8 or cannot be used: fail ends with an error that names it, skip gives an empty line (in
    jsonl a field error), replace reads bytes that are not UTF-8 as U+FFFD."""
    alignments: bool = False
    """Adds to jsonl the words that belong together, [source, target] counted from 0: those that attend to each other
    most in the last decoder layer but one. Costs a second pass over each output."""
    ensemble: list[Path] = field(default_factory=list)
    """More checkpoints with the same tokenizer: the mean of all their probabilities is searched."""
    position: StretchConfig = field(default_factory=StretchConfig)
    decoding: DecodingConfig = MISSING
    device: Device = Device.auto
    """Where it computes: auto (a GPU when there is one), cpu or cuda."""
    precision: Precision = Precision.auto
    """Type of the matrix products: auto, float32, bfloat16 or float16 (on a CPU of the weights alone)."""
    buffer_lines: int = 1024
    """Lines read ahead and sorted by length before they are answered; a pause of whoever writes them ends the wait, so
    that at a terminal each line is answered at once."""

    def __post_init__(self) -> None:
        if self.decoding.engine is DecodingEngine.ctranslate2:
            check_ctranslate2(self)
        rules.at_least("buffer_lines", self.buffer_lines, 1)
        if self.alignments and self.format is LineFormat.text:
            raise ConfigError("alignments=true has no effect with format=text: set format=jsonl, or remove it")
        if self.alignments and isinstance(self.decoding, ScoreConfig):
            raise rules.no_effect("alignments=true", "decoding=score")
