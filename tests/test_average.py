"""The average of a run's checkpoints: at the end of training, and by `python -m headloom.average`."""

import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headloom import run
from headloom.average import average
from headloom.config.module_command import parse
from headloom.config.schema_average import AverageConfig
from headloom.config.schema_decoding import GreedyConfig
from headloom.config.schema_training import Device, Precision
from headloom.config.schema_use import EvaluateConfig, EvaluateDataConfig, Split
from headloom.errors import CheckpointError, ConfigError
from headloom.training.checkpoint import load_checkpoint
from headloom.training.checkpoint_average import STATE_OF_A_RUN


@pytest.fixture(scope="module")
def config(make_config, tmp_path_factory):
    return make_config(
        tmp_path_factory.mktemp("data"),
        trainer={
            "max_steps": 9,
            "save_every": 2,
            "evaluate_every": 3,
            "keep_checkpoints": 4,
            "keep_best_checkpoints": 2,
            "average_last": 3,
            "precision": Precision.float32,
        },
    )


@pytest.fixture(scope="module")
def trained(config, tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("trained")
    run.train(config, run_dir)
    return run_dir


def folder(run_dir: Path) -> Path:
    return run_dir / "checkpoints"


def evaluate(checkpoint: Path, output: Path) -> dict:
    return run.evaluate(
        EvaluateConfig(
            checkpoint=checkpoint,
            data=EvaluateDataConfig(split=Split.valid),
            decoding=GreedyConfig(max_length=16),
            device=Device.cpu,
            precision=Precision.float32,
            output=output,
        )
    )


def test_an_average_that_finds_no_room_is_to_be_made_again(trained, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    options = AverageConfig(run=trained, last=2, output=tmp_path / "file" / "average.pt")
    with pytest.raises(CheckpointError, match=r"free space or permissions in the folder, then average again$"):
        average(options)


def test_the_best_checkpoints_are_kept_beside_the_newest(trained):
    names = {path.stem for path in folder(trained).glob("*.pt")}
    ranked = {name for name in names if name.startswith("best_")}
    assert names - ranked == {"last", "best", "average", "step_2", "step_4", "step_6", "step_8"}
    ranking = load_checkpoint(folder(trained) / "last.pt")["ranking"]
    assert ranked == {f"best_{int(step)}" for _, _, step in ranking}
    merits = [(bleu, -loss) for bleu, loss, _ in ranking]
    assert merits == sorted(merits, reverse=True)
    assert len(ranking) == 2
    best = load_checkpoint(folder(trained) / "best.pt")
    assert best["step"] == ranking[0][2]


def test_a_run_ends_with_the_average_of_its_newest_checkpoints_and_its_scores(trained, tmp_path):
    """The newest one is last.pt, since no number is as new."""
    average = folder(trained) / "average.pt"
    contents = load_checkpoint(average)
    assert contents["averaged_steps"] == [6, 8, 9]
    parts = [load_checkpoint(folder(trained) / f"{name}.pt")["model"] for name in ("step_6", "step_8", "last")]
    name = "encoder.embedding.table.weight"
    expected = torch.stack([weights[name].double() for weights in parts]).mean(0).float()
    assert torch.equal(contents["model"][name], expected)
    records = [json.loads(line) for line in (trained / "metrics.jsonl").read_bytes().split(b"\n")[:-1]]
    scored = next(record for record in records if "average/loss" in record)
    result = evaluate(average, tmp_path)
    assert scored["step"] == result["step"] == 9
    assert result["loss"] == pytest.approx(scored["average/loss"], rel=1e-6)
    assert result["bleu"] == scored["average/bleu"]


def test_a_run_killed_before_it_had_made_its_average_makes_it_when_it_is_resumed(config, trained, tmp_path):
    run_dir = tmp_path / "run"
    shutil.copytree(trained, run_dir)
    (folder(run_dir) / "average.pt").unlink()
    run.train(replace(config, resume="auto"), run_dir)
    assert load_checkpoint(folder(run_dir) / "average.pt")["averaged_steps"] == [6, 8, 9]
    before, after = (load_checkpoint(folder(one) / "average.pt")["model"] for one in (trained, run_dir))
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    run.train(replace(config, resume="auto"), run_dir)  # and once only
    assert (run_dir / "metrics.jsonl").read_bytes().count(b"average/loss") == 2


def test_no_run_goes_on_from_an_average(config, trained, tmp_path):
    resumed = replace(config, resume=str(folder(trained) / "average.pt"))
    with pytest.raises(CheckpointError, match="is an average of checkpoints, which nothing goes on from"):
        run.train(resumed, tmp_path)


def test_every_part_of_a_checkpoint_is_of_the_run_or_of_the_model(trained):
    """If this fails, a part was added: say in `STATE_OF_A_RUN` if only a run that goes on needs it, or add it here."""
    parts = set(load_checkpoint(folder(trained) / "last.pt"))
    assert parts - STATE_OF_A_RUN == {"magic", "format", "model", "config", "corpus", "step", "tokenizers"}


@pytest.mark.parametrize(
    ("options", "steps"),
    [(["last=2"], [8, 9]), (["last=1"], [9]), (["best=1"], None), (["best=2"], None)],
)
def test_the_command_averages_the_newest_or_the_best(trained, tmp_path, options, steps):
    output = average(
        parse(AverageConfig, [f"run={trained}", f"output={tmp_path / 'mean.pt'}", *options], base=tmp_path)
    )
    contents = load_checkpoint(output)
    ranked = [int(step) for _, _, step in load_checkpoint(folder(trained) / "last.pt")["ranking"]]
    assert contents["averaged_steps"] == (sorted(ranked[: int(options[0][-1])]) if steps is None else steps)
    assert math.isfinite(evaluate(output, tmp_path / "scores")["loss"])


def test_the_command_averages_the_files_that_are_named(trained, tmp_path):
    files = f"[{folder(trained) / 'step_2.pt'},{folder(trained) / 'step_4.pt'}]"
    command = [sys.executable, "-m", "headloom.average", f"checkpoints={files}", "output=mean.pt"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "mean.pt: the mean of 2 checkpoints" in done.stderr
    assert load_checkpoint(tmp_path / "mean.pt")["averaged_steps"] == [2, 4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name what to average"),
        (["run=RUN", "checkpoints=[a.pt]"], "name what to average"),
        (["run=RUN"], "needs one of last=10 and best=5, not none"),
        (["run=RUN", "last=2", "best=2"], "needs one of last=10 and best=5, not last=2 and best=2"),
        (["run=RUN", "last=0"], "last=0 is too small: set it to 1 or more"),
        (["run=RUN", "last=many"], "'last=many' is refused: it takes a whole number or null"),
        (["run=RUN", "last=9"], "last=9 asks for more checkpoints than the 5 in"),
        (["run=RUN", "best=3"], "or train with a larger trainer.keep_best_checkpoints"),
        (["run=RUN/nowhere", "last=2"], "does not exist: check the path"),
        (["run=RUN/metrics.jsonl", "last=2"], "is a file: name the folder"),
        (["checkpoints=[a.pt,b.pt]"], "output is missing"),
        (["checkpoints=[a.pt,a.pt]", "output=b.pt"], "checkpoints names a file twice"),
        (["checkpoints=[a.pt]", "output=b.pt", "last=2"], "last=2 has no effect with checkpoints=[...]: remove it"),
        (["run=RUN", "last=2", "output=RUN/checkpoints/last.pt"], "is one of the checkpoints to average"),
        (["checkpoints=[RUN/checkpoints/step_2.pt]", "output=RUN/checkpoints/last.pt"], "is a checkpoint of a run"),
        (["run=RUN", "last=2"], "average.pt is there already and is not this average: remove it, or name another file"),
        (["run=RUN", "last=2", "output=RUN/metrics.jsonl"], "metrics.jsonl is there already and is not this average"),
        (["lsat=2"], "'lsat' is not an option. Did you mean 'last'?"),
        (["zzz=2"], "'zzz' is not an option; there are run, last, best, checkpoints and output"),
        (["RUN"], "is not an option: write option=value"),
        (["checkpoints=[a.pt"], "cannot be read: quote the value"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(trained, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    given = [argument.replace("RUN", str(trained)) for argument in arguments]
    before = {path: path.stat().st_mtime_ns for path in folder(trained).iterdir()}
    with pytest.raises(ConfigError) as error:
        average(parse(AverageConfig, given, base=tmp_path))
    assert message in str(error.value)
    assert {path: path.stat().st_mtime_ns for path in folder(trained).iterdir()} == before


def test_the_average_that_is_there_already_may_be_made_again(trained, tmp_path):
    """The run ended with the average of its last three."""
    output = average(parse(AverageConfig, [f"run={trained}", "last=3"], base=tmp_path))
    assert output == folder(trained) / "average.pt"
    other = [f"run={trained}", "last=3", f"output={tmp_path / 'a.pt'}"]
    first = average(parse(AverageConfig, other, base=tmp_path)).read_bytes()
    assert average(parse(AverageConfig, other, base=tmp_path)).read_bytes() == first


def test_a_folder_without_checkpoints_and_files_that_are_none_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"holds no last\.pt: name the folder of a run"):
        average(parse(AverageConfig, [f"run={tmp_path}", "last=2"], base=tmp_path))
    with pytest.raises(ConfigError, match="does not exist"):
        average(parse(AverageConfig, ["checkpoints=[/no/a.pt]", f"output={tmp_path / 'o.pt'}"], base=tmp_path))
    assert list(tmp_path.iterdir()) == []
