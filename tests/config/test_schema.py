"""Rules between options, and ranges (B85)."""

import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from headloom.config.schema import CHOICES, TrainConfig
from headloom.config.schema_data import ParallelConfig, SyntheticConfig, TsvConfig
from headloom.config.schema_decoding import BeamConfig, GreedyConfig, SampleConfig
from headloom.config.schema_model import Initialization, Seq2SeqConfig, Tying
from headloom.config.schema_optimizer import AdafactorConfig, AdamConfig, AdamWConfig, MuonConfig, SgdConfig
from headloom.config.schema_parts import BlockSparseConfig, DeepNormConfig, FullAttentionConfig, MoeConfig, WindowConfig
from headloom.config.schema_position import LearnedConfig, RopeConfig, Scaling, SinusoidalConfig, T5Config
from headloom.config.schema_schedule import (
    CosineConfig,
    DecayShape,
    InverseSqrtConfig,
    LinearConfig,
    NoamConfig,
    PlateauConfig,
    WsdConfig,
)
from headloom.config.schema_text import BpeConfig, TranslationConfig, UnigramConfig
from headloom.config.schema_training import (
    ActivationCheckpointing,
    AttentionKernel,
    Device,
    Engine,
    Precision,
    TrainerConfig,
)
from headloom.config.schema_use import EvaluateDataConfig, Split
from headloom.errors import ConfigError

DEFAULTS = {
    "model": "seq2seq",
    "position": "sinusoidal",
    "norm": "pre",
    "feed_forward": "relu",
    "attention": "full",
    "tokenizer": "bpe",
    "task": "translation",
    "data": "copy",
    "optimizer": "adam",
    "schedule": "constant",
    "decoding": "greedy",
}


def config(**parts: Any) -> TrainConfig:
    return TrainConfig(**{group: CHOICES[group][choice]() for group, choice in DEFAULTS.items()} | parts)


@pytest.mark.parametrize(
    ("schema", "values", "option"),
    [
        (Seq2SeqConfig, {"dropout": 1.0}, "model.dropout=1.0"),
        (TrainerConfig, {"rank_timeout": 0.0}, "trainer.rank_timeout=0.0"),
        (TrainerConfig, {"num_threads": 5000}, "trainer.num_threads=5000 is more than 1024"),
        (
            TrainerConfig,
            {"engine": Engine.fsdp, "precision": Precision.float16, "device": Device.cuda},
            "trainer.engine=fsdp cannot be used with trainer.precision=float16",
        ),
        (Seq2SeqConfig, {"dropout": -0.1}, "model.dropout=-0.1"),
        (Seq2SeqConfig, {"attention_dropout": math.nan}, "model.attention_dropout=nan"),
        (Seq2SeqConfig, {"num_decoder_layers": 0}, "model.num_decoder_layers=0"),
        (Seq2SeqConfig, {"num_heads": 0}, "model.num_heads=0"),
        (Seq2SeqConfig, {"d_model": 64, "num_heads": 3}, "model.d_model=64 is not a multiple of model.num_heads=3"),
        (Seq2SeqConfig, {"num_kv_heads": 3}, "model.num_kv_heads=3 does not divide model.num_heads=8"),
        (LearnedConfig, {"max_length": 0}, "position.max_length=0"),
        (RopeConfig, {"base": math.inf}, "position.base=inf"),
        (RopeConfig, {"share": 0.0}, "position.share=0.0"),
        (RopeConfig, {"factor": 4.0}, "position.factor has no effect with position.scaling=none"),
        (RopeConfig, {"scaling": Scaling.yarn}, "position.scaling=yarn needs position.factor"),
        (RopeConfig, {"scaling": Scaling.ntk, "factor": 0.5}, "position.factor=0.5"),
        (
            RopeConfig,
            {"scaling": Scaling.linear, "factor": 2.0, "original_length": 9},
            "position.original_length has no effect with position.scaling=linear",
        ),
        (SinusoidalConfig, {"base": 0.0}, "position.base=0.0"),
        (SinusoidalConfig, {"scale": -1.0}, "position.scale=-1.0"),
        (T5Config, {"num_buckets": 2}, "position.num_buckets=2"),
        (T5Config, {"num_buckets": 7}, "position.num_buckets=7 is odd"),
        (T5Config, {"max_distance": 16}, "position.max_distance=16 is not above half of position.num_buckets=32"),
        (Seq2SeqConfig, {"token_dropout": 1.0}, "model.token_dropout=1.0"),
        (Seq2SeqConfig, {"stochastic_depth": 1.0}, "model.stochastic_depth=1.0"),
        (Seq2SeqConfig, {"residual_scale": 0.0}, "model.residual_scale=0.0"),
        (FullAttentionConfig, {"soft_cap": 0.0}, "attention.soft_cap=0.0"),
        (WindowConfig, {"width": 0}, "attention.width=0"),
        (BlockSparseConfig, {"block": 0}, "attention.block=0"),
        (BlockSparseConfig, {"num_local": -1}, "attention.num_local=-1"),
        (BlockSparseConfig, {"num_global": -1}, "attention.num_global=-1"),
        (MoeConfig, {"num_experts": 1}, "feed_forward.num_experts=1"),
        (MoeConfig, {"num_experts": 2, "num_chosen": 3}, "feed_forward.num_chosen=3 passes feed_forward.num_experts=2"),
        (MoeConfig, {"capacity_factor": 0.0}, "feed_forward.capacity_factor=0.0"),
        (MoeConfig, {"load_balance_weight": -1.0}, "feed_forward.load_balance_weight=-1.0"),
        (MoeConfig, {"router_z_weight": math.nan}, "feed_forward.router_z_weight=nan"),
        (BpeConfig, {"dropout": 1.0}, "tokenizer.dropout=1.0"),
        (BpeConfig, {"vocab_size": 260}, "tokenizer.vocab_size=260 has no room for the 256 bytes"),
        (
            UnigramConfig,
            {"vocab_size": 9, "joint": False, "source_model": "a.model"},
            "tokenizer.vocab_size=9 has no room",
        ),
        (BpeConfig, {"target_model": "a.model"}, "tokenizer.target_model has no effect with tokenizer.joint=true"),
        (UnigramConfig, {"sampling_alpha": 0.0}, "tokenizer.sampling_alpha=0.0"),
        (TranslationConfig, {"label_smoothing": 1.0}, "task.label_smoothing=1.0"),
        (SyntheticConfig, {"max_symbols": 3, "min_length": 4}, "data.max_symbols=3 is below data.min_length=4"),
        (AdamConfig, {"lr": math.nan}, "optimizer.lr=nan"),
        (AdamConfig, {"lr": 0.0}, "optimizer.lr=0.0"),
        (AdamConfig, {"lr": math.inf}, "optimizer.lr=inf"),
        (AdamConfig, {"beta2": 1.0}, "optimizer.beta2=1.0"),
        (CosineConfig, {"final_share": 1.5}, "schedule.final_share=1.5"),
        (NoamConfig, {"warmup_steps": 0}, "schedule.warmup_steps=0"),
        (InverseSqrtConfig, {"warmup_steps": 0}, "schedule.warmup_steps=0"),
        (LinearConfig, {"warmup_share": 1.01}, "schedule.warmup_share=1.01"),
        (LinearConfig, {"warmup_share": 0.1, "warmup_steps": 5}, "schedule.warmup_share=0.1 has no effect with"),
        (WsdConfig, {"decay_share": 0.0}, "schedule.decay_share=0.0"),
        (WsdConfig, {"decay_shape": DecayShape.exponential}, "schedule.decay_shape=exponential never reaches"),
        (PlateauConfig, {"factor": 1.0}, "schedule.factor=1.0"),
        (PlateauConfig, {"patience": 0}, "schedule.patience=0"),
        (PlateauConfig, {"final_share": 1.0}, "schedule.final_share=1.0"),
        (AdamWConfig, {"weight_decay": -0.1}, "optimizer.weight_decay=-0.1"),
        (AdamWConfig, {"beta1": 1.0}, "optimizer.beta1=1.0"),
        (AdafactorConfig, {"clip_threshold": 0.5}, "optimizer.clip_threshold=0.5"),
        (AdafactorConfig, {"beta2_exponent": 0.0}, "optimizer.beta2_exponent=0.0"),
        (AdafactorConfig, {"epsilon": 0.0}, "optimizer.epsilon=0.0"),
        (MuonConfig, {"momentum": 1.0}, "optimizer.momentum=1.0"),
        (SgdConfig, {"momentum": 1.0}, "optimizer.momentum=1.0"),
        (SgdConfig, {"momentum": 0.0, "nesterov": True}, "optimizer.nesterov has no effect with optimizer.momentum=0"),
        (TrainerConfig, {"max_steps": 0}, "trainer.max_steps=0"),
        (TrainerConfig, {"max_steps": -1}, "trainer.max_steps=-1"),
        (TrainerConfig, {"average_decay": 1.0}, "trainer.average_decay=1.0"),
        (TrainerConfig, {"average_last": 1}, "trainer.average_last=1"),
        (TrainerConfig, {"average_last": 4}, "trainer.average_last=4 asks for more checkpoints than are kept: raise"),
        (TrainerConfig, {"average_best": 2}, "trainer.average_best=2 asks for more checkpoints than are kept: raise"),
        (
            TrainerConfig,
            {"average_best": 2, "average_last": 2, "keep_best_checkpoints": 2},
            "trainer.average_last and trainer.average_best both say what average.pt is",
        ),
        (TrainerConfig, {"keep_best_checkpoints": -1}, "trainer.keep_best_checkpoints=-1"),
        (TrainerConfig, {"min_steps": -1, "patience": 1}, "trainer.min_steps=-1"),
        (TrainerConfig, {"min_steps": 5}, "trainer.min_steps=5 has no effect with trainer.patience=null"),
        (TrainerConfig, {"patience": 2, "evaluate_every": None}, "trainer.patience has no effect"),
        (TrainerConfig, {"device": Device.cpu, "precision": Precision.float16}, "trainer.precision=float16"),
        (TrainerConfig, {"compile": "maybe"}, "trainer.compile=maybe is not known: set it to true, false or auto"),
        (TrainerConfig, {"checkpoint_every": 2}, "trainer.checkpoint_every has no effect with trainer.activation_ch"),
        (
            TrainerConfig,
            {"checkpoint_every": 1, "activation_checkpointing": ActivationCheckpointing.selective},
            "trainer.checkpoint_every=1 is too small",
        ),
        (TrainerConfig, {"device": Device.cpu, "attention": AttentionKernel.varlen}, "trainer.attention=varlen needs"),
        (TrainerConfig, {"spike_deviations": 0.0}, "trainer.spike_deviations=0.0"),
        (BeamConfig, {"beam_size": 0}, "decoding.beam_size=0"),
        (BeamConfig, {"length_penalty": math.nan}, "decoding.length_penalty=nan"),
        (BeamConfig, {"length_penalty": 300.0}, "decoding.length_penalty=300.0"),
        (BeamConfig, {"length_penalty": -300.0}, "decoding.length_penalty=-300.0"),
        (BeamConfig, {"coverage_penalty": 1e308}, "decoding.coverage_penalty=1e+308"),
        (BeamConfig, {"max_ratio": 1e308}, "decoding.max_ratio=1e+308"),
        (SampleConfig, {"temperature": 1e-300}, "decoding.temperature=1e-300"),
        (SampleConfig, {"temperature": 1e300}, "decoding.temperature=1e+300"),
        (SampleConfig, {"repetition_penalty": 1e-320}, "decoding.repetition_penalty=1e-320"),
        (GreedyConfig, {"repetition_penalty": 0.0}, "decoding.repetition_penalty=0.0"),
        (BeamConfig, {"required": ["a", ""]}, "decoding.required holds an empty phrase: remove it"),
        (BeamConfig, {"forbidden": [""]}, "decoding.forbidden holds an empty phrase: remove it"),
    ],
)
def test_a_value_out_of_its_range_is_refused_by_name(schema: Any, values: dict[str, Any], option: str) -> None:
    """B85."""
    with pytest.raises(ConfigError) as error:
        schema(**values)
    assert str(error.value).startswith(option)
    assert ": " in str(error.value)  # and what to do


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        (Seq2SeqConfig, {"dropout": 0.0, "num_kv_heads": 1, "num_encoder_layers": 1}),
        (CosineConfig, {"final_share": 1.0, "warmup_steps": 0}),
        (TrainerConfig, {"max_steps": 1, "patience": 1, "max_grad_norm": None}),
        (BpeConfig, {"character_coverage": 1.0}),
    ],
)
def test_the_widest_values_of_a_range_are_kept_as_they_are(schema: Any, values: dict[str, Any]) -> None:
    taken = schema(**values)
    assert {name: getattr(taken, name) for name in values} == values


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"position": RopeConfig(), "model": Seq2SeqConfig(d_model=24, num_heads=8)},
            "position=rope needs an even head width",
        ),
        (
            {"position": SinusoidalConfig(), "model": Seq2SeqConfig(d_model=7, num_heads=1)},
            "position=sinusoidal needs an even",
        ),
        (
            {
                "position": RopeConfig(scaling=Scaling.ntk, factor=2.0, share=0.1),
                "model": Seq2SeqConfig(d_model=64, num_heads=8),
            },
            "position.scaling=ntk needs at least 4 channels of a head that turn",
        ),
        (
            {"norm": DeepNormConfig(), "model": Seq2SeqConfig(initialization=Initialization.normal)},
            "norm=deepnorm scales xavier's initial weights: set model.initialization=xavier, not normal",
        ),
        (
            {"norm": DeepNormConfig(), "model": Seq2SeqConfig(residual_scale=0.5)},
            "model.residual_scale=0.5 has no effect with norm=deepnorm",
        ),
        ({"position": LearnedConfig(max_length=100)}, "data.max_length=256 passes the table of position=learned"),
        ({"tokenizer": BpeConfig(joint=False)}, "model.tying=all needs one vocabulary for both sides"),
        (
            {"schedule": NoamConfig(), "optimizer": AdamConfig(lr=1e-3)},
            "optimizer.lr=0.001 has no effect with schedule=noam",
        ),
        (
            {"trainer": TrainerConfig(attention=AttentionKernel.flex)},
            "trainer.attention=flex drops no attention weights, and model.attention_dropout is 0.1",
        ),
        (
            {"schedule": PlateauConfig(), "trainer": TrainerConfig(evaluate_every=None)},
            "schedule=plateau follows validations",
        ),
        (
            {"schedule": PlateauConfig(patience=3), "trainer": TrainerConfig(patience=3)},
            "schedule.patience=3 has no effect with trainer.patience=3",
        ),
        (
            {"optimizer": MuonConfig(), "trainer": TrainerConfig(engine=Engine.fsdp)},
            "trainer.engine=fsdp cannot be used with optimizer=muon, which needs whole matrices",
        ),
        (
            {"optimizer": AdafactorConfig(), "trainer": TrainerConfig(engine=Engine.fsdp)},
            "trainer.engine=fsdp cannot be used with optimizer=adafactor",
        ),
        ({"resume": ""}, "resume is empty"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 10**20}, "seed=100000000000000000000 is too large"),
    ],
)
def test_options_that_contradict_each_other_are_refused(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(**parts)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "parts",
    [
        {"tokenizer": BpeConfig(joint=False), "model": Seq2SeqConfig(tying=Tying.decoder)},
        {"schedule": NoamConfig()},
        {"position": RopeConfig()},
    ],
)
def test_options_that_agree_are_kept_as_they_are(parts: dict[str, Any]) -> None:
    """Each has a neighbour above that contradicts it."""
    given = deepcopy(parts)
    taken = config(**parts)
    assert {group: getattr(taken, group) for group in given} == given


def test_the_option_that_records_a_choice_follows_its_group() -> None:
    rope = CHOICES["position"]["rope"]()
    with pytest.raises(ConfigError, match=r"position\.kind=none contradicts position=rope: choose position=none"):
        replace(rope, kind=CHOICES["position"]["none"]().kind)


def test_validation_pairs_come_from_files_or_from_a_share_and_not_from_both() -> None:
    files = {"source": "a", "target": "b"}
    assert ParallelConfig(**files).share_split_off == 0.01  # type: ignore[arg-type]
    assert TsvConfig(path="a", valid_share=0.2).share_split_off == 0.2  # type: ignore[arg-type]
    assert TsvConfig(path="a", valid_path="b").share_split_off is None  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"data\.valid_share has no effect with validation files"):
        TsvConfig(path="a", valid_path="b", valid_share=0.1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"data\.valid_source needs data\.valid_target beside it"):
        ParallelConfig(**files, valid_source="c")  # type: ignore[arg-type]


@pytest.mark.parametrize(("group", "choice"), [(g, c) for g, choices in CHOICES.items() for c in choices])
def test_the_name_of_a_choice_is_the_one_that_its_dataclass_records(group: str, choice: str) -> None:
    """Group, key path and section of the saved configuration are one word."""
    node = OmegaConf.structured(CHOICES[group][choice])
    assert node["placement" if group == "norm" else "kind"].name == choice


def test_few_pieces_are_taken_without_bytes_and_beside_given_models() -> None:
    assert BpeConfig(vocab_size=261)
    with pytest.raises(ConfigError, match=r"tokenizer\.vocab_size=260 has no room .* and a piece for each character"):
        BpeConfig(vocab_size=260)
    assert BpeConfig(vocab_size=8, byte_fallback=False)
    assert UnigramConfig(vocab_size=8, source_model=Path("a.model"))
    assert BpeConfig(vocab_size=8, joint=False, source_model=Path("a.model"), target_model=Path("b.model"))


def test_a_split_beside_two_files_is_refused_since_one_of_them_would_not_be_scored():
    files = {"source": Path("a.en"), "target": Path("a.de")}
    assert EvaluateDataConfig(**files).name == "files"
    assert EvaluateDataConfig().name == "test"
    with pytest.raises(ConfigError, match=r"data\.split has no effect with data\.source"):
        EvaluateDataConfig(split=Split.valid, **files)
