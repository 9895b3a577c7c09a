"""How a model is executed changes how it is computed, and nothing that is saved."""

from dataclasses import replace

import pytest
import torch

from headloom import run
from headloom.build_execution import prepare_execution
from headloom.config.schema_training import ActivationCheckpointing, TrainerConfig
from headloom.training.checkpoint import load_checkpoint

CPU = torch.device("cpu")


def test_without_a_compiler_there_is_one_warning_and_nothing_is_compiled(make_model, monkeypatch, caplog):
    def no_compiler(*arguments, **options):
        raise RuntimeError("no compiler\nsecond line")

    monkeypatch.setattr(torch, "compile", no_compiler)
    prepare_execution(make_model(17), TrainerConfig(compile=True), device=CPU, dtype=None)
    assert caplog.messages == ["trainer.compile: nothing can be compiled here (no compiler): going on without"]


@pytest.mark.parametrize(("compiles", "num_attempts"), [("auto", 0), (False, 0), (True, 1)])
def test_auto_compiles_nothing_on_a_cpu(make_model, monkeypatch, compiles, num_attempts):
    attempts = []

    def no_compiler(*arguments, **options):
        attempts.append(arguments)
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", no_compiler)
    prepare_execution(make_model(17), TrainerConfig(compile=compiles), device=CPU, dtype=None)
    assert len(attempts) == num_attempts


@pytest.mark.parametrize(
    "options",
    [
        {"activation_checkpointing": ActivationCheckpointing.full},
        {"activation_checkpointing": ActivationCheckpointing.selective},
        {"activation_checkpointing": ActivationCheckpointing.selective, "checkpoint_every": 2},
    ],
    ids=["full", "attention", "every second"],
)
def test_a_run_that_computes_activations_again_is_the_same_run(make_config, tmp_path, options):
    """B34: with dropout, and resumed in the middle."""
    options |= {"max_steps": 4, "evaluate_every": None}
    plain = make_config(tmp_path / "data", model={"dropout": 0.2}, trainer={"max_steps": 4, "evaluate_every": None})
    again = make_config(tmp_path / "data", model={"dropout": 0.2}, trainer=options)
    for name, config in (("plain", plain), ("again", again)):
        run.train(config, tmp_path / name)
    weights = [load_checkpoint(tmp_path / name / "checkpoints" / "last.pt")["model"] for name in ("plain", "again")]
    assert list(weights[0]) == list(weights[1])
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_budget_that_is_found_is_the_runs_from_then_on(make_config, tmp_path):
    """On a CPU it is the default; a resumed run takes the one it has."""
    config = make_config(tmp_path / "data", trainer={"max_tokens": "auto", "max_steps": 1})
    run.train(config, tmp_path / "run")
    last = tmp_path / "run" / "checkpoints" / "last.pt"
    assert load_checkpoint(last)["config"]["trainer"]["max_tokens"] == 4096
    longer = replace(config, trainer=replace(config.trainer, max_steps=2), resume="auto")
    run.train(longer, tmp_path / "run")
    assert load_checkpoint(last)["step"] == 2
