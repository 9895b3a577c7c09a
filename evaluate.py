"""Score a checkpoint or translations: python evaluate.py checkpoint=FILE [option=value ...]; --help shows more."""

import sys
from pathlib import Path

from headloom.config import launch
from headloom.config.schema_use import EvaluateConfig


def evaluate(config: EvaluateConfig) -> None:
    from headloom.work import systems

    if systems.are_texts(config):
        systems.evaluate_systems(config, config.output)
    else:
        from headloom import run  # loads torch: only now that every option is known to be right

        run.evaluate(config)


if __name__ == "__main__":
    sys.exit(launch.run_once(evaluate, name="evaluate", conf=Path(__file__).parent / "conf"))
