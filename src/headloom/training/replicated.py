"""A copy of the model on every rank: DistributedDataParallel (Li et al. 2020)."""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from headloom.ranks import Ranks
from headloom.training.engine import Alone, CountedBatch, Losses

BUFFERS_OPTION = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in inspect.signature(DistributedDataParallel).parameters
)
"""Its name since PyTorch 2.13, or before. Buffers are tables that every rank computes alike."""


class Replicated(Alone):
    """A copy of the model on every rank; gradients are summed while backward goes on, once an update."""

    def __init__(self, model: nn.Module, *, device: torch.device, ranks: Ranks) -> None:
        self.ranks = ranks
        buffers: dict[str, Any] = {BUFFERS_OPTION: False}
        self._module = DistributedDataParallel(
            _Loss(model),
            device_ids=None if device.type == "cpu" else [device],
            gradient_as_bucket_view=True,
            **buffers,
        )
        self._module.register_comm_hook(None, _summed)

    def passes(self, batches: Sequence[CountedBatch]) -> Iterator[CountedBatch]:
        own: list[CountedBatch] = [batch for batch in batches if batch.num_targets] or [_NoBatch()]
        for batch in own[:-1]:
            with self._module.no_sync():
                yield batch
        yield own[-1]

    def compute(self, losses: Losses, batch: CountedBatch) -> dict[str, Any]:
        found: dict[str, Any] = self._module(losses, batch)
        return found


class _NoBatch:
    """What a rank computes that has no batch of an update: nothing, but it takes part in the sum."""

    num_targets = 0

    def to(self, device: torch.device) -> "_NoBatch":
        return self

    def halves(self) -> Sequence[CountedBatch]:
        return ()


class _Loss(nn.Module):
    """What DistributedDataParallel watches: the forward pass of a batch as the forward of a module."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._parameters_reached = tuple(p for p in model.parameters() if p.requires_grad)

    def forward(self, losses: Losses, batch: CountedBatch) -> dict[str, Any]:
        zero = _Reach.apply(*self._parameters_reached)  # type: ignore[no-untyped-call]
        if isinstance(batch, _NoBatch):
            return {"loss": zero}
        found = losses(batch)
        return {**found, "loss": found["loss"] + zero}


class _Reach(torch.autograd.Function):
    """Zero, with every parameter in its graph but no gradient for any.

    DistributedDataParallel waits in backward for all parameters. Some are in
    no loss of this rank (an expert without tokens, a rank without a batch);
    with this each is reached, at no cost.
    """

    @staticmethod
    def forward(ctx: Any, *parameters: Tensor) -> Tensor:
        ctx.num_parameters = len(parameters)
        return torch.zeros((), device=parameters[0].device)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        return (None,) * ctx.num_parameters


def _summed(state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])
