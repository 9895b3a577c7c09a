"""One checkpoint out of several: the mean of their weights, which is often better than each of them.

Vaswani et al. (2017), section 6.1, average the last 5 or 20 checkpoints of a run.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from headloom.errors import CheckpointError
from headloom.training.checkpoint import load_checkpoint

STATE_OF_A_RUN = frozenset(
    (
        *("optimizer", "scaler", "num_skipped", "has_collapsed", "average", "plateau", "guard"),
        *("data", "valid", "random", "random_of_others", "interval", "best", "ranking"),
    )
)
"""What a run goes on from, and what use of a model does not need."""
MAY_DIFFER = frozenset(
    ("data", "optimizer", "schedule", "trainer", "decoding", "seed", "resume", "warm_start", "check")
)
"""Sections of the configuration that do not say what the weights mean."""


def average_checkpoints(paths: Sequence[Path]) -> dict[str, Any]:
    """A checkpoint with the mean of the weights of `paths`, to use and not to go on from.

    Of a checkpoint with an exponential average of its weights, that average is
    taken: what it translates with. Sums are float64, in the order of the files'
    names, so that the order of `paths` changes nothing and the mean of equal
    weights is these weights. A tied matrix stays one; integers, and all that is
    no weight, are those of the newest checkpoint.

    Raises:
        CheckpointError: one cannot be read, or they are not checkpoints of one model.
    """
    first, *others = sorted(paths, key=str)
    newest = load_checkpoint(first)
    steps = [newest["step"]]
    sums = {name: value.double() for name, value in _weights(newest).items()}
    for path in others:
        contents = load_checkpoint(path)
        _check_same_model(newest, contents, first, path)
        for name, value in _weights(contents).items():
            sums[name] += value
        steps.append(contents["step"])
        newest = max(newest, contents, key=lambda one: int(one["step"]))
    owners = _owners(newest["model"])
    means = {name: (value / len(paths)).to(newest["model"][name].dtype) for name, value in sums.items()}
    model = {name: means.get(owners[_place(value)], value) for name, value in newest["model"].items()}
    kept = {name: value for name, value in newest.items() if name not in STATE_OF_A_RUN | {"magic", "format"}}
    return {**kept, "model": model, "average": None, "averaged_steps": sorted(steps)}


def _weights(contents: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights that the checkpoint is used with, tied ones once; no integers."""
    average = {} if contents["average"] is None else contents["average"]["weights"]
    weights = {name: average.get(name, contents["model"][name]) for name in _owners(contents["model"]).values()}
    return {name: value for name, value in weights.items() if value.is_floating_point()}


def _owners(model: Mapping[str, Tensor]) -> dict[tuple[Any, ...], str]:
    """The first name of each tensor; names that share one are tied."""
    owners: dict[tuple[Any, ...], str] = {}
    for name, value in model.items():
        owners.setdefault(_place(value), name)
    return owners


def _place(value: Tensor) -> tuple[Any, ...]:
    # Tensors without elements share the address 0.
    return value.data_ptr(), value.shape, value.stride(), value.dtype


def _check_same_model(one: Mapping[str, Any], other: Mapping[str, Any], first: Path, path: Path) -> None:
    config, changed = one["config"], other["config"]
    # What the model is for comes first: it decides what else there is to differ.
    for section in sorted(config.keys() | changed.keys(), key=lambda name: (name != "task", name != "model", name)):
        if section not in MAY_DIFFER and config.get(section) != changed.get(section):
            raise _differ(first, path, f"another {_first_difference(section, config, changed)}")
    of_each = STATE_OF_A_RUN | {"model", "config", "corpus", "step", "averaged_steps"}
    for part in sorted((one.keys() | other.keys()) - of_each):
        if one.get(part) != other.get(part):
            raise _differ(first, path, f"other {part}")
    shapes = [{name: value.shape for name, value in contents["model"].items()} for contents in (one, other)]
    if shapes[0] != shapes[1]:
        raise _differ(first, path, "weights of other names or shapes")


def _differ(first: Path, path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path} has {what} than {first}: average checkpoints of one model")


def _first_difference(section: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    before, after = one.get(section) or {}, other.get(section) or {}
    if not (isinstance(before, Mapping) and isinstance(after, Mapping)):
        return f"{section} ({after}, not {before})"
    if before.get("kind") != after.get("kind"):
        return f"{section} ({after.get('kind')}, not {before.get('kind')})"
    option = next(name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name))
    return f"{section}.{option} ({after.get(option)}, not {before.get(option)})"
