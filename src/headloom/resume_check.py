"""`train.py check=resume`: a proof on the user's own configuration that a resumed run is the run that never stopped."""

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from headloom.config.schema import Check, TrainConfig
from headloom.errors import CheckpointError, ConfigError
from headloom.training.checkpoint import load_checkpoint
from headloom.training_run import TrainingRun

logger = logging.getLogger(__name__)

NUM_UPDATES = 20
PLANS = {"straight": (1.0,), "halves": (0.5, 1.0), "thirds": (0.35, 0.7, 1.0)}
"""Where each run stops, as a share of the updates: 20 = 10 + 10 = 7 + 7 + 6."""


def prove_resume(config: TrainConfig, run_dir: Path) -> None:
    """Train a few updates at a stretch, in two parts and in three, and compare all that the checkpoints hold.

    Each part is a new run from the checkpoint of the one before, in a folder below `run_dir` that is removed
    afterwards. There is a validation where the first of three parts ends. Rates are those of the whole training.

    Raises:
        CheckpointError: something differs; the message names some of it.
        ConfigError: there are too few updates to stop in between.
        SystemExit: it was interrupted; the status is 128 + the signal's number.
    """
    num_updates = min(NUM_UPDATES, config.trainer.max_steps)
    if num_updates < 3:
        raise ConfigError(f"check=resume stops in between: set trainer.max_steps to 3 or more, not {num_updates}")
    trainer = replace(
        config.trainer,
        evaluate_every=max(1, round(PLANS["thirds"][0] * num_updates)),
        save_every=None,
        log_every=1,
        patience=None,
        min_steps=0,
        average_last=None,
        average_best=None,
    )
    config = replace(config, trainer=trainer, check=Check.none, resume="auto")
    folder = run_dir / "check_resume"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        ends = {}
        for name, shares in PLANS.items():
            for share in shares:
                TrainingRun(config, folder / name).run(stop_at=round(share * num_updates))
            ends[name] = load_checkpoint(folder / name / "checkpoints" / "last.pt")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    parts = {name: differing(contents, ends["straight"]) for name, contents in ends.items() if name != "straight"}
    sums = {name: _sum(shares, num_updates) for name, shares in PLANS.items()}
    wrong = [f"{sums[name]}: {', '.join(found[:3])}" for name, found in parts.items() if found]
    if wrong:
        raise CheckpointError(f"a resumed run is not the run that never stopped: {'; '.join(wrong)} differ")
    sections = ", ".join(sorted(name for name in ends["straight"] if name not in ("magic", "format", "config")))
    logger.info(
        "%d = %s = %s updates: %d values of %s are the same bit for bit",
        num_updates,
        sums["halves"],
        sums["thirds"],
        sum(1 for _ in leaves(ends["straight"])),
        sections,
    )


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Where the contents of two checkpoints differ, but for the seconds they took and how they were started."""
    ones, others = dict(leaves(one)), dict(leaves(other))
    names = [name for name in ones.keys() | others.keys() if not name.endswith(("_seconds", "config.resume"))]
    return sorted(name for name in names if not _same(ones.get(name), others.get(name)))


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every tensor and plain value of a checkpoint, by where it is."""
    match value:
        case Mapping():
            for key, item in value.items():
                yield from leaves(item, f"{name}.{key}" if name else str(key))
        case list() | tuple():
            for number, item in enumerate(value):
                yield from leaves(item, f"{name}.{number}")
        case _:
            yield name, value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        # By bits: a NaN is itself.
        alike = one.shape == other.shape and one.dtype == other.dtype
        return alike and torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
    return type(one) is type(other) and (one == other or one != one)


def _sum(shares: Sequence[float], num_updates: int) -> str:
    stops = [0, *(round(share * num_updates) for share in shares)]
    return " + ".join(str(end - start) for start, end in pairwise(stops))
