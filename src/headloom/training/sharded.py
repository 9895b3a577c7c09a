"""A part of the model on every rank: fully_shard, after ZeRO stage 3 (Rajbhandari et al. 2020, section 5.3)."""

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from headloom.ranks import Ranks
from headloom.training.checkpoint import load_checkpoint
from headloom.training.engine import Alone, CountedBatch, Losses
from headloom.training.shared_file import save_shared

BLOCK = re.compile(r"(.*\.)?blocks\.\d+")
"""Modules whose weights are together on a rank while they compute, and apart before and after."""


class Sharded(Alone):
    """A part of every weight, of its gradient and of its moments on each rank; a block is put together to compute.

    Every rank makes as many passes as the one with the most batches.
    """

    can_look_again = can_try_again = False  # the others would wait in the middle of a pass, for this rank's part

    def __init__(self, model: nn.Module, *, device: torch.device, ranks: Ranks) -> None:
        self.ranks = ranks
        mesh = init_device_mesh(device.type, (ranks.world_size,))
        for name, module in model.named_modules():
            if BLOCK.fullmatch(name):
                fully_shard(module, mesh=mesh)
        self._module = _Loss(model)
        self._root: FSDPModule = fully_shard(self._module, mesh=mesh)  # changes the class of what it is given
        self._parts = [module for module in self._module.modules() if isinstance(module, FSDPModule)]
        for part in self._parts:
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
            part.set_reduce_scatter_unused_params(True, recurse=False)

    def passes(self, batches: Sequence[CountedBatch]) -> Generator[CountedBatch, None, None]:
        own: list[CountedBatch] = [batch if batch.num_targets else _StandIn(batch) for batch in batches]
        num_passes = self.ranks.all_max(len(own))
        own += [_StandIn(batches[0])] * (num_passes - len(own))
        for number, batch in enumerate(own, start=1):
            self._root.set_requires_gradient_sync(number == num_passes)
            self._root.set_is_last_backward(number == num_passes)
            yield batch

    def compute(self, losses: Losses, batch: CountedBatch) -> dict[str, Any]:
        if isinstance(batch, _StandIn):
            return {"loss": self._module(losses, batch.batch)["loss"] * 0}
        found: dict[str, Any] = self._module(losses, batch)
        return found

    def together(self, tensor: Tensor) -> Tensor:
        return _full(tensor) if isinstance(tensor, DTensor) else tensor

    def save(self, path: Path, contents: Mapping[str, Any]) -> None:
        save_shared(path, contents, self.ranks)

    def load(self, path: Path) -> dict[str, Any]:
        return load_checkpoint(path, mapped=True)

    def part(self, whole: Tensor, like: Tensor) -> Tensor:
        if not isinstance(like, DTensor):
            return whole
        on_device = whole.to(like.device, like.dtype)
        return distribute_tensor(on_device, like.device_mesh, like.placements, src_data_rank=None)

    def optimizer_part(self, whole: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        state = {
            number: {
                # Clones, since an optimizer keeps what it is given: a piece of a file would keep all of it.
                name: (self.part(value, parameters[number]) if _is_like(value, parameters[number]) else value).clone()
                for name, value in values.items()
            }
            for number, values in whole["state"].items()
        }
        return {**whole, "state": state}

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        for part in self._parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        try:
            yield
        finally:
            for part in self._parts:
                part.reshard()
                part.set_reshard_after_forward(part is not self._root, recurse=False)


def _full(tensor: DTensor) -> Tensor:
    whole: Tensor = tensor.full_tensor()
    return whole


def _is_like(value: Any, parameter: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == parameter.shape


class _StandIn:
    """A batch computed to take part in the exchange of weights; it counts for nothing."""

    num_targets = num_tokens = 0

    def __init__(self, batch: CountedBatch) -> None:
        self.batch = batch

    def to(self, device: torch.device) -> "_StandIn":
        return _StandIn(self.batch.to(device))

    def halves(self) -> Sequence[CountedBatch]:
        return ()


class _Loss(nn.Module):
    """What fully_shard watches: the forward pass of a batch as the forward of a module."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, losses: Losses, batch: CountedBatch) -> dict[str, Any]:
        return losses(batch)
