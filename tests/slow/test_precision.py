"""bfloat16 trains as float32 does: the curves of 500 updates lie on each other."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
NUM_STEPS = 500
TOLERANCE = 0.03  # of the loss; two seeds of float32 differ by more


def losses(folder: Path, precision: str) -> list[float]:
    """Training loss of every 50 updates, in nats per target token."""
    options = [
        "experiment=copy",
        "optimizer.lr=1e-3",  # at the rate of the recipe the curve itself is rough
        f"trainer.precision={precision}",
        f"trainer.max_steps={NUM_STEPS}",
        "trainer.log_every=50",
        "trainer.evaluate_every=null",
        "trainer.save_every=null",
        "task.headline=loss",
        f"hydra.run.dir={folder / precision}",
        f"data.folder={folder / 'data'}",
    ]
    subprocess.run([sys.executable, ROOT / "train.py", *options], check=True, capture_output=True)
    records = [json.loads(line) for line in (folder / precision / "metrics.jsonl").read_bytes().split(b"\n") if line]
    return [record["train/loss"] for record in records if "train/loss" in record]


def test_the_loss_curves_of_bfloat16_and_float32_lie_on_each_other(tmp_path):
    exact, rounded = losses(tmp_path, "float32"), losses(tmp_path, "bfloat16")
    assert len(exact) == len(rounded) == NUM_STEPS // 50
    for one, other in zip(exact, rounded, strict=True):
        assert abs(one - other) <= TOLERANCE * one, (exact, rounded)
