"""What train.py, evaluate.py and translate.py run; headloom-train and so on, where the package is installed.

Each returns the exit status, for `sys.exit`.
"""

from pathlib import Path
from typing import Any

from headloom.config import launch
from headloom.config.schema import TrainConfig
from headloom.config.schema_use import EvaluateConfig, TranslateConfig


def train() -> int:
    return launch.run_jobs(_train, name="train", conf=presets())


def evaluate() -> int:
    return launch.run_once(_evaluate, name="evaluate", conf=presets())


def translate() -> int:
    return launch.run_once(_translate, name="translate", conf=presets())


def presets() -> Path:
    """conf/: a wheel holds it inside the package, a checkout at its top."""
    inside = Path(__file__).parent / "conf"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "conf"


def _train(config: TrainConfig, run_dir: Path, **ranks: Any) -> float:
    """Train, and return the best value of the headline metric; `ranks`: those that torchrun started, if it did."""
    from headloom import run  # loads torch: only now that every option is known to be right

    return run.train(config, run_dir, **ranks)


def _evaluate(config: EvaluateConfig, given: frozenset[str]) -> None:
    from headloom.work import systems

    if systems.are_texts(config):
        systems.evaluate_systems(config, config.output, given=given)
    else:
        from headloom import run  # loads torch: only now that every option is known to be right

        run.evaluate(config, given)


def _translate(config: TranslateConfig, given: frozenset[str]) -> None:
    from headloom import run  # loads torch: only now that every option is known to be right

    run.translate(config, given)
