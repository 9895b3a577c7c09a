"""A run that is killed at any moment, and resumed, ends with the weights of the run that was never killed.

tests/slow/test_kill.py kills the whole program twenty times.
"""

import os
import random
import signal
import time
from dataclasses import replace

from headloom import run
from headloom.resume_check import differing
from headloom.training.checkpoint import load_checkpoint

NUM_KILLS = 3


def test_kills_leave_no_trace(make_config, tmp_path):
    """B52, B54: in an update, a save, wherever it may be."""
    config = make_config(
        tmp_path / "data",
        model={"dropout": 0.1, "num_encoder_layers": 1, "num_decoder_layers": 1},
        trainer={"max_steps": 16, "save_every": 1, "evaluate_every": None, "keep_checkpoints": 2},
    )
    started_at = time.monotonic()
    run.train(config, tmp_path / "straight")
    seconds = time.monotonic() - started_at
    moments = random.Random(7)
    for _ in range(NUM_KILLS):
        child = os.fork()
        if child == 0:
            run.train(replace(config, resume="auto"), tmp_path / "killed")
            os._exit(0)
        time.sleep(moments.uniform(0.1, 0.5) * seconds)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    run.train(replace(config, resume="auto"), tmp_path / "killed")
    ends = [load_checkpoint(tmp_path / name / "checkpoints" / "last.pt") for name in ("killed", "straight")]
    assert differing(*ends) == []
    names = [sorted(path.name for path in (tmp_path / n / "checkpoints").iterdir()) for n in ("killed", "straight")]
    assert names[0] == names[1]
