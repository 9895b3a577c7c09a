"""`check=lr`: what it leaves, and what it does not."""

import json
import logging
import math
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from headloom import run
from headloom.build_training import build_learning_rate, peak_rate, rate_option
from headloom.config.schema import Check
from headloom.config.schema_schedule import ConstantConfig, NoamConfig
from headloom.errors import ConfigError

LR = {"check": Check.lr}


@pytest.fixture(scope="module")
def config(make_config, tmp_path_factory):
    return make_config(tmp_path_factory.mktemp("data"), trainer={"max_steps": 30})


@pytest.fixture(scope="module")
def checked(config, tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("checked")
    assert math.isnan(run.train(replace(config, **LR), run_dir))
    return run_dir


def test_it_draws_the_curve_and_writes_its_values(checked):
    values = json.loads((checked / "learning_rates.json").read_text(encoding="utf-8"))
    assert len(values["learning_rates"]) == len(values["losses"]) == len(values["smoothed_losses"]) <= 30
    assert values["learning_rates"][0] == pytest.approx(1e-6)
    assert values["falls_fastest_at"] < values["fall_ends_at"]
    assert values["suggestion"].startswith("optimizer.lr=")
    with Image.open(checked / "learning_rates.png") as picture:
        assert picture.size == (880, 550)


def test_it_leaves_nothing_that_a_run_goes_on_from(config, checked):
    """A training in its folder is the one that it would be elsewhere."""
    assert {path.name for path in checked.iterdir()} == {"learning_rates.json", "learning_rates.png"}
    short = replace(config, trainer=replace(config.trainer, max_steps=2))
    after = [run.train(replace(short, resume="auto"), folder) for folder in (checked, checked.parent / "elsewhere")]
    assert after[0] == after[1]


def test_a_run_that_goes_on_cannot_be_checked(config):
    with pytest.raises(ConfigError, match="check=lr begins with a fresh model: remove resume=auto"):
        replace(config, resume="auto", **LR)


def test_too_few_updates_suggest_nothing(config, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        run.train(replace(config, trainer=replace(config.trainer, max_steps=3), **LR), tmp_path)
    assert "over 3 updates the loss did not fall at any rate" in caplog.text
    assert "and allow 100 with trainer.max_steps" in caplog.text
    assert json.loads((tmp_path / "learning_rates.json").read_text(encoding="utf-8"))["suggestion"] is None


def test_the_option_that_is_suggested_makes_that_peak(make_config):
    assert rate_option(make_config(schedule=ConstantConfig()), 0.0123) == "optimizer.lr=0.012"
    noam = make_config(schedule=NoamConfig(factor=2.0))
    option, _, factor = rate_option(noam, 0.01).partition("=")
    assert option == "schedule.factor"
    assert peak_rate(make_config(schedule=NoamConfig(factor=float(factor)))) == pytest.approx(0.01, rel=0.05)
    assert build_learning_rate(noam)(3999) == pytest.approx(peak_rate(noam))
