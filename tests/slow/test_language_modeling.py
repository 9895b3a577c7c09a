"""The language models of conf/experiment reach what they promise: a minute or some each.

Texts are fetched, or Shakespeare's taken from the shared corpora where they are.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("HEADLOOM_SHARED_DATA", ROOT.parent / "shared" / "data"))


def run(folder: Path, command: str, *options: str) -> None:
    environment = {**os.environ, "PYTHONUTF8": "1"}
    subprocess.run([sys.executable, str(ROOT / command), *options], cwd=folder, env=environment, check=True)


@pytest.mark.parametrize(
    ("experiment", "split", "metric", "limit"),
    [
        ("alice_characters", "valid", "loss", 1.8),
        ("alice_memorised", "train", "accuracy", 0.83),
        ("overfit_hundred_lm", "train", "loss", 0.05),
        ("tiny_shakespeare_cpu", "valid", "loss", 1.88),
        ("tiny_shakespeare_best", "valid", "loss", 1.75),
    ],
)
def test_a_text_is_learned(tmp_path_factory, experiment, split, metric, limit):
    """Losses are at most the limit, in nats; an accuracy is at least that."""
    folder = tmp_path_factory.getbasetemp()  # shared, so that a text is fetched once
    shakespeare = SHARED / "tinyshakespeare" / "input.txt"
    text = [f"data.path={shakespeare}"] if "shakespeare" in experiment and shakespeare.exists() else []
    run(folder, "train.py", f"experiment={experiment}", f"hydra.run.dir={experiment}", *text)
    checkpoint = f"checkpoint={experiment}/checkpoints/last.pt"
    run(folder, "evaluate.py", checkpoint, f"data.split={split}", f"output={experiment}/scores")
    found = json.loads((folder / experiment / "scores" / "evaluation.json").read_bytes())[metric]
    assert found >= limit if metric == "accuracy" else found <= limit
