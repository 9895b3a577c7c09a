"""The recipes of conf/experiment reach what they promise: a few minutes each."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def share_exact(folder: Path, *options: str) -> float:
    """Train with `options`; the share of unseen sequences that the best checkpoint gets exactly right."""
    environment = {**os.environ, "PYTHONUTF8": "1"}
    for command, *arguments in (
        ("train.py", "hydra.run.dir=run", *options),
        ("evaluate.py", "checkpoint=run/checkpoints/best.pt", "decoding=greedy", "output=scores"),
    ):
        subprocess.run([sys.executable, str(ROOT / command), *arguments], cwd=folder, env=environment, check=True)
    hypotheses, references = (
        (folder / "scores" / name).read_text(encoding="utf-8").split("\n")[:-1]
        for name in ("hypotheses.txt", "reference.txt")
    )
    return sum(one == other for one, other in zip(hypotheses, references, strict=True)) / len(references)


@pytest.mark.parametrize("experiment", ["copy", "reverse", "reverse_four"])
def test_a_made_up_task_is_learned_without_a_fault(tmp_path, experiment):
    assert share_exact(tmp_path, f"experiment={experiment}") >= 0.99


def test_without_positions_an_order_cannot_be_turned_round(tmp_path):
    """One guess of the 24 orders of four symbols is right by chance."""
    assert share_exact(tmp_path, "experiment=reverse_four", "position=none") < 0.15


def test_a_translator_learns_a_hundred_pairs_by_heart(tmp_path):
    share_exact(tmp_path, "experiment=overfit_hundred_seq2seq")
    lines = (tmp_path / "run" / "metrics.jsonl").read_bytes().split(b"\n")
    records = [json.loads(line) for line in lines if line]
    assert [record["train/loss"] for record in records if "train/loss" in record][-1] < 0.05


@pytest.mark.parametrize(
    ("experiment", "step", "least"),
    [("contains_five", 785, 0.98), ("contains_five", 1570, 0.999), ("two_big_neighbours", 628, 0.99)],
)
def test_a_question_about_digits_is_answered(tmp_path, experiment, step, least):
    """Of 5,000 unseen rows; a pass over the training rows is 157 steps."""
    records = trained_records(tmp_path, f"experiment={experiment}", f"trainer.max_steps={step}")
    (accuracy,) = (record["valid/accuracy"] for record in records if record["step"] == step and "valid/loss" in record)
    assert accuracy >= least


def test_a_classifier_learns_a_hundred_rows_by_heart(tmp_path):
    records = trained_records(tmp_path, "experiment=overfit_hundred_classifier")
    assert [record["train/loss"] for record in records if "train/loss" in record][-1] < 0.05


def trained_records(folder, *options):
    """The records of a run with these options."""
    command = [sys.executable, str(ROOT / "train.py"), *options, "hydra.run.dir=run"]
    subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONUTF8": "1"}, check=True)
    return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_bytes().split(b"\n")[:-1]]
