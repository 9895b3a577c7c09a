"""Activations that are computed again in the backward pass instead of being kept (Chen et al. 2016, section 3).

A recomputed module keeps its inputs only. It runs again with the random state
it had, so dropout repeats and gradients are the same bit for bit; the forward
pass is then paid twice. Any model whose blocks are `nn.ModuleList`s named
`blocks` can be recomputed; names of weights do not change.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from headloom.nn.attention import MultiHeadAttention


def blocks(model: nn.Module) -> list[list[nn.Module]]:
    """The blocks of each stack of `model`."""
    lists = ((name.rpartition(".")[2], module) for name, module in model.named_modules())
    return [list(module) for name, module in lists if name == "blocks" and isinstance(module, nn.ModuleList)]


def recompute_blocks(model: nn.Module, *, every: int = 1) -> int:
    """Recompute every `every`-th block of each stack, the first among them; how many that are."""
    return _recompute(block for stack in blocks(model) for block in stack[::every])


def recompute_attention(model: nn.Module) -> int:
    """Recompute the attention of each block, which keeps most for what it costs (Korthikanti et al. 2022, section 5);
    how many modules that are."""
    return _recompute(module for module in model.modules() if isinstance(module, MultiHeadAttention))


def _recompute(modules: Iterable[nn.Module]) -> int:
    number = 0
    for module in modules:
        module.forward = _recomputed(module, module.forward)
        number += 1
    return number


def _recomputed(module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    def recomputed(*arguments: Any, **options: Any) -> Any:
        if not (module.training and torch.is_grad_enabled()):
            return forward(*arguments, **options)
        return checkpoint(forward, *arguments, use_reentrant=False, **options)

    return recomputed
