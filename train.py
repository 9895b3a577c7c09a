"""Train a model: python train.py [group=choice ...] [option=value ...]; --help shows what there is."""

import sys
from pathlib import Path
from typing import Any

from headloom.config import launch
from headloom.config.schema import TrainConfig


def train(config: TrainConfig, run_dir: Path, **ranks: Any) -> float:
    """Train, and return the best value of the headline metric; `ranks`: those that torchrun started, if it did."""
    from headloom import run  # loads torch: only now that every option is known to be right

    return run.train(config, run_dir, **ranks)


if __name__ == "__main__":
    sys.exit(launch.run_jobs(train, name="train", conf=Path(__file__).parent / "conf"))
