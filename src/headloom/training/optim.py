"""Optimizers: PyTorch's, in their fused form."""

import torch
from torch import nn


def adam(model: nn.Module, *, beta1: float, beta2: float, epsilon: float) -> torch.optim.Optimizer:
    """Adam (Kingma and Ba 2015, algorithm 1). The trainer sets the rate before each update."""
    return torch.optim.Adam(model.parameters(), betas=(beta1, beta2), eps=epsilon, fused=True)


def adamw(
    model: nn.Module, *, beta1: float, beta2: float, epsilon: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Adam with decoupled decay (Loshchilov and Hutter 2019, algorithm 2), on matrices only.

    Biases and the gains of norms set a scale or an offset and are left alone.
    """
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(beta1, beta2), eps=epsilon, fused=True)
