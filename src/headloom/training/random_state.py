"""Every random generator a run draws from, as plain values."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and PyTorch's generators, on every device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def seed_rank(seed: int, *, rank: int, step: int) -> None:
    """Seed a rank other than 0, which starts, or joins at `step`, with random numbers of its own.

    Weights are made before, with the same numbers on all of them.
    """
    seed_everything(int(np.random.SeedSequence([seed, rank, step]).generate_state(1, np.uint64)[0] >> 1))


def random_state() -> dict[str, Any]:
    """All of them, readable with `torch.load(weights_only=True)`: NumPy's arrays become lists.

    Of GPUs it is the current one: another is another rank's.
    """
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": [str(name), [int(k) for k in keys], int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state()] if torch.cuda.is_available() else [],
    }


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Make every generator go on from `random_state()`."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"][0].cpu())


def restore_rank(contents: Mapping[str, Any], *, rank: int, seed: int) -> None:
    """Make the generators of a rank go on from a checkpoint; a rank that it does not know gets fresh ones."""
    states = [contents["random"], *contents.get("random_of_others", [])]
    if rank < len(states):
        restore_random_state(states[rank])
    else:
        seed_rank(seed, rank=rank, step=contents["step"])
