"""Positions of a trained checkpoint, stretched to read farther than it was trained to.

Shapes: T positions, D model width.
"""

from pathlib import Path

import pytest
import torch

from headloom import run
from headloom.config.schema_decoding import GreedyConfig
from headloom.config.schema_position import LearnedConfig, RopeConfig, Scaling, SinusoidalConfig, StretchConfig
from headloom.config.schema_training import Device, Precision
from headloom.config.schema_use import EvaluateConfig, TranslateConfig
from headloom.errors import ConfigError
from headloom.nn.positional import Learned, Rotary
from headloom.nn.rope_scaling import DynamicNtk, Unscaled, Yarn
from headloom.training.checkpoint import load_checkpoint
from headloom.work.families import load_trained

FLOAT32 = {"device": Device.cpu, "precision": Precision.float32}
YARN = StretchConfig(scaling=Scaling.yarn, factor=4.0)
POSITIONS = {"rope": RopeConfig(), "learned": LearnedConfig(max_length=20)}


@pytest.fixture(scope="module")
def checkpoints(make_config, tmp_path_factory) -> dict[str, Path]:
    """Two updates with rope and with a learned table, for sequences of up to 20 tokens."""
    found = {}
    for name, position in POSITIONS.items():
        folder = tmp_path_factory.mktemp(name)
        config = make_config(
            folder / "data",
            position=position,
            data={"max_length": 20, "num_train": 20},
            trainer={"max_steps": 2, "average_decay": 0.5},
        )
        run.train(config, folder / "run")
        found[name] = folder / "run" / "checkpoints" / "last.pt"
    return found


def load(path: Path, position: StretchConfig | None = None):
    return load_trained(path, device="cpu", precision="float32", position=position)


def test_rope_takes_another_scaling_and_sources_as_much_longer(checkpoints):
    trained = load(checkpoints["rope"], YARN)
    rotaries = {module for module in trained.model.modules() if isinstance(module, Rotary)}
    assert [(type(r.scaling), r.scaling.factor, r.scaling.original_length) for r in rotaries] == [(Yarn, 4.0, 20)]
    assert trained.config.data.max_length == 80
    dynamic = load(checkpoints["rope"], StretchConfig(scaling=Scaling.dynamic_ntk, original_length=7))
    (scaling,) = {module.scaling for module in dynamic.model.modules() if isinstance(module, Rotary)}
    assert (type(scaling), scaling.factor, scaling.original_length) == (DynamicNtk, 1.0, 7)


def test_a_learned_table_is_interpolated(checkpoints):
    """Both ends stay, what lies between is straight; of the averaged weights, which are the ones in use."""
    short, long = (load(checkpoints["learned"], stretch) for stretch in (None, StretchConfig(max_length=39)))
    tables = [
        [module.weight_TD for module in trained.model.modules() if isinstance(module, Learned)]
        for trained in (short, long)
    ]
    assert len(tables[0]) == 2
    for short_TD, long_TD in zip(*tables, strict=True):
        assert long_TD.shape == (39, 16)
        torch.testing.assert_close(long_TD[::2], short_TD)
        torch.testing.assert_close(long_TD[1::2], (short_TD[1:] + short_TD[:-1]) / 2)
    assert long.model.max_length == long.config.data.max_length == 39
    averages = load_checkpoint(checkpoints["learned"])["average"]["weights"]
    assert torch.equal(tables[0][0], averages["encoder.embedding.positional.weight_TD"])


@pytest.mark.parametrize(("name", "position"), [("rope", YARN), ("learned", StretchConfig(max_length=39))])
def test_translate_and_evaluate_read_farther(checkpoints, tmp_path, caplog, name, position):
    """A source of 30 tokens is cut at 20 as trained, and not when positions are stretched."""
    source = tmp_path / "input.txt"
    source.write_text(" ".join("abcde"[i % 5] for i in range(15)) + "\n", encoding="utf-8", newline="\n")
    for stretch, num_cut in ((StretchConfig(), 1), (position, 0)):
        output = tmp_path / "output.txt"
        caplog.clear()
        run.translate(
            TranslateConfig(
                checkpoint=checkpoints[name],
                input=source,
                output=output,
                position=stretch,
                decoding=GreedyConfig(max_length=20),
                **FLOAT32,
            )
        )
        assert output.read_bytes().count(b"\n") == 1
        assert sum("longer than 20 tokens" in message for message in caplog.messages) == num_cut
    results = [
        run.evaluate(
            EvaluateConfig(
                checkpoint=checkpoints[name],
                position=stretch,
                decoding=GreedyConfig(max_length=20),
                output=tmp_path / "scores",
                **FLOAT32,
            )
        )["loss"]
        for stretch in (StretchConfig(), position)
    ]
    assert results[0] != results[1]


@pytest.mark.parametrize(
    ("position", "stretch", "message"),
    [
        (
            SinusoidalConfig(),
            YARN,
            "position.scaling=yarn has no effect with a checkpoint that was trained with position=sinusoidal",
        ),
        (RopeConfig(), StretchConfig(max_length=30), "position.max_length=30 has no effect with a checkpoint"),
        (RopeConfig(), StretchConfig(scaling=Scaling.yarn), "position.scaling=yarn needs position.factor beside it"),
        (RopeConfig(), StretchConfig(factor=2.0), "position.factor has no effect with position.scaling=none"),
        (LearnedConfig(max_length=20), StretchConfig(max_length=10), "position.max_length=10 is below the 20"),
        (LearnedConfig(max_length=20), YARN, "position.scaling=yarn has no effect with a checkpoint"),
    ],
)
def test_what_the_trained_positions_cannot_do_is_refused(position, stretch, message):
    with pytest.raises(ConfigError) as error:
        stretch.applied(position)
    assert str(error.value).startswith(message)


def test_a_trained_scaling_can_be_taken_back_or_changed():
    trained = RopeConfig(scaling=Scaling.yarn, factor=2.0, original_length=64)
    assert StretchConfig(scaling=Scaling.none).applied(trained) == RopeConfig()
    assert StretchConfig(factor=8.0).applied(trained) == RopeConfig(
        scaling=Scaling.yarn, factor=8.0, original_length=64
    )
    assert StretchConfig().applied(trained) is not None
    assert Unscaled().magnitude == 1
