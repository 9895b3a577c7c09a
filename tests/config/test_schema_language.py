"""Rules of the language model's options: each refusal is one line that names the option (B85)."""

from typing import Any

import pytest

from headloom.config.schema import CHOICES, TrainConfig
from headloom.config.schema_language import (
    Batching,
    BlockOrder,
    LanguageModelingConfig,
    LmConfig,
    RunningTextConfig,
    TextConfig,
)
from headloom.config.schema_model import ModelConfig
from headloom.config.schema_parts import BlockSparseConfig
from headloom.config.schema_position import LearnedConfig
from headloom.config.schema_text import BpeConfig, CharConfig, TranslationConfig, UnigramConfig
from headloom.errors import ConfigError

DEFAULTS = {
    "model": "lm",
    "position": "rope",
    "norm": "pre",
    "feed_forward": "relu",
    "attention": "full",
    "tokenizer": "char",
    "task": "language_modeling",
    "data": "alice",
    "optimizer": "adam",
    "schedule": "constant",
    "decoding": "sample",
}


def config(**parts: Any) -> TrainConfig:
    return TrainConfig(**{group: CHOICES[group][choice]() for group, choice in DEFAULTS.items()} | parts)


@pytest.mark.parametrize("data", ["alice", "tiny_shakespeare", "text"])
def test_a_language_model_trains_on_running_text(data):
    options = {"path": "x"} if data == "text" else {}
    assert isinstance(config(data=CHOICES["data"][data](**options)).data, RunningTextConfig)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"model": CHOICES["model"]["seq2seq"]()}, "task=language_modeling needs model=lm, not model=seq2seq"),
        ({"data": CHOICES["data"]["copy"]()}, "task=language_modeling needs running text, such as data=text"),
        ({"task": TranslationConfig()}, "task=translation needs model=seq2seq, not model=lm"),
        ({"tokenizer": CharConfig(joint=False)}, "tokenizer.joint=false has no effect with model=lm"),
        ({"tokenizer": BpeConfig(dropout=0.1)}, "tokenizer.dropout=0.1 has no effect with task=language_modeling"),
        ({"tokenizer": UnigramConfig(sampling_alpha=0.2)}, "tokenizer.sampling_alpha=0.2 has no effect"),
        ({"task": LanguageModelingConfig(stride=257)}, "task.stride=257 passes data.max_length=256: windows would"),
        ({"position": LearnedConfig(max_length=64)}, "data.max_length=256 passes the table of position=learned"),
        (
            {"data": TextConfig(path="x", batching=Batching.packed), "attention": BlockSparseConfig()},
            "attention=block_sparse counts its blocks from the start of a row",
        ),
    ],
)
def test_parts_that_do_not_go_together_are_refused(parts, message):
    with pytest.raises(ConfigError) as failure:
        config(**parts)
    assert str(failure.value).startswith(message)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize(
    ("schema", "values", "option"),
    [
        (LmConfig, {"num_layers": 0}, "model.num_layers=0"),
        (LanguageModelingConfig, {"stride": 0}, "task.stride=0"),
        (LanguageModelingConfig, {"label_smoothing": 1.0}, "task.label_smoothing=1.0"),
        (TextConfig, {"path": "x", "valid_share": 1.0}, "data.valid_share=1.0"),
        (TextConfig, {"path": "x", "valid_share": 0.1, "valid_path": "y"}, "data.valid_share has no effect"),
        (
            TextConfig,
            {"path": "x", "batching": Batching.packed, "order": BlockOrder.random},
            "data.order has no effect",
        ),
        (CHOICES["data"]["alice"], {"valid_share": 0.0}, "data.valid_share=0.0"),
        (CHOICES["data"]["tiny_shakespeare"], {"valid_share": 1.5}, "data.valid_share=1.5"),
    ],
)
def test_a_value_out_of_its_range_is_refused_by_name(schema, values, option):
    with pytest.raises(ConfigError) as failure:
        schema(**values)
    assert str(failure.value).startswith(option)


def test_outputs_may_be_longer_than_a_table_of_positions():
    """Their context slides."""
    data = TextConfig(path="x", max_length=32)
    assert config(position=LearnedConfig(max_length=32), data=data).decoding.max_length == 256


def test_a_family_has_as_many_layers_as_a_size_says():
    assert {issubclass(schema, ModelConfig) for schema in CHOICES["model"].values()} == {True}
    assert all("num_layers" in vars(schema()) for schema in CHOICES["model"].values())
