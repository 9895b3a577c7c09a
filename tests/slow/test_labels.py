"""Labels across processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from headloom.training.checkpoint import load_checkpoint

ROOT = Path(__file__).parents[2]


def test_labels_keep_their_order_in_every_process(tmp_path):
    """B21: whatever the hash seed, and the order of the rows that are scored."""
    rows = [f"{word}\t{label}" for word, label in [("ab", "no"), ("ba", "01"), ("cc", "1"), ("de", "None")] * 6]
    (tmp_path / "train.tsv").write_text("\n".join(rows) + "\n")
    (tmp_path / "test.tsv").write_text("\n".join(reversed(rows)) + "\n")
    options = [
        *("model=classifier", "task=classification", "data=labelled", "tokenizer=byte", "size=tiny"),
        *(f"data.path={tmp_path}/train.tsv", f"data.valid_path={tmp_path}/train.tsv", f"data.folder={tmp_path}/data"),
        *("model.d_model=16", "model.d_ff=16", "model.num_layers=1", "trainer.max_steps=3", "trainer.num_threads=1"),
        "trainer.precision=float32",
    ]

    def call(command, *arguments, seed):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, str(ROOT / command), *arguments], env=environment, check=True, cwd=tmp_path)

    for seed in ("1", "2"):
        call("train.py", *options, f"hydra.run.dir={tmp_path}/run{seed}", seed=seed)
    first, second = (load_checkpoint(tmp_path / f"run{seed}" / "checkpoints" / "best.pt") for seed in "12")
    assert first["labels"]["names"] == second["labels"]["names"] == ["01", "1", "None", "no"]
    assert all(torch.equal(weights, second["model"][name]) for name, weights in first["model"].items())
    arguments = [
        f"checkpoint={tmp_path}/run1/checkpoints/best.pt",
        "precision=float32",
        "data.path=test.tsv",
        "output=out",
    ]
    call("evaluate.py", *arguments, seed="3")
    call("evaluate.py", *arguments[:2], "data.split=valid", "output=forwards", seed="1")
    forwards, backwards = (
        json.loads((tmp_path / name / "evaluation.json").read_bytes()) for name in ("forwards", "out")
    )
    assert backwards["accuracy"] == forwards["accuracy"]
    assert sorted((tmp_path / "out" / "predictions.tsv").read_text().split("\n")) == sorted(
        (tmp_path / "forwards" / "predictions.tsv").read_text().split("\n")
    )
