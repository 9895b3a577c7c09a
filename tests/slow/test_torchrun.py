"""torchrun itself: a rank that is killed takes the others down, and the launcher starts them anew or ends them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headloom.training.checkpoint import load_checkpoint

ROOT = Path(__file__).parents[2]
OPTIONS = [
    *("experiment=copy", "size=tiny", "trainer.device=cpu", "trainer.precision=float32", "data.num_train=500"),
    *("data.num_valid=20", "trainer.max_steps=8", "trainer.evaluate_every=null", "trainer.save_every=2"),
    *("trainer.log_every=1", "trainer.accumulation=3", "optimizer.epsilon=0.01"),
]
DIES_ONCE = """
import os, runpy, sys
from headloom.training.trainer import Trainer

train_step = Trainer.train_step

def step(self, *arguments, **options):
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and self.step == 5:
        os.kill(os.getpid(), 9)
    return train_step(self, *arguments, **options)

Trainer.train_step = step
sys.argv[0] = "train.py"
runpy.run_path({path!r}, run_name="__main__")
"""


def torchrun(folder: Path, world_size: int, script: Path, *options: str, restarts: int = 0) -> str:
    """What it wrote to stderr."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={world_size}"]
    command += [f"--max-restarts={restarts}", str(script), *OPTIONS, f"data.folder={folder / 'data'}", *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stderr


def steps(run_dir: Path) -> list[int]:
    lines = (run_dir / "metrics.jsonl").read_bytes().split(b"\n")[:-1]
    return [record["step"] for record in map(json.loads, lines) if "train/loss" in record]


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_a_killed_rank_ends_the_others_and_the_run_goes_on_by_itself(tmp_path, engine):
    """B99: in the folder that was drawn first, as if nothing had happened; dropout of each rank included."""
    script = tmp_path / "dies_once.py"
    script.write_text(DIES_ONCE.format(path=str(ROOT / "train.py")), encoding="utf-8")
    option = f"trainer.engine={engine}"
    said = torchrun(tmp_path, 3, script, option, restarts=1)
    assert "another rank ended" in said
    (run_dir,) = (tmp_path / "outputs").glob("*/*")
    torchrun(tmp_path, 3, ROOT / "train.py", option, "hydra.run.dir=straight")
    assert steps(run_dir) == steps(tmp_path / "straight") == list(range(1, 9))
    found, wanted = (load_checkpoint(d / "checkpoints" / "last.pt")["model"] for d in (run_dir, tmp_path / "straight"))
    assert all(torch.equal(found[name], weight) for name, weight in wanted.items())


def test_a_run_moves_between_engines_and_numbers_of_processes(tmp_path):
    """They end where one process alone ends: the place in the data is the same for all."""
    options = ["model.dropout=0", "schedule=constant"]
    torchrun(tmp_path, 1, ROOT / "train.py", *options, "hydra.run.dir=alone")
    moves = [(2, "ddp", 2), (3, "fsdp", 4), (1, "ddp", 6), (2, "fsdp", 8)]
    for world_size, engine, max_steps in moves:
        torchrun(
            *(tmp_path, world_size, ROOT / "train.py", *options, f"trainer.engine={engine}"),
            *(f"trainer.max_steps={max_steps}", "resume=auto", "hydra.run.dir=moved"),
        )
    found, wanted = (load_checkpoint(tmp_path / d / "checkpoints" / "last.pt") for d in ("moved", "alone"))
    assert found["data"] == wanted["data"]
    for name, weight in wanted["model"].items():
        assert (found["model"][name] - weight).abs().max() < 1e-5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1], ids=lambda number: number.name)
def test_a_signal_to_the_launcher_ends_all_ranks_with_a_checkpoint(tmp_path, number):
    """As Slurm sends it; the launcher is told to pass on SIGUSR1."""
    command = [sys.executable, "-m", "torch.distributed.run", "--signals-to-handle=SIGTERM,SIGINT,SIGUSR1"]
    command += ["--nproc-per-node=2", str(ROOT / "train.py"), *OPTIONS, f"data.folder={tmp_path / 'data'}"]
    command += ["hydra.run.dir=run", "trainer.max_steps=100000", "trainer.save_every=null", "trainer.max_tokens=512"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "step=3 " in line:
                process.send_signal(number)
            if f"{number.name}: stopped at step" in line:
                break
        process.stderr.read()
        assert process.wait(60) != 0
    step = load_checkpoint(tmp_path / "run" / "checkpoints" / "last.pt")["step"]
    assert steps(tmp_path / "run")[-1] == step >= 3
