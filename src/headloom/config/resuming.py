"""Which options a resumed run may change."""

import logging
from collections.abc import Mapping
from typing import Any

from headloom.config import schema_decoding
from headloom.errors import CheckpointError

logger = logging.getLogger(__name__)

FIXED = (
    *("model.", "position.", "norm.", "feed_forward.", "attention.", "tokenizer.", "task.", "data.", "seed"),
    *("optimizer.kind", "optimizer.decay_", "trainer.max_tokens", "trainer.pad_to_multiple"),
)
"""How the names of options begin that a resumed run cannot change: weights, moments, ids and the place in the data
mean nothing without them."""

MOVABLE = frozenset(
    f"data.{name}"
    for name in (
        *("folder", "path", "source", "target"),
        *("valid_path", "valid_source", "valid_target", "test_path", "test_source", "test_target"),
    )
)
"""Where data lies. That the training pairs are the same is known by their content."""


OF_TRANSLATIONS = ("bleu", "chrf")
"""Headlines that depend on how a translation is searched for."""
OF_THE_MACHINE = frozenset(f"decoding.{name}" for name in schema_decoding.OF_THE_MACHINE)


def check_resumed(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Say which options a resumed run changes, and refuse those that what it goes on from rests on.

    `old` and `new` are plain values, as `saved.to_plain` makes them.

    Raises:
        CheckpointError: such an option was changed.
    """
    changes = _changes(old, new)
    for name in ("resume", "warm_start"):  # how a run began does not matter to how it goes on
        changes.pop(name, None)
    fixed = [name for name in changes if name.startswith(FIXED) and name not in MOVABLE]
    if fixed:
        refused = "; ".join(f"{name}={changes[name]}" for name in fixed)
        raise CheckpointError(f"a resumed run cannot change {refused}: leave it, or start a new run")
    searched = [name for name in changes if name.startswith("decoding.") and name not in OF_THE_MACHINE]
    if searched and new.get("task", {}).get("headline") in OF_TRANSLATIONS:
        logger.warning(
            "the best validation so far was scored with another search (%s): it and later ones do not compare, so "
            "best.pt may not be the best",
            "; ".join(f"{name}={changes[name]}" for name in searched),
        )
    for name, change in changes.items():
        logger.info("resumed with another %s=%s: taken", name, change)


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """The new and the old value of each option that differs, by its name."""
    changes: dict[str, str] = {}
    of_one_kind = old.get("kind") == new.get("kind")  # else only one of them has some options
    for name in sorted(old.keys() | new.keys() if of_one_kind else old.keys() & new.keys()):
        before, after = old.get(name), new.get(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            changes |= _changes(before, after, f"{prefix}{name}.")
        elif before != after:
            changes[f"{prefix}{name}"] = f"{_as_option(after)} (was {_as_option(before)})"
    return changes


def _as_option(value: Any) -> str:
    """As it is written on the command line, where None is refused."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
