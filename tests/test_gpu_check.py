"""bench/gpu_check.py, which is to work at once where a GPU is lent, with tiny sizes on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_check_for_gpus_runs_on_a_cpu():
    command = [str(ROOT / "bench" / "gpu_check.sh"), "--device", "cpu", "--only", "train, float32"]
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = done.stdout.split("\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert lines[0].startswith("CPU, PyTorch ")
    assert all(" ok " in line for line in lines[1:-2])
    assert lines[-2] == f"{len(lines) - 3} of {len(lines) - 3} ok"
