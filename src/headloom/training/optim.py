"""Optimizers: PyTorch's, in their fused form where it has one, and which parameters decay.

The trainer sets the rate of every group before each update: the schedule's,
times the group's `rate_share` where it has one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, assert_never

import torch
from torch import nn

from headloom.nn.positional import Positional


class Role(Enum):
    """What a parameter is, as far as weight decay asks."""

    matrix = "matrix"
    embedding = "embedding"  # a table of tokens, and an output matrix that is one with it
    position = "position"
    norm = "norm"  # gains, and what else has one row and is no bias
    bias = "bias"


@dataclass(frozen=True, kw_only=True)
class DecayRule:
    """The roles that decay beside matrices, which always do.

    Biases and the gains of norms set an offset or a scale, and are left alone
    unless asked for.
    """

    embeddings: bool = True
    positions: bool = True
    norms: bool = False
    biases: bool = False

    def decays(self, role: Role) -> bool:
        match role:
            case Role.matrix:
                return True
            case Role.embedding:
                return self.embeddings
            case Role.position:
                return self.positions
            case Role.norm:
                return self.norms
            case Role.bias:
                return self.biases
            case _:
                assert_never(role)


def roles(model: nn.Module) -> dict[str, Role]:
    """The role of every parameter by its name; a matrix that is shared with an embedding is an embedding."""
    found: dict[int, Role] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, nn.Embedding):
                found[id(parameter)] = Role.embedding
            elif id(parameter) not in found:
                found[id(parameter)] = _role(module, name, parameter)
    return {name: found[id(parameter)] for name, parameter in model.named_parameters()}


def _role(module: nn.Module, name: str, parameter: nn.Parameter) -> Role:
    if isinstance(module, Positional):
        return Role.position
    if parameter.dim() >= 2:
        return Role.matrix
    return Role.bias if name.endswith("bias") else Role.norm


def decay_groups(
    model: nn.Module, rule: DecayRule, weight_decay: float, *, without: Iterable[nn.Parameter] = ()
) -> list[dict[str, Any]]:
    """Two groups of parameters, those that decay and those that do not, but for those in `without`."""
    left_out = {id(parameter) for parameter in without}
    role = roles(model)
    named = [(name, parameter) for name, parameter in model.named_parameters() if id(parameter) not in left_out]
    decaying = [parameter for name, parameter in named if rule.decays(role[name])]
    kept = [parameter for name, parameter in named if not rule.decays(role[name])]
    return [{"params": decaying, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]


def adam(model: nn.Module, *, beta1: float, beta2: float, epsilon: float) -> torch.optim.Optimizer:
    """Adam (Kingma and Ba 2015, algorithm 1)."""
    return torch.optim.Adam(model.parameters(), betas=(beta1, beta2), eps=epsilon, fused=True)


def adamw(
    model: nn.Module, *, beta1: float, beta2: float, epsilon: float, weight_decay: float, rule: DecayRule
) -> torch.optim.Optimizer:
    """Adam with decoupled decay (Loshchilov and Hutter 2019, algorithm 2)."""
    groups = decay_groups(model, rule, weight_decay)
    return torch.optim.AdamW(groups, betas=(beta1, beta2), eps=epsilon, fused=True)


def adafactor(
    model: nn.Module,
    *,
    beta2_exponent: float,
    clip_threshold: float,
    epsilon: float,
    weight_decay: float,
    rule: DecayRule,
) -> torch.optim.Optimizer:
    """Adafactor (Shazeer and Stern 2018, algorithm 4), without momentum.

    PyTorch's: the step of a tensor is min(rate, 1 / sqrt(t)) times its root
    mean square, and at least `epsilon` times that rate.
    """
    groups = decay_groups(model, rule, weight_decay)
    return torch.optim.Adafactor(groups, beta2_decay=-beta2_exponent, eps=(None, epsilon), d=clip_threshold)


def sgd(
    model: nn.Module, *, momentum: float, nesterov: bool, weight_decay: float, rule: DecayRule
) -> torch.optim.Optimizer:
    """Gradient descent with momentum, in PyTorch's form: v <- momentum v + g, w <- w - rate v; decay is part of g."""
    groups = decay_groups(model, rule, weight_decay)
    optimizer = torch.optim.SGD(groups, momentum=momentum, nesterov=nesterov, fused=True)
    if momentum:
        # PyTorch 2.13 makes them in the first step, and leaves them unwritten where a loss scaler has that step
        # skipped: the second one then adds whatever the memory held.
        for parameter in model.parameters():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def describe_groups(optimizer: torch.optim.Optimizer, *, peak: float) -> list[str]:
    """A line for the parameters of each peak rate and decay: how many there are."""
    sizes: dict[tuple[float, float], list[int]] = {}
    for group in optimizer.param_groups:
        kind = peak * group.get("rate_share", 1.0), group["weight_decay"]
        sizes.setdefault(kind, []).extend(parameter.numel() for parameter in group["params"])
    lines = []
    for (rate, weight_decay), found in sizes.items():
        decay = f"weight decay {weight_decay:g}" if weight_decay else "no weight decay"
        if found:
            lines.append(f"{len(found)} tensors of {sum(found):,} parameters: peak rate {rate:.4g}, {decay}")
    return lines
