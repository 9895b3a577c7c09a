"""A configuration survives as plain values, in a checkpoint and in config.yaml."""

import copy
from pathlib import Path

import pytest
import yaml

from headloom.config import saved, schema
from headloom.config.overrides import check
from headloom.config.schema import TrainConfig
from headloom.errors import CheckpointError

CONF = Path(__file__).parents[2] / "conf"


@pytest.fixture(scope="module")
def config() -> TrainConfig:
    schema.register()
    line = ["position=rope", "norm=post", "tokenizer=unigram", "optimizer.lr=1e-4", "data.target_language=no"]
    (config,) = check(line, conf=CONF, name="train", base=Path.cwd()).configs
    assert isinstance(config, TrainConfig)
    return config


def test_what_is_saved_is_what_is_read(config: TrainConfig) -> None:
    assert saved.from_plain(saved.to_plain(config)) == config


def test_an_option_without_a_default_is_read_too(config: TrainConfig) -> None:
    """A corpus of the user's own has one: the path of its pairs."""
    mine = copy.copy(config)
    mine.data = schema.TsvConfig(path=Path("/a.tsv"))
    assert saved.from_plain(saved.to_plain(mine)) == mine


def test_any_yaml_reader_reads_the_saved_file(config: TrainConfig) -> None:
    """B85: PyYAML takes 1e-4 for text, and an unquoted no for false."""
    plain = yaml.safe_load(saved.to_yaml(config))
    assert plain["optimizer"]["lr"] == 1e-4
    assert plain["norm"]["epsilon"] == 1e-5
    assert plain["data"]["target_language"] == "no"
    assert plain["data"]["folder"] == str(Path.cwd() / "data")
    assert saved.from_plain(plain) == config


def test_plain_values_are_plain(config: TrainConfig) -> None:
    """What a checkpoint holds is read with `weights_only=True`, which refuses paths and enums."""

    def kinds(value: object) -> set[type]:
        if isinstance(value, dict):
            return set().union(*(kinds(v) for v in value.values()))
        if isinstance(value, list):
            return set().union(*map(kinds, value))
        return {type(value)}

    assert kinds(saved.to_plain(config)) <= {str, int, float, bool, type(None)}


def test_an_option_newer_than_the_checkpoint_takes_its_default(config: TrainConfig) -> None:
    plain = saved.to_plain(config)
    del plain["trainer"]["min_steps"]
    assert saved.from_plain(plain) == config


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("model", "num_experts", 8, "sets model.num_experts, which this version does not have"),
        ("position", "kind", "spiral", "has position=spiral; this version knows none, sinusoidal, learned, rope"),
        ("model", "d_model", "wide", "model.d_model"),
        ("model", "num_heads", 7, "model.d_model=256 is not a multiple of model.num_heads=7"),
    ],
)
def test_what_this_version_does_not_know_is_refused(
    config: TrainConfig, section: str, key: str, value: object, message: str
) -> None:
    plain = copy.deepcopy(saved.to_plain(config))
    plain[section][key] = value
    with pytest.raises(CheckpointError) as error:
        saved.from_plain(plain)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
