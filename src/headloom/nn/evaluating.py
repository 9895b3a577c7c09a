"""A model in the state in which it is only asked."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """`model` in evaluation mode without gradients; afterwards each module is in the mode it was in.

    Not `torch.inference_mode`: what a model makes on the way and keeps (a table
    of positions that grew) could then not be used in training.
    """
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def evaluating_in(model: nn.Module, device: torch.device, autocast_dtype: torch.dtype | None) -> Iterator[None]:
    """`evaluating`, with matrix products on `device` in `autocast_dtype`.

    None: as the weights are; so is float16 on a CPU, where it is of weights alone (packing.py).
    """
    is_cast = autocast_dtype is not None and not (autocast_dtype is torch.float16 and device.type == "cpu")
    with evaluating(model), torch.autocast(device.type, dtype=autocast_dtype, enabled=is_cast):
        yield
