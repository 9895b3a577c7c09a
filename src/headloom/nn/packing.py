"""Packing every linear layer of a model that is used and not trained: see packed.py."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from headloom.nn.linear import Linear
from headloom.nn.packed import can_be_packed


def pack_weights(model: nn.Module, dtype: torch.dtype) -> list[Linear]:
    """Pack the linear layers of `model` where that helps: on a CPU. Returns those that were not packed yet.

    The weights must not change from here.
    """
    layers = [module for module in model.modules() if isinstance(module, Linear) and _can_be_packed(module, dtype)]
    for layer in layers:
        layer.pack(dtype)
    return layers


@torch.no_grad()
def hold_in_float16(model: nn.Module) -> None:
    """Round the weights of every linear layer to float16, and pack them for good, on a CPU with FBGEMM.

    Small ones too, which are multiplied in float32: joined with others (linear.py) they are packed, and a search is to
    have the weights of the loss.

    Raises:
        OverflowError: a weight is beyond float16; those before it are rounded.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, Linear):
            half_OI = layer.weight.to(torch.float16)
            if not half_OI.isfinite().all():
                raise OverflowError(f"{name}.weight holds {layer.weight.abs().max():.3g}, which is beyond float16")
            layer.weight.copy_(half_OI)
    pack_weights(model, torch.float16)


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
        and can_be_packed(dtype)
    )
