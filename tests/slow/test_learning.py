"""The recipes of conf/experiment reach what they promise: a few minutes each."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("experiment", ["copy", "reverse"])
def test_a_made_up_task_is_learned_without_a_fault(tmp_path, experiment):
    """At least 98 of 100 unseen sequences exactly right."""
    environment = {**os.environ, "PYTHONUTF8": "1"}
    for command, *options in (
        ("train.py", f"experiment={experiment}", "hydra.run.dir=run"),
        ("evaluate.py", "checkpoint=run/checkpoints/best.pt", "decoding=greedy", "output=scores"),
    ):
        subprocess.run([sys.executable, str(ROOT / command), *options], cwd=tmp_path, env=environment, check=True)
    hypotheses, references = (
        (tmp_path / "scores" / name).read_text(encoding="utf-8").split("\n")[:-1]
        for name in ("hypotheses.txt", "reference.txt")
    )
    exact = sum(one == other for one, other in zip(hypotheses, references, strict=True))
    assert exact / len(references) >= 0.98
