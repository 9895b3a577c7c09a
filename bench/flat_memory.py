"""Memory of a training by the number of its updates: resident size of train.py, which trains a tiny model for long.

    python bench/flat_memory.py [updates]

Records, validations and checkpoints are part of it. It prints one row for each tenth of the updates.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = os.sysconf("SC_PAGE_SIZE")


def options(folder: Path, num_updates: int) -> list[str]:
    return [
        *("data=copy", "data.num_train=200", "data.num_valid=4", "data.num_symbols=5", "data.max_symbols=6"),
        *("data.max_length=16", f"data.folder={folder}/data", "tokenizer=char", "size=tiny", "decoding=greedy"),
        *("model.d_model=8", "model.num_heads=1", "model.d_ff=8", "model.num_encoder_layers=1"),
        *("model.num_decoder_layers=1", "model.dropout=0.1", f"trainer.max_steps={num_updates}"),
        *("trainer.max_tokens=32", f"trainer.log_every={num_updates // 1000}"),
        *(f"trainer.evaluate_every={num_updates // 10}", f"trainer.save_every={num_updates // 10}"),
        *("trainer.num_threads=1", "trainer.precision=float32", f"hydra.run.dir={folder}/run"),
    ]


def newest_step(metrics: Path) -> int:
    lines = metrics.read_bytes().split(b"\n")[:-1] if metrics.exists() else []
    return int(json.loads(lines[-1])["step"]) if lines else 0


def main(num_updates: int) -> int:
    """Print the table; the exit status of train.py."""
    with tempfile.TemporaryDirectory() as name:
        folder, started_at, due = Path(name), time.perf_counter(), num_updates // 10
        command = [sys.executable, str(ROOT / "train.py"), *options(folder, num_updates)]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        print("| updates | resident (MiB) | seconds |\n| --- | --- | --- |", flush=True)
        while process.poll() is None:
            time.sleep(0.2)
            step = newest_step(folder / "run" / "metrics.jsonl")
            if step >= due:
                pages = int(Path(f"/proc/{process.pid}/statm").read_bytes().split()[1])
                seconds = time.perf_counter() - started_at
                print(f"| {step:,} | {pages * PAGE / 2**20:.1f} | {seconds:.0f} |", flush=True)
                due += num_updates // 10
        return process.returncode


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000))
