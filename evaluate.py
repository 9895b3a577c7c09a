"""Score a checkpoint: python evaluate.py checkpoint=FILE [option=value ...]; --help shows what there is."""

import sys
from pathlib import Path

from headloom.config import launch
from headloom.config.schema_use import EvaluateConfig


def evaluate(config: EvaluateConfig) -> None:
    from headloom import run  # loads torch: only now that every option is known to be right

    run.evaluate(config)


if __name__ == "__main__":
    sys.exit(launch.run_once(evaluate, name="evaluate", conf=Path(__file__).parent / "conf"))
