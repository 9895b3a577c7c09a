"""A copy of the model on every rank: DistributedDataParallel (Li et al. 2020)."""

import inspect
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import Node
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
        loss = _Loss(model)
        self._parameters = loss.parameters_reached
        self._module = DistributedDataParallel(
            loss,
            device_ids=None if device.type == "cpu" else [device],
            gradient_as_bucket_view=True,
            **buffers,
        )
        self._module.register_comm_hook(None, _summed)
        # PyTorch lays out its buffers anew after the first pass, in the order in which the gradients came, and sums of
        # three ranks are rounded by their place there. With this pass, which changes nothing, the layout is the same
        # whether a run starts or goes on.
        self._module(None, _NoBatch())["loss"].backward()
        model.zero_grad(set_to_none=True)
        self._note_reached()

    def passes(self, batches: Sequence[CountedBatch]) -> Generator[CountedBatch, None, None]:
        self._reached.clear()
        own: list[CountedBatch] = [batch for batch in batches if batch.num_targets] or [_NoBatch()]
        for batch in own[:-1]:
            with self._module.no_sync():
                yield batch
        yield own[-1]

    def give_up(self) -> None:
        missing = [parameter for parameter in self._parameters if parameter not in self._reached]
        if len(missing) < len(self._parameters):
            torch.autograd.backward(reach(missing))  # the pass that adds up has begun: what is left of it
        else:
            self._module(None, _NoBatch())["loss"].backward()

    def _note_reached(self) -> None:
        """Have `_reached` hold the parameters that the pass which adds up has come to, with a gradient or without."""
        self._reached: set[nn.Parameter] = set()

        def noting(parameter: nn.Parameter) -> Callable[..., None]:
            def note(*gradients: object) -> None:
                if self._module.require_backward_grad_sync:
                    self._reached.add(parameter)

            return note

        self._ends = [_end(parameter) for parameter in self._parameters]  # there as long as somebody holds them
        for parameter, end in zip(self._parameters, self._ends, strict=True):
            end.register_hook(noting(parameter))

    def compute(self, losses: Losses, batch: CountedBatch) -> dict[str, Any]:
        found: dict[str, Any] = self._module(losses, batch)
        return found


class _NoBatch:
    """What a rank computes that has no batch of an update: nothing, but it takes part in the sum."""

    num_targets = num_tokens = 0

    def to(self, device: torch.device) -> "_NoBatch":
        return self

    def halves(self) -> Sequence[CountedBatch]:
        return ()


class _Loss(nn.Module):
    """What DistributedDataParallel watches: the forward pass of a batch as the forward of a module."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        # In about the order in which a backward pass comes to them.
        self.parameters_reached = tuple(p for p in model.parameters() if p.requires_grad)[::-1]

    def forward(self, losses: Losses | None, batch: CountedBatch) -> dict[str, Any]:
        """`losses` of `batch`; None where there is no batch."""
        if isinstance(batch, _NoBatch):
            return {"loss": reach(self.parameters_reached)}
        assert losses is not None
        found = losses(batch)
        # Made after all else, so that the backward pass comes to it first: later, and every gradient would wait for it.
        return {**found, "loss": found["loss"] + reach(self.parameters_reached)}


def reach(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Zero, with all of `parameters` in its graph but no gradient for any.

    DistributedDataParallel waits in backward for all parameters. Some are in
    no loss of this rank (an expert without tokens, a rank without a batch);
    with this each is reached, at no cost.
    """
    zero: Tensor = _Reach.apply(*parameters)  # type: ignore[no-untyped-call]
    return zero


class _Reach(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *parameters: Tensor) -> Tensor:
        ctx.num_parameters = len(parameters)
        return torch.zeros((), device=parameters[0].device)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        return (None,) * ctx.num_parameters


def _end(parameter: nn.Parameter) -> Node:
    """The node of every graph that adds to the parameter's gradient."""
    view = parameter.expand_as(parameter).grad_fn
    assert view is not None
    end = view.next_functions[0][0]
    assert end is not None
    return end


def _summed(state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])
