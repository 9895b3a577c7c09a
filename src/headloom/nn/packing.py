"""Packing every linear layer of a model that is used and not trained: see packed.py."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from headloom.nn.linear import Linear


def pack_weights(model: nn.Module, dtype: torch.dtype) -> list[Linear]:
    """Pack the linear layers of `model` where that helps: on a CPU with oneDNN. Returns those that were not packed yet.

    The weights must not change from here.
    """
    layers = [module for module in model.modules() if isinstance(module, Linear) and _can_be_packed(module, dtype)]
    for layer in layers:
        layer.pack(dtype)
    return layers


@contextmanager
def packed_weights(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """The weights that are not packed yet packed inside, where they must not change."""
    layers = pack_weights(model, dtype)
    try:
        yield
    finally:
        for layer in layers:
            layer.unpack()


def _can_be_packed(layer: Linear, dtype: torch.dtype) -> bool:
    weight = layer.weight
    return (
        layer.packed is None
        and type(weight) is nn.Parameter  # not one that is divided among ranks
        and weight.device.type == "cpu"
        and weight.dtype is torch.float32
        and dtype in (torch.float32, torch.bfloat16)
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    )
