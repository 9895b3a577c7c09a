"""How the gradients of one update become one gradient, whoever computed them.

An engine runs the passes of one rank and sums their gradients over the ranks.
`Alone` is one process; replicated.py keeps a copy of the model on every rank,
sharded.py a part of it. Losses are sums, so gradients are summed, never
averaged: the division by the targets of the whole update is the trainer's.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from headloom.ranks import ALONE, Ranks
from headloom.training.checkpoint import load_checkpoint, save_checkpoint


class CountedBatch(Protocol):
    """What a training step asks of a batch; the rest is between the data and the task."""

    @property
    def num_targets(self) -> int:
        """Targets that count in the loss."""
        ...

    @property
    def num_tokens(self) -> int:
        """Real tokens, of the side that the task's speed is told in: those written, or those read where none are."""
        ...

    def to(self, device: torch.device) -> "CountedBatch": ...

    def halves(self) -> Sequence["CountedBatch"]:
        """Two batches that hold its rows between them; none where it has one row."""
        ...


Losses = Callable[[CountedBatch], dict[str, Any]]
"""The forward pass of a batch: its "loss", with the graph to differentiate it, and other sums by name.

A dictionary, in which engines find the tensors; and one function, since they watch a forward pass, in which losses use
weights too.
"""


class Engine(Protocol):
    """What the trainer asks of an engine. Ranks call each method alike, with batches of their own."""

    @property
    def ranks(self) -> Ranks: ...

    @property
    def can_look_again(self) -> bool:
        """Whether one rank can compute a batch of its own, with gradients, while the others do something else."""
        ...

    @property
    def can_try_again(self) -> bool:
        """Whether a rank whose memory does not suffice can give up, and all begin the update anew."""
        ...

    def passes(self, batches: Sequence[CountedBatch]) -> Generator[CountedBatch, None, None]:
        """The batches to give to `compute`; the backward of each comes before the next is asked for.

        After the last one the gradient is that of all ranks.
        """
        ...

    def give_up(self) -> None:
        """After a pass that failed, and when `passes` is closed: take part in what the other ranks still wait for.

        The gradient is then of no use on any rank.
        """
        ...

    def compute(self, losses: Losses, batch: CountedBatch) -> dict[str, Any]:
        """`losses` of `batch`, which is on the device. Of a batch without targets there may be the loss alone, 0."""
        ...

    def together(self, tensor: Tensor) -> Tensor:
        """The whole of a tensor that may be sharded, on every rank."""
        ...

    def save(self, path: Path, contents: Mapping[str, Any]) -> None:
        """Write a checkpoint as a process alone does; tensors in `contents` are as each rank keeps them."""
        ...

    def load(self, path: Path) -> dict[str, Any]:
        """Read a checkpoint; its tensors are whole, and for `part` and `optimizer_part` to take from."""
        ...

    def part(self, whole: Tensor, like: Tensor) -> Tensor:
        """What this rank keeps of a tensor of which it keeps `like`."""
        ...

    def optimizer_part(self, whole: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """What this rank keeps of the state of `optimizer` that a process alone has."""
        ...

    def evaluating(self) -> AbstractContextManager[None]:
        """A context in which each rank may call the model as often as it likes."""
        ...


class Alone:
    """One process."""

    ranks: Ranks = ALONE
    can_look_again = can_try_again = True

    def passes(self, batches: Sequence[CountedBatch]) -> Generator[CountedBatch, None, None]:
        return (batch for batch in batches if batch.num_targets)

    def give_up(self) -> None:
        pass

    def compute(self, losses: Losses, batch: CountedBatch) -> dict[str, Any]:
        return losses(batch)

    def together(self, tensor: Tensor) -> Tensor:
        return tensor

    def save(self, path: Path, contents: Mapping[str, Any]) -> None:
        self.ranks.first_does(lambda: save_checkpoint(path, contents))

    def load(self, path: Path) -> dict[str, Any]:
        return load_checkpoint(path)

    def part(self, whole: Tensor, like: Tensor) -> Tensor:
        return whole

    def optimizer_part(self, whole: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return dict(whole)

    def evaluating(self) -> AbstractContextManager[None]:
        return nullcontext()


PROCESS_ALONE = Alone()
