"""Weights of another model, put into a fresh one wherever name and shape agree."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Fit:
    """Names of weights: what a model took of another's, and what not."""

    taken: list[str]
    fresh: list[str]
    """Of the model, without a namesake there: as they were."""
    other_shape: list[str]
    """In both, but of another shape: as they were."""
    unused: list[str]
    """Of the other model only."""
    share: float
    """Of the model's parameters, how many were taken: from 0 to 1."""


@torch.no_grad()
def take_fitting(model: nn.Module, weights: Mapping[str, Any]) -> Fit:
    """Overwrite the weights of `model` that have a namesake of the same shape among `weights`.

    A weight with several names, such as a tied output matrix, is taken once one of them is; where several are
    there, the model's first name counts.
    """
    names_of: dict[int, list[str]] = {}
    own = model.state_dict(keep_vars=True)
    for name, weight in own.items():
        names_of.setdefault(id(weight), []).append(name)
    taken: list[str] = []
    fresh: list[str] = []
    other_shape: list[str] = []
    for names in names_of.values():
        weight = own[names[0]]
        namesakes = [name for name in names if name in weights]
        fitting = [name for name in namesakes if weights[name].shape == weight.shape]
        if fitting:
            weight.copy_(weights[fitting[0]])
            taken += names
        else:
            (other_shape if namesakes else fresh).extend(namesakes or names)
    num_taken = sum(p.numel() for name, p in model.named_parameters() if name in set(taken))
    share = num_taken / max(sum(p.numel() for p in model.parameters()), 1)
    return Fit(taken, fresh, other_shape, [name for name in weights if name not in own], share)


def in_short(names: Collection[str], all_names: Collection[str]) -> list[str]:
    """`names`, with the name of a module in place of its weights where all of them are there."""
    chosen, others = set(names), set(all_names) - set(names)
    short: dict[str, None] = {}
    for name in all_names:
        if name in chosen:
            parts = name.split(".")
            prefixes = (".".join(parts[:count]) for count in range(1, len(parts)))
            whole = (prefix for prefix in prefixes if not any(other.startswith(f"{prefix}.") for other in others))
            short[next(whole, name)] = None
    return list(short)
