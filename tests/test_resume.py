"""A resumed run is the run that never stopped, bit for bit."""

import json
import logging
import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headloom import run
from headloom.config.schema import TrainConfig
from headloom.config.schema_data import TsvConfig
from headloom.config.schema_optimizer import AdafactorConfig, AdamConfig, AdamWConfig, MuonConfig, SgdConfig
from headloom.config.schema_schedule import ConstantConfig, CosineConfig
from headloom.config.schema_text import BpeConfig, SamplingDecay, TranslationConfig
from headloom.config.schema_training import Precision
from headloom.errors import CheckpointError, ConfigError
from headloom.training.checkpoint import load_checkpoint, save_checkpoint

OF_THE_CLOCK = {"elapsed_seconds", "train/tokens_per_second", "train/data_wait_seconds"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("resume")


@pytest.fixture(scope="module")
def config(make_config, folder) -> TrainConfig:
    """All that draws random numbers or keeps a state: dropout, BPE-dropout, accumulation, averages, a schedule, own
    predictions that are read."""
    return make_config(
        folder / "data",
        task=TranslationConfig(
            r_drop=1.0, scheduled_sampling=0.5, sampling_decay=SamplingDecay.linear, sampling_updates=8
        ),
        model={"dropout": 0.1},
        tokenizer=BpeConfig(vocab_size=60, byte_fallback=False, dropout=0.3),
        data={"num_symbols": 100},
        optimizer=AdamWConfig(lr=0.01),
        schedule=CosineConfig(warmup_steps=3),
        trainer={
            "max_steps": 12,
            "max_tokens": 90,
            "accumulation": 2,
            "evaluate_every": 3,
            "save_every": 1,
            "keep_checkpoints": 100,
            "average_decay": 0.9,
        },
    )


@pytest.fixture(scope="module")
def straight(config, folder) -> Path:
    """A run of twelve updates that nothing stopped."""
    run.train(config, folder / "straight")
    return folder / "straight"


def records(run_dir: Path) -> list[dict[str, Any]]:
    lines = (run_dir / "metrics.jsonl").read_bytes().split(b"\n")[:-1]
    return [{k: v for k, v in json.loads(line).items() if k not in OF_THE_CLOCK} for line in lines]


def tensors(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of a checkpoint, by where it is."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from tensors(item, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from tensors(item, f"{name}.{number}")
    else:
        yield name, value


def differences(one: Path, other: Path) -> list[str]:
    """Where two checkpoints differ, but for the seconds they took and how they were started."""
    contents = [dict(tensors(load_checkpoint(path))) for path in (one, other)]
    assert contents[0].keys() == contents[1].keys()
    ignored = ("_seconds", ".config.resume")
    return [
        name
        for name, value in contents[0].items()
        if not name.endswith(ignored)
        and not (
            torch.equal(value, contents[1][name]) if isinstance(value, torch.Tensor) else value == contents[1][name]
        )
    ]


def last(run_dir: Path) -> Path:
    return run_dir / "checkpoints" / "last.pt"


def numbered(run_dir: Path, step: int) -> Path:
    return run_dir / "checkpoints" / f"step_{step}.pt"


def resume(config: TrainConfig, run_dir: Path, resume: object, **trainer: Any) -> float:
    return run.train(replace(config, resume=str(resume), trainer=replace(config.trainer, **trainer)), run_dir)


def test_the_run_passes_two_ends_of_an_epoch_and_draws_segmentations(straight):
    """Or the tests below show less than they say."""
    epochs = [record["train/epoch"] for record in records(straight) if "train/epoch" in record]
    assert len(epochs) == 12
    assert max(epochs) >= 2
    losses = [record["train/loss"] for record in records(straight) if "train/loss" in record]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("stop_at", [1, 3, 7])
def test_a_run_resumed_anywhere_is_the_run_that_never_stopped(config, straight, tmp_path, stop_at):
    """B54, B55, B56: 3 follows a validation at once, and epochs end later on."""
    resume(config, tmp_path, numbered(straight, stop_at))
    assert records(tmp_path) == [record for record in records(straight) if record["step"] > stop_at]
    assert differences(last(tmp_path), last(straight)) == []
    assert differences(numbered(tmp_path, 12), numbered(straight, 12)) == []


def test_a_run_resumed_exactly_at_the_end_of_an_epoch_is_the_same_run(config, straight, tmp_path):
    """B55: the next epoch is a whole one."""
    epochs = {record["step"]: record["train/epoch"] for record in records(straight) if "train/epoch" in record}
    ends = [step for step in range(2, 12) if epochs[step] > epochs[step - 1]]
    assert ends
    for step in ends:
        resume(config, tmp_path / str(step), numbered(straight, step))
        assert differences(last(tmp_path / str(step)), last(straight)) == []


def test_a_run_resumed_twice_is_the_same_run(config, straight, tmp_path):
    """B54, B55: four and four and four updates; the place in the data is not counted from the last start."""
    resume(config, tmp_path / "second", numbered(straight, 4))
    resume(config, tmp_path / "third", numbered(tmp_path / "second", 8))
    assert records(tmp_path / "third") == [record for record in records(straight) if record["step"] > 8]
    assert differences(last(tmp_path / "third"), last(straight)) == []


@pytest.mark.parametrize(
    ("optimizer", "precision"),
    [
        (AdamConfig(), Precision.bfloat16),
        (MuonConfig(), Precision.float32),
        (AdafactorConfig(), Precision.float32),
        (SgdConfig(), Precision.float32),
    ],
    ids=["adam", "muon", "adafactor", "sgd"],
)
def test_every_optimizer_goes_on_where_it_was(config, tmp_path, optimizer, precision):
    """B54."""
    config = replace(config, optimizer=optimizer)
    options = {"precision": precision, "max_steps": 4, "evaluate_every": None}
    resume(config, tmp_path / "straight", "never", **options)
    resume(config, tmp_path / "resumed", numbered(tmp_path / "straight", 2), **options)
    assert records(tmp_path / "resumed") == [record for record in records(tmp_path / "straight") if record["step"] > 2]
    assert differences(last(tmp_path / "resumed"), last(tmp_path / "straight")) == []


def test_a_run_goes_on_in_its_own_folder_and_records_each_step_once(config, straight, tmp_path):
    """B94: what was recorded after the checkpoint is replaced."""
    run_dir = tmp_path / "run"
    shutil.copytree(straight, run_dir)
    shutil.copy(numbered(straight, 5), last(run_dir))
    resume(config, run_dir, "auto")
    assert records(run_dir) == records(straight)
    assert differences(last(run_dir), last(straight)) == []


def test_a_longer_run_is_a_shorter_one_that_goes_on(config, tmp_path):
    """B65: with a schedule that does not know the end."""
    config = replace(config, schedule=ConstantConfig(warmup_steps=3))
    for name, steps in (("whole", [6]), ("parts", [3, 6])):
        for max_steps in steps:
            resume(config, tmp_path / name, "auto", max_steps=max_steps)
    assert records(tmp_path / "parts") == records(tmp_path / "whole")
    assert differences(last(tmp_path / "parts"), last(tmp_path / "whole")) == []


def test_validating_more_often_changes_nothing_else(config, straight, tmp_path):
    """B33, B70: no mode is left on, no random number drawn, no weight averaged away."""
    resume(config, tmp_path, "never", evaluate_every=1)
    assert [r for r in records(tmp_path) if "train/loss" in r] == [r for r in records(straight) if "train/loss" in r]
    changed = differences(last(tmp_path), last(straight))
    assert all(name.startswith((".best.", ".config.trainer.evaluate_every")) for name in changed)


def test_a_run_leaves_no_state_to_the_next_one_in_the_process(config, straight, tmp_path):
    """A job of a sweep is the run it would be alone; `resume=auto` starts afresh where there is nothing (B65)."""
    torch.manual_seed(77)
    run.train(replace(config, seed=5), tmp_path / "other")
    resume(config, tmp_path / "same", "auto")
    assert records(tmp_path / "same") == records(straight)
    assert records(tmp_path / "other") != records(straight)
    assert differences(last(tmp_path / "same"), last(straight)) == []


def test_auto_does_not_start_afresh_where_only_the_last_checkpoint_is_missing(config, straight, tmp_path):
    shutil.copytree(straight / "checkpoints", tmp_path / "checkpoints")
    (tmp_path / "checkpoints" / "last.pt").unlink()
    before = files(tmp_path)
    with pytest.raises(CheckpointError, match=r"holds checkpoints but no last\.pt: go on .* resume=.*step_12\.pt"):
        resume(config, tmp_path, "auto")
    assert files(tmp_path) == before


def test_a_run_whose_last_checkpoint_is_damaged_is_told_of_the_one_before_and_goes_on_from_it(
    config, straight, tmp_path
):
    """With every other name that the damaged file has."""
    shutil.copytree(straight / "checkpoints", tmp_path / "checkpoints")
    damaged = last(tmp_path)
    damaged.write_bytes(damaged.read_bytes()[:-100])
    for other in (numbered(tmp_path, 12), tmp_path / "checkpoints" / "best.pt"):
        other.unlink()
        other.hardlink_to(damaged)
    with pytest.raises(CheckpointError, match=r"is damaged.*; the one before is resume=.*step_11\.pt") as caught:
        resume(config, tmp_path, "auto")
    resume(config, tmp_path, str(caught.value).rpartition("resume=")[2])
    assert differences(last(tmp_path), last(straight)) == []


def files(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


def test_a_finished_run_is_resumed_to_nothing(config, straight, caplog):
    """B65: no step, no file changed, and the metric it had."""
    before = files(straight)
    with caplog.at_level(logging.INFO):
        headline = resume(config, straight, "auto")
    assert files(straight) == before
    assert headline == max(record["valid/bleu"] for record in records(straight) if "valid/bleu" in record)
    assert any("already finished at step 12: raise trainer.max_steps" in message for message in caplog.messages)


def test_a_mean_of_best_checkpoints_of_which_none_was_kept_is_refused(config, straight, tmp_path):
    shutil.copytree(straight, tmp_path, dirs_exist_ok=True)
    with pytest.raises(CheckpointError, match=r"trainer\.average_best=2: .*checkpoints holds no best_STEP\.pt"):
        resume(config, tmp_path, "auto", keep_best_checkpoints=2, average_best=2)


def test_a_run_that_patience_ended_is_not_told_that_more_steps_would_go_on(config, straight, tmp_path, caplog):
    """B65."""
    shutil.copytree(straight, tmp_path, dirs_exist_ok=True)
    contents = load_checkpoint(last(tmp_path))
    contents["best"]["num_worse"] = 2
    save_checkpoint(last(tmp_path), contents)
    with caplog.at_level(logging.INFO):
        resume(config, tmp_path, "auto", max_steps=13, patience=2)
    assert any("already finished at step 12: raise trainer.patience to train on" in line for line in caplog.messages)


def test_a_folder_with_checkpoints_is_not_written_to(config, straight):
    """B88."""
    before = files(straight)
    with pytest.raises(ConfigError, match="already holds checkpoints: go on with resume=auto, or choose another"):
        run.train(config, straight)
    assert files(straight) == before


def test_there_must_be_something_to_resume(config, tmp_path):
    """B65."""
    with pytest.raises(CheckpointError, match=f"resume={tmp_path}: there is no {tmp_path}/checkpoints/last.pt"):
        resume(config, tmp_path / "run", tmp_path)


def test_options_that_the_weights_rest_on_cannot_change(config, straight, tmp_path):
    """B64."""
    for changed in (
        replace(config, model=replace(config.model, d_ff=64)),
        replace(config, model=replace(config.model, dropout=0.2)),
        replace(config, seed=2),
        replace(config, optimizer=AdamConfig(lr=0.01)),
        replace(config, data=replace(config.data, num_symbols=99)),
        replace(config, trainer=replace(config.trainer, max_tokens=200)),
    ):
        with pytest.raises(CheckpointError, match="a resumed run cannot change"):
            resume(changed, tmp_path, straight)
    assert not tmp_path.joinpath("metrics.jsonl").exists()


def test_other_options_are_taken_from_the_command_line_and_said(config, straight, tmp_path, caplog):
    """B64, B56: here a rate; the schedule is computed from what is asked for now."""
    changed = replace(config, optimizer=AdamWConfig(lr=0.02, weight_decay=0.5))
    with caplog.at_level(logging.INFO):
        resume(changed, tmp_path, numbered(straight, 6), log_every=2)
    for option, values in (("optimizer.lr", "0.02 (was 0.01)"), ("optimizer.weight_decay", "0.5 (was 0.01)")):
        assert f"resumed with another {option}={values}: taken" in caplog.messages
    rates = {r["step"]: r["train/learning_rate"] for r in records(tmp_path) if "train/learning_rate" in r}
    before = {r["step"]: r["train/learning_rate"] for r in records(straight) if "train/learning_rate" in r}
    assert rates == {step: pytest.approx(2 * before[step]) for step in (8, 10, 12)}
    groups = load_checkpoint(last(tmp_path))["optimizer"]["param_groups"]
    assert [group["weight_decay"] for group in groups] == [0.5, 0.0]


def test_a_checkpoint_from_before_an_option_goes_on_with_its_default(config, straight, tmp_path):
    contents = load_checkpoint(numbered(straight, 9))
    del contents["config"]["optimizer"]["decay_norms"]
    del contents["plateau"]
    save_checkpoint(tmp_path / "older.pt", contents)
    resume(config, tmp_path / "run", tmp_path / "older.pt")
    assert differences(last(tmp_path / "run"), last(straight)) == []


def test_validation_pairs_that_changed_are_warned_of(make_config, tmp_path, caplog):
    """The run goes on: best.pt may stay the one of an easier validation. Moved pairs are the same ones."""
    pairs, valid = tmp_path / "pairs.tsv", tmp_path / "valid.tsv"
    pairs.write_bytes(b"".join(b"w%02d a\tx%02d\n" % (i, i) for i in range(40)))
    valid.write_bytes(b"w1 a\tx1\n")
    data = TsvConfig(path=pairs, valid_path=valid, folder=tmp_path / "data", max_length=64)
    config = make_config(data=data, trainer={"max_steps": 2})
    run.train(config, tmp_path / "run")
    moved = replace(config, data=replace(data, valid_path=valid.rename(tmp_path / "moved.tsv")))
    resume(moved, tmp_path / "run", "auto", max_steps=3)
    assert not [line for line in caplog.messages if "the validation data is not that" in line]
    (tmp_path / "moved.tsv").write_bytes(b"w2 a\tx2\n")
    resume(moved, tmp_path / "run", "auto", max_steps=4)
    assert any("the validation data is not that which" in line for line in caplog.messages)


def test_training_pairs_that_changed_are_noticed(make_config, tmp_path):
    """B22: same size, same time of change."""
    pairs = tmp_path / "pairs.tsv"
    pairs.write_bytes(b"".join(b"w%02d a\tx%02d\n" % (i, i) for i in range(40)))
    valid = tmp_path / "valid.tsv"
    valid.write_bytes(b"w1 a\tx1\n")
    data = TsvConfig(path=pairs, valid_path=valid, folder=tmp_path / "data", max_length=64)
    config = make_config(data=data, trainer={"max_steps": 4})
    run.train(config, tmp_path / "run")
    times = pairs.stat()
    pairs.write_bytes(pairs.read_bytes().replace(b"w0", b"v0"))
    os.utime(pairs, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(CheckpointError, match=r"the training data is not that which .+ was trained on"):
        resume(config, tmp_path / "run", "auto", max_steps=8)
    run.train(config, tmp_path / "fresh")
    assert records(tmp_path / "fresh")[0]["train/loss"] != records(tmp_path / "run")[0]["train/loss"]


def test_a_run_folder_goes_on_where_it_was_moved(make_config, tmp_path, monkeypatch):
    """B67: from another working directory, with the tokenizer of the checkpoint."""
    config = make_config(tmp_path / "data", trainer={"max_steps": 8})
    resume(config, tmp_path / "whole", "auto")
    resume(config, tmp_path / "run", "auto", max_steps=4)
    (tmp_path / "run").rename(tmp_path / "moved")
    for tokenizer in (tmp_path / "data").rglob("*.model"):
        tokenizer.unlink()
    monkeypatch.chdir("/")
    resume(config, tmp_path / "moved", "auto")
    assert records(tmp_path / "moved") == records(tmp_path / "whole")


def test_a_checkpoint_holds_plain_values_only(straight):
    """B62: every file a run writes; the configuration is JSON, and no metric is a NumPy number."""
    paths = sorted((straight / "checkpoints").glob("*.pt"))
    assert len(paths) == 14
    for path in paths:
        contents = load_checkpoint(path)
        json.dumps(contents["config"])
        assert not any("_orig_mod" in name or name.startswith("module.") for name in contents["model"])
        assert {type(value) for _, value in tensors(contents)} <= {
            torch.Tensor,
            int,
            float,
            bool,
            str,
            bytes,
            type(None),
        }


def test_a_checkpoint_with_other_weights_is_refused(config, straight, tmp_path):
    """B60."""
    contents = load_checkpoint(last(straight))
    contents["model"]["decoder.extra"] = torch.ones(1)
    save_checkpoint(tmp_path / "wrong.pt", contents)
    with pytest.raises(CheckpointError, match=r"does not fit the model: decoder\.extra is unknown"):
        resume(config, tmp_path / "run", tmp_path / "wrong.pt")


def test_the_metric_of_a_run_is_a_plain_number(make_config, tmp_path):
    """B90: what a sweeper reads."""
    headline = run.train(make_config(tmp_path / "data", trainer={"max_steps": 1}), tmp_path / "run")
    assert type(headline) is float
    assert math.isfinite(headline)
