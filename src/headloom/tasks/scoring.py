"""How well a model predicts the targets of an evaluation, each of which counts once."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from headloom.bar import progress_bar
from headloom.nn.evaluating import evaluating_in
from headloom.ranks import Ranks
from headloom.tasks.base import Task


class CountedBatches(Protocol):
    """Batches that say how many they are, the same ones each time."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...


@dataclass(frozen=True)
class Totals:
    """Sums over the targets of an evaluation. `nll` is in nats, never smoothed."""

    nll: float
    num_correct: int
    num_targets: int

    @property
    def loss(self) -> float:
        """Nats per target."""
        return self.nll / self.num_targets

    @property
    def perplexity(self) -> float:
        """exp of more than 709 overflows; NaN stays NaN."""
        return math.inf if self.loss > 700 else math.exp(self.loss)

    @property
    def accuracy(self) -> float:
        """Share of the targets that get the highest logit."""
        return self.num_correct / self.num_targets


def score_batches(
    task: Task[Any, Any],
    model: nn.Module,
    batches: CountedBatches,
    *,
    device: torch.device,
    autocast_dtype: torch.dtype | None,
    description: str,
    ranks: Ranks,
) -> Totals:
    """The totals of all `batches`, of which each of `ranks` scores its share; every rank gets them.

    The model is afterwards in the mode it was in. `description` names the progress bar.
    """
    # Sums stay on the device until the end, and in float64: the order of batches must not show.
    nll = torch.zeros((), dtype=torch.float64, device=device)
    num_correct = torch.zeros((), dtype=torch.int64, device=device)
    num_targets = 0
    num_own = len(range(ranks.rank, len(batches), ranks.world_size))
    own = progress_bar(ranks.share(batches), total=num_own, desc=f"{description}: loss", unit="batch", leave=False)
    with evaluating_in(model, device, autocast_dtype):
        for batch in own:
            sums = task.loss_sum(model, batch.to(device))
            nll += sums.nll
            num_correct += sums.num_correct
            num_targets += sums.num_targets
    ranks.add_up(nll, num_correct)
    return Totals(nll.item(), int(num_correct.item()), *ranks.all_sums(num_targets))
