"""check=resume proves that a resumed run is the run that never stopped, on the configuration at hand."""

import logging
import math
from dataclasses import replace

import pytest
import torch

from headloom import run
from headloom.config.schema import Check
from headloom.config.schema_optimizer import AdamWConfig
from headloom.config.schema_schedule import CosineConfig
from headloom.config.schema_training import ActivationCheckpointing, Precision
from headloom.errors import ConfigError
from headloom.resume_check import differing


def test_a_configuration_is_proved_and_nothing_is_left(make_config, tmp_path, caplog):
    """B54: dropout, accumulation, an average, recomputed activations, bfloat16, and the schedule of the whole run."""
    config = make_config(
        tmp_path / "data",
        model={"dropout": 0.1, "num_encoder_layers": 1, "num_decoder_layers": 1},
        optimizer=AdamWConfig(lr=0.01),
        schedule=CosineConfig(warmup_steps=3),
        trainer={
            "max_steps": 9,
            "max_tokens": 90,
            "accumulation": 2,
            "average_decay": 0.9,
            "precision": Precision.bfloat16,
            "activation_checkpointing": ActivationCheckpointing.full,
        },
    )
    with caplog.at_level(logging.INFO):
        assert math.isnan(run.train(replace(config, check=Check.resume), tmp_path / "run"))
    (message,) = [message for message in caplog.messages if message.startswith("9 = ")]
    assert message.startswith("9 = 4 + 5 = 3 + 3 + 3 updates: ")
    assert message.endswith(" are the same bit for bit")
    for section in ("model", "average", "optimizer", "random", "data", "best", "guard", "interval"):
        assert f" {section}," in message
    assert not (tmp_path / "run" / "check_resume").exists()


def test_a_run_too_short_to_stop_in_is_refused(make_config, tmp_path):
    config = replace(make_config(tmp_path / "data", trainer={"max_steps": 2}), check=Check.resume)
    with pytest.raises(ConfigError, match=r"check=resume stops in between: set trainer\.max_steps to 3 or more, not 2"):
        run.train(config, tmp_path / "run")


def test_every_bit_of_a_checkpoint_is_compared():
    """But the seconds it took, and how it was started."""

    def contents(**changed):
        values = {"weight": torch.tensor([1.0, math.nan]), "half": torch.ones(2, dtype=torch.bfloat16), "step": 3}
        values |= {"loss": math.nan, "elapsed_seconds": 1.0, "list": [1, (2, None)], "config": {"resume": "auto"}}
        return values | changed

    assert differing(contents(), contents(elapsed_seconds=2.0, config={"resume": "never"})) == []
    for changed in (
        {"weight": torch.tensor([1.0, 2.0])},
        {"weight": torch.tensor([-0.0, math.nan])},
        {"half": torch.ones(2)},
        {"step": 3.0},
        {"loss": None},
        {"list": [1, (2, 3)]},
        {"more": 1},
    ):
        assert len(differing(contents(), contents(**changed))) == 1
