"""train.py as several processes, as torchrun starts them: here as forks with its environment variables."""

import json
import os
import runpy
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headloom.config.launch import run_once
from headloom.training.checkpoint import load_checkpoint

sys.path.insert(0, str(Path(__file__).parent))
from ranks_in_forks import in_forks

ROOT = Path(__file__).parent.parent
SMALL = {
    "trainer": ["device=cpu", "max_steps=4", "max_tokens=160", "log_every=1", "evaluate_every=2", "save_every=2"],
    "model": ["d_model=16", "num_heads=2", "d_ff=32", "num_encoder_layers=1", "num_decoder_layers=1"],
    "data": ["num_train=60", "num_valid=5", "num_symbols=5", "max_symbols=6"],
}
OPTIONS = [f"{group}.{option}" for group, options in SMALL.items() for option in options]
OPTIONS += ["data=copy", "tokenizer=char", "decoding=greedy", "decoding.max_length=16", "trainer.precision=float32"]


def started(world_size: int, folder: Path, *options: str, **environment: str) -> list[tuple[int, str]]:
    """Exit status and stderr of each rank of train.py."""
    with socket.socket() as one:
        one.bind(("localhost", 0))
        port = one.getsockname()[1]

    def train(rank: int) -> Callable[[], Any]:
        def act() -> tuple[int, str]:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
            os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), **environment}
            os.chdir(folder)
            sys.argv = ["train.py", *OPTIONS, f"data.folder={folder / 'data'}", *options]
            stderr = folder / f"stderr-{rank}"
            with stderr.open("w", encoding="utf-8", newline="\n") as sys.stderr:
                try:
                    runpy.run_path(str(ROOT / "train.py"), run_name="__main__")
                except SystemExit as end:
                    status = end.code
            return status, stderr.read_text(encoding="utf-8")

        return act

    return in_forks([train(rank) for rank in range(world_size)])


def records(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_bytes().split(b"\n")[:-1]]


def test_several_processes_leave_the_folder_and_the_numbers_of_one(tmp_path):
    """B93, B98, B101, B102: three batches an update, five validation pairs; the folder is drawn once."""
    options = ["trainer.accumulation=3", "model.dropout=0", "optimizer.epsilon=0.01"]
    (alone,) = started(1, tmp_path, *options, "hydra.run.dir=alone")
    assert alone[0] == 0, alone[1]
    results = started(2, tmp_path, *options)
    assert [status for status, _ in results] == [0, 0], results
    (run_dir,) = (tmp_path / "outputs").glob("*/*")
    names = {str(path.relative_to(run_dir)) for path in run_dir.rglob("*") if path.is_file()}
    assert {name for name in names if not name.startswith("tensorboard/")} == {
        *("config.yaml", "overrides.yaml", "train.log", "metrics.jsonl", "samples/step_2.txt", "samples/step_4.txt"),
        *(f"checkpoints/{name}.pt" for name in ("best", "last", "step_2", "step_4")),
    }
    for found, wanted in zip(records(run_dir), records(tmp_path / "alone"), strict=True):
        assert found.keys() == wanted.keys()
        for name in found.keys() - {"elapsed_seconds", "train/tokens_per_second", "train/data_wait_seconds"}:
            assert found[name] == pytest.approx(wanted[name], rel=1e-4), name
    whole, parts = (load_checkpoint(d / "checkpoints" / "last.pt") for d in (tmp_path / "alone", run_dir))
    assert parts["data"] == whole["data"]
    for name, weight in whole["model"].items():
        assert (parts["model"][name] - weight).abs().max() < 1e-6
    log = (run_dir / "train.log").read_text(encoding="utf-8").splitlines()
    assert len([line for line in log if " step=1 " in line]) == 1
    assert all(not stderr for _, stderr in results[1:])


def test_a_run_that_was_started_anew_goes_on_by_itself_and_as_if_never_stopped(tmp_path):
    """Dropout of each rank too; a restarted run needs no option that says so."""
    options = ["trainer.accumulation=2", "trainer.keep_checkpoints=5"]
    straight = started(2, tmp_path, *options, "hydra.run.dir=straight")
    assert [status for status, _ in straight] == [0, 0], straight
    run_dir = tmp_path / "again"
    (run_dir / "checkpoints").mkdir(parents=True)
    (tmp_path / "straight/checkpoints/step_2.pt").rename(run_dir / "checkpoints/last.pt")
    refused = started(2, tmp_path, *options, "hydra.run.dir=again")
    assert [status for status, _ in refused] == [2, 1], refused
    assert "already holds checkpoints" in refused[0][1]
    again = started(2, tmp_path, *options, "hydra.run.dir=again", TORCHELASTIC_RESTART_COUNT="1")
    assert [status for status, _ in again] == [0, 0], again
    whole, parts = (load_checkpoint(tmp_path / d / "checkpoints" / "last.pt") for d in ("straight", "again"))
    assert all((parts["model"][name] == weight).all() for name, weight in whole["model"].items())


def test_ranks_with_different_options_are_refused(tmp_path, monkeypatch):
    """B93."""
    results = started(2, tmp_path, "seed=${oc.env:RANK}")
    assert [status for status, _ in results] == [2, 2], results
    assert "rank 1 was started with other options than rank 0" in results[0][1]


@pytest.mark.parametrize("options", [["-m", "seed=1,2"], ["check=lr"], ["trainer.max_stepss=3"]])
def test_what_several_processes_cannot_do_is_said_before_they_meet(tmp_path, options):
    results = started(2, tmp_path, *options)
    assert [status for status, _ in results] == [2, 2], results
    assert len(results[0][1].splitlines()) == 1


def test_commands_that_use_a_checkpoint_are_one_process(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(sys, "argv", ["translate.py", "checkpoint=x"])
    assert run_once(lambda *_: None, name="translate", conf=ROOT / "conf") == 2
    assert capsys.readouterr().err == "translate.py: translate.py is one process: start it without torchrun\n"
