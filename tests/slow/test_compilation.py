"""trainer.compile with a real compiler, which takes a minute."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headloom.training.checkpoint import load_checkpoint

ROOT = Path(__file__).parents[2]


def train(folder: Path, *options: str) -> str:
    """What train.py says of a tiny run in `folder`: in a process of its own, since PyTorch's compiler warns."""
    fixed = [
        *("experiment=copy", "size=tiny", "data.num_train=60", "data.num_valid=4", "data.max_symbols=6"),
        *("model.d_model=16", "model.d_ff=32", "model.num_encoder_layers=2", "model.num_decoder_layers=2"),
        *("trainer.log_every=1", "trainer.evaluate_every=3", "trainer.precision=float32", "trainer.num_threads=1"),
        *("trainer.max_tokens=160", "schedule=constant", f"data.folder={folder}/data"),
    ]
    command = [sys.executable, str(ROOT / "train.py"), *fixed, *options]
    done = subprocess.run(command, cwd=folder, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def losses(run_dir: Path) -> list[float]:
    lines = (run_dir / "metrics.jsonl").read_bytes().split(b"\n")[:-1]
    return [record["train/loss"] for record in map(json.loads, lines) if "train/loss" in record]


def test_a_compiled_model_is_the_model_in_few_graphs(tmp_path):
    """B60: its weights have the names of any other; losses agree to rounding; the graphs are counted in the log."""
    if shutil.which("g++") is None:
        pytest.skip("no compiler here")
    train(tmp_path, "trainer.max_steps=6", "trainer.compile=false", "hydra.run.dir=plain")
    said = train(tmp_path, "trainer.max_steps=6", "trainer.compile=true", "hydra.run.dir=compiled")
    plain, compiled = (load_checkpoint(tmp_path / name / "checkpoints" / "last.pt") for name in ("plain", "compiled"))
    assert list(plain["model"]) == list(compiled["model"])
    assert losses(tmp_path / "compiled") == pytest.approx(losses(tmp_path / "plain"), rel=1e-3)
    counts = [int(number) for number in re.findall(r"compiled graphs: (\d+)", said)]
    # Two kinds of block, with and without padding, and for lengths that happen to be equal; validation has none.
    assert counts, said
    assert 2 <= counts[-1] <= 8
    assert "Graph break" not in said
    # Updates that compile are hundreds of times as long: by them, minutes were promised for seconds.
    assert said.index("compiled graphs") < said.index("of training to go")
    resumed = ("trainer.max_steps=8", "trainer.compile=false", "resume=auto", "hydra.run.dir=compiled")
    train(tmp_path, *resumed)
    assert len(losses(tmp_path / "compiled")) == 8
