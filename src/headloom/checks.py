"""What `train.py check=...` does in place of a training."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

from headloom.build_training import rate_option
from headloom.config.schema import TrainConfig
from headloom.data.files import written_beside
from headloom.insight.progress import StepProgress
from headloom.insight.rate_picture import draw_rate_curve
from headloom.training.engine import CountedBatch
from headloom.training.interrupt import noting_interrupts
from headloom.training.rate_finder import exponential, raise_rate
from headloom.training_run import TrainingRun

logger = logging.getLogger(__name__)

NUM_UPDATES = 100
RANGE = 1e3
"""The rates go from the optimizer's usual peak divided by this to that peak times this."""


def find_learning_rate(config: TrainConfig, run_dir: Path) -> None:
    """Raise the rate over some updates of a fresh model; learning_rates.png, learning_rates.json and a suggestion.

    It writes no checkpoint: a run in the same folder starts afresh.

    Raises:
        ConfigError, DataError: the run cannot start; the message says why.
        SystemExit: it was interrupted; the status is 128 + the signal's number.
    """
    run = TrainingRun(config, run_dir)
    num_updates = min(NUM_UPDATES, config.trainer.max_steps)
    usual = config.optimizer.unset_lr
    run.trainer.learning_rate = exponential(lowest=usual / RANGE, highest=usual * RANGE, num_updates=num_updates)
    with (
        StepProgress(first_step=0, max_steps=num_updates) as progress,
        noting_interrupts() as interrupt,
    ):
        curve = raise_rate(
            run.trainer, _updates(run), num_updates=num_updates, interrupt=interrupt, progress=progress.update
        )
    if interrupt.signal is not None:
        raise SystemExit(128 + interrupt.signal)
    option = None if curve.suggestion is None else rate_option(config, curve.suggestion)
    values = {
        "suggestion": option,
        "falls_fastest_at": curve.steepest,
        "fall_ends_at": curve.lowest,
        "learning_rates": curve.rates,
        "losses": curve.losses,
        "smoothed_losses": curve.smoothed,
    }
    run_dir.mkdir(parents=True, exist_ok=True)
    with written_beside(run_dir / "learning_rates.json") as partial:
        partial.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8", newline="\n")
    with written_beside(run_dir / "learning_rates.png") as partial:
        draw_rate_curve(curve, partial, title=f"{config.optimizer.kind.name}: loss while the rate rises")
    if option is None:
        logger.warning(
            "over %d updates the loss did not fall at any rate: see %s%s",
            len(curve.rates),
            run_dir / "learning_rates.png",
            f", and allow {NUM_UPDATES} with trainer.max_steps" if num_updates < NUM_UPDATES else "",
        )
    else:
        logger.info(
            "the loss falls fastest at a rate of %.2g and until %.2g: try %s; the curve is %s",
            curve.steepest,
            curve.lowest,
            option,
            run_dir / "learning_rates.png",
        )


def _updates(run: TrainingRun) -> Iterator[list[CountedBatch]]:
    while True:
        yield [next(run.work.train_batches) for _ in range(run.config.trainer.accumulation)]
