"""Every option of Headloom: its type, its default and its meaning.

The schema files are the manual: an option that is not in them does not exist. The
YAML files under conf/ choose among these options and add none. docs/options.md
is generated from here (options.py).

A part with options of its own is a group: one dataclass a choice, named under
`CHOICES` as on the command line (`position=rope position.base=500000`). A choice without
options is an enum (`norm.kind=rms`).
"""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path, PurePath
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from headloom.config import rules
from headloom.config.families import check_family
from headloom.config.part_rules import check_attention_kernel, check_parts
from headloom.config.schema_average import AverageConfig
from headloom.config.schema_data import (
    CopyConfig,
    DataConfig,
    HomeAssistantConfig,
    JsonlConfig,
    Multi30kConfig,
    ParallelConfig,
    ReverseConfig,
    TatoebaConfig,
    TsvConfig,
)
from headloom.config.schema_decoding import (
    BeamConfig,
    DecodingConfig,
    DecodingEngine,
    GreedyConfig,
    MbrConfig,
    SampleConfig,
    ScoreConfig,
    check_search,
)
from headloom.config.schema_export import ExportConfig
from headloom.config.schema_labelled import LABELLED_DATA, LABELLED_TASKS, ClassifierConfig
from headloom.config.schema_language import (
    AliceConfig,
    LanguageModelingConfig,
    LmConfig,
    TextConfig,
    TinyShakespeareConfig,
)
from headloom.config.schema_model import ModelConfig, Seq2SeqConfig
from headloom.config.schema_optimizer import (
    AdafactorConfig,
    AdamConfig,
    AdamWConfig,
    MuonConfig,
    OptimizerConfig,
    SgdConfig,
)
from headloom.config.schema_parts import (
    ATTENTIONS,
    FEED_FORWARDS,
    NORMS,
    AttentionConfig,
    FeedForwardConfig,
    FullAttentionConfig,
    NormConfig,
)
from headloom.config.schema_position import POSITIONS, LearnedConfig, PositionConfig
from headloom.config.schema_pretraining import PRETRAINING_TASKS
from headloom.config.schema_schedule import (
    ConstantConfig,
    CosineConfig,
    InverseSqrtConfig,
    LinearConfig,
    NoamConfig,
    PlateauConfig,
    ScheduleConfig,
    WsdConfig,
)
from headloom.config.schema_text import (
    BpeConfig,
    ByteConfig,
    CharConfig,
    TaskConfig,
    TokenizerConfig,
    TranslationConfig,
    UnigramConfig,
)
from headloom.config.schema_training import (
    Engine,
    TrainerConfig,
)
from headloom.config.schema_use import EvaluateConfig, TranslateConfig
from headloom.errors import ConfigError

RESUME_WORDS = ("never", "auto")

CHOICES: dict[str, dict[str, type[Any]]] = {
    "model": {"seq2seq": Seq2SeqConfig, "lm": LmConfig, "classifier": ClassifierConfig},
    "position": POSITIONS,
    "norm": NORMS,
    "feed_forward": FEED_FORWARDS,
    "attention": ATTENTIONS,
    "tokenizer": {"bpe": BpeConfig, "unigram": UnigramConfig, "char": CharConfig, "byte": ByteConfig},
    "task": {
        "translation": TranslationConfig,
        "language_modeling": LanguageModelingConfig,
        **LABELLED_TASKS,
        **PRETRAINING_TASKS,
    },
    "data": {
        "homeassistant": HomeAssistantConfig,
        "multi30k": Multi30kConfig,
        "tatoeba": TatoebaConfig,
        "parallel": ParallelConfig,
        "tsv": TsvConfig,
        "jsonl": JsonlConfig,
        "copy": CopyConfig,
        "reverse": ReverseConfig,
        "alice": AliceConfig,
        "tiny_shakespeare": TinyShakespeareConfig,
        "text": TextConfig,
        **LABELLED_DATA,
    },
    "optimizer": {
        "adam": AdamConfig,
        "adamw": AdamWConfig,
        "adafactor": AdafactorConfig,
        "muon": MuonConfig,
        "sgd": SgdConfig,
    },
    "schedule": {
        "noam": NoamConfig,
        "inverse_sqrt": InverseSqrtConfig,
        "cosine": CosineConfig,
        "linear": LinearConfig,
        "wsd": WsdConfig,
        "constant": ConstantConfig,
        "plateau": PlateauConfig,
    },
    "decoding": {
        "greedy": GreedyConfig,
        "beam": BeamConfig,
        "sample": SampleConfig,
        "mbr": MbrConfig,
        "score": ScoreConfig,
    },
}
"""Group, choice, dataclass. `trainer`, `size` and `experiment` are groups of presets: they set options, and have
none."""

DISCRIMINATORS = {group: "placement" if group == "norm" else "kind" for group in CHOICES}
"""The option of each group that records the choice."""

YOUNGER_GROUPS = {"attention": "full"}
"""Groups that the first checkpoints do not have, and the choice that those were trained with."""


class Check(Enum):
    none = "none"
    lr = "lr"  # see checks.py
    resume = "resume"  # see resume_check.py


@dataclass(kw_only=True)
class TrainConfig:
    """Options of train.py."""

    model: ModelConfig = MISSING
    position: PositionConfig = MISSING
    norm: NormConfig = MISSING
    feed_forward: FeedForwardConfig = MISSING
    attention: AttentionConfig = MISSING
    tokenizer: TokenizerConfig = MISSING
    task: TaskConfig = MISSING
    data: DataConfig = MISSING
    optimizer: OptimizerConfig = MISSING
    schedule: ScheduleConfig = MISSING
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    decoding: DecodingConfig = MISSING
    seed: int = 1
    """Seeds initialisation, order of the data and dropout."""
    resume: str = "never"
    """never: a fresh run, refused in a folder that holds checkpoints. auto: go on from checkpoints/last.pt of the
    run's folder when there is one. A path, to a checkpoint or to a run's folder: go on from there."""
    warm_start: Path | None = None
    """A checkpoint, or a run's folder (its best.pt), that a fresh run begins with: weights of the same name and shape
    are taken, with its tokenizer, and the log says which were not. It may be one of another family: the encoder has the
    same names in all that have one. A run that is resumed goes on from its own checkpoint. null: random weights."""

    check: Check = Check.none
    """What to do in place of a training. lr: raise the rate over 100 updates of a fresh model; its loss is drawn in
    learning_rates.png in the run's folder, and the log suggests a rate. resume: train 20 updates at a stretch, as 10 +
    10 and as 7 + 7 + 6, and refuse where anything differs. none: train."""

    def __post_init__(self) -> None:
        rules.seed("seed", self.seed)
        if self.check is not Check.none and self.resume != "never":
            raise ConfigError(f"check={self.check.name} begins with a fresh model: remove resume={self.resume}")
        if not self.resume:
            raise ConfigError("resume is empty: set it to never, auto or the path of a checkpoint or run folder")
        if self.warm_start is not None and self.resume not in RESUME_WORDS:
            raise rules.no_effect(f"warm_start={self.warm_start}", f"resume={self.resume}, which has all its weights")
        check_search("train.py", self.decoding)
        if self.decoding.engine is DecodingEngine.ctranslate2:
            raise ConfigError(
                "decoding.engine=ctranslate2 searches with a finished model: remove it, and set it for evaluate.py and "
                "translate.py"
            )
        if self.attention == MISSING:  # made in Python; a command line has its default from conf/
            self.attention = FullAttentionConfig()
        check_parts(self.model, self.position, self.norm)
        check_attention_kernel(self.trainer.attention, self.model)
        self._check_table()
        check_family(self.model, self.task, self.data, self.tokenizer, self.attention)
        if self.trainer.engine is Engine.fsdp and isinstance(self.optimizer, AdafactorConfig | MuonConfig):
            raise ConfigError(
                f"trainer.engine=fsdp cannot be used with optimizer={self.optimizer.kind.name}, which needs whole "
                "matrices where each process has a part: use optimizer=adamw, or trainer.engine=ddp"
            )
        if isinstance(self.schedule, NoamConfig) and self.optimizer.lr is not None:
            raise ConfigError(
                f"optimizer.lr={self.optimizer.lr} has no effect with schedule=noam, which computes its own rate: "
                "remove it, or scale the rate with schedule.factor"
            )
        if isinstance(self.schedule, PlateauConfig):
            self._check_plateau(self.schedule.patience)

    def _check_plateau(self, patience: int) -> None:
        if self.trainer.evaluate_every is None:
            raise ConfigError("schedule=plateau follows validations: set trainer.evaluate_every to a number of steps")
        if self.trainer.patience is not None and self.trainer.patience <= patience:
            raise ConfigError(
                f"schedule.patience={patience} has no effect with trainer.patience={self.trainer.patience}, which ends "
                "the run first: make trainer.patience larger"
            )

    def _check_table(self) -> None:
        if isinstance(self.position, LearnedConfig):
            for section in ("data", "decoding") if isinstance(self.model, Seq2SeqConfig) else ("data",):
                longest = getattr(self, section).max_length
                if longest > self.position.max_length:
                    raise ConfigError(
                        f"{section}.max_length={longest} passes the table of position=learned: "
                        f"lower it or raise position.max_length={self.position.max_length}"
                    )


ROOTS: dict[str, type[Any]] = {"train": TrainConfig, "evaluate": EvaluateConfig, "translate": TranslateConfig}
"""Entry point, dataclass of its options."""

MODULES: dict[str, type[Any]] = {"headloom.average": AverageConfig, "headloom.export": ExportConfig}
"""Command of the package, dataclass of its options."""


def register() -> None:
    """Tell Hydra the schemas, under the names that the YAML files start from, and YAML how a path is written."""
    yaml.add_multi_representer(PurePath, lambda dumper, path: dumper.represent_str(str(path)))
    store = ConfigStore.instance()
    for name, root in ROOTS.items():
        store.store(group="schema", name=name, node=root)
    store.store(group="schema", name="trainer", node=TrainerConfig)
    for group, choices in CHOICES.items():
        for choice, schema in choices.items():
            store.store(group=f"schema/{group}", name=choice, node=schema)
