"""Ranks that share an update make the update of one process."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from headloom.ranks import Ranks
from headloom.training.averaging import WeightAverage
from headloom.training.replicated import Replicated
from headloom.training.sharded import Sharded

sys.path.insert(0, str(Path(__file__).parent.parent))
from ranks_in_forks import on_ranks

CPU = torch.device("cpu")
ENGINES = {"ddp": Replicated, "fsdp": Sharded}


@pytest.fixture
def make(make_trainer) -> Callable[..., Any]:
    """A trainer, on ranks with `engine`."""

    def make(engine: str | None = None, ranks: Ranks | None = None, optimizer: Any = None, **options: Any) -> Any:
        alone = make_trainer(**options)
        if engine is not None:
            alone.engine = ENGINES[engine](alone.model, device=CPU, ranks=ranks)
        alone.optimizer = (optimizer or sgd)(alone.model)
        alone.average = WeightAverage(alone.model, decay=0.5)
        return alone

    return make


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters())


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), eps=1e-2, weight_decay=0.1, fused=True)


def numbers(report: Any) -> list[float]:
    sums = [report.loss.item(), report.nll.item(), report.num_correct.item()]
    return [*sums, report.num_targets, report.grad_norm.item(), len(report.layer_grad_norms)]


@pytest.fixture
def updates(make_batch) -> list[list[Any]]:
    """B98: 3 and 30 targets; several batches a rank; ranks with one more; a batch without targets."""
    return [
        [make_batch([1, 2], seed=1), make_batch([10, 20], seed=2), make_batch([4], seed=3)],
        [make_batch([n, 1], seed=n) for n in (3, 9, 30, 2, 7, 5)],
        [make_batch([2], seed=5), make_batch([0, 0], seed=6), make_batch([8, 3], seed=7), make_batch([1], seed=8)],
    ]


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("engine", ENGINES)
def test_an_update_of_several_ranks_is_that_of_one_process(make, updates, engine, world_size):
    """B98: gradients are summed and divided once; clipped by the norm of the whole; reports are global."""
    options = [{"max_grad_norm": 0.3, "label_smoothing": 0.2, "optimizer": optimizer} for optimizer in (sgd, adamw)]

    def train(ranks: Ranks) -> Any:
        results = []
        for chosen in options:
            trainer = make(engine, ranks, **chosen)
            reports = [numbers(trainer.train_step(list(ranks.share(batches)))) for batches in updates]
            results.append((reports, trainer.state()))
        return results

    everywhere = on_ranks(world_size, train)
    for number, chosen in enumerate(options):
        alone = make(**chosen)
        expected = [numbers(alone.train_step(batches)) for batches in updates]
        for results in everywhere:
            torch.testing.assert_close(torch.tensor(results[number][0]), torch.tensor(expected), rtol=1e-5, atol=1e-5)
        state = everywhere[0][number][1]
        for name, weight in alone.model.state_dict().items():
            torch.testing.assert_close(state["model"][name], weight, rtol=0, atol=1e-6)
        for name, weight in alone.average.state()["weights"].items():
            torch.testing.assert_close(state["average"]["weights"][name], weight, rtol=0, atol=1e-6)
