"""train.py is killed at twenty random moments, and resumed each time."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from headloom.resume_check import differing
from headloom.training.checkpoint import load_checkpoint

ROOT = Path(__file__).parents[2]
NUM_KILLS = 20


def test_twenty_kills_leave_no_trace(tmp_path):
    """B52, B54, B94: the weights, and each record once."""
    options = [
        *("data=copy", "data.num_train=200", "data.num_valid=8", "data.num_symbols=5", "data.max_symbols=6"),
        *("data.max_length=64", f"data.folder={tmp_path}/data", "tokenizer=char", "size=tiny", "decoding=greedy"),
        *("model.d_model=32", "model.d_ff=64", "model.num_encoder_layers=2", "model.num_decoder_layers=2"),
        *("trainer.max_steps=600", "trainer.max_tokens=400", "trainer.log_every=1", "trainer.evaluate_every=40"),
        *("trainer.save_every=7", "trainer.num_threads=1", "trainer.precision=float32", "schedule=cosine"),
        *("trainer.average_decay=0.9", "trainer.accumulation=2", "model.dropout=0.1"),
    ]

    def start(folder: str, *more: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(ROOT / "train.py"), *options, f"hydra.run.dir={tmp_path}/{folder}", *more]
        return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)

    assert start("straight").wait() == 0
    metrics = tmp_path / "killed" / "metrics.jsonl"
    moments = random.Random(11)
    for _ in range(NUM_KILLS):
        before = metrics.read_bytes() if metrics.exists() else b""
        process = start("killed", "resume=auto")
        # Some kills meet the start, most a run that is going on.
        deadline = time.monotonic() + (moments.uniform(0.5, 4.0) if moments.random() < 0.2 else 60)
        while time.monotonic() < deadline and (not metrics.exists() or metrics.read_bytes() == before):
            assert process.poll() is None, "the run ended before it was killed: make it longer"
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.4))
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert start("killed", "resume=auto").wait() == 0
    ends = [load_checkpoint(tmp_path / name / "checkpoints" / "last.pt") for name in ("killed", "straight")]
    assert differing(*ends) == []
    curves = []
    for name in ("killed", "straight"):
        lines = (tmp_path / name / "metrics.jsonl").read_bytes().split(b"\n")[:-1]
        records = [json.loads(line) for line in lines]
        curves.append([(r["step"], r["train/loss"]) for r in records if "train/loss" in r])
    assert curves[0] == curves[1]
