"""Ranks that share an update make the update of one process; what one engine saves, another goes on from."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from headloom.config.schema_parts import MoeConfig
from headloom.ranks import Ranks
from headloom.training.averaging import WeightAverage
from headloom.training.checkpoint import load_weights
from headloom.training.random_state import restore_random_state
from headloom.training.replicated import Replicated
from headloom.training.sharded import Sharded

sys.path.insert(0, str(Path(__file__).parent.parent))
from ranks_in_forks import on_ranks

CPU = torch.device("cpu")
ENGINES = {"ddp": Replicated, "fsdp": Sharded}


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters())


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), eps=1e-2, weight_decay=0.1, fused=True)


CHOICES = {
    "adamw": {"optimizer": adamw, "max_grad_norm": 0.3, "label_smoothing": 0.2},
    # An expert without a token of a rank has no gradient there.
    "experts": {"optimizer": sgd, "sections": {"feed_forward": MoeConfig(num_experts=9, num_chosen=1, d_ff=8)}},
}


@pytest.fixture
def make(make_trainer) -> Callable[..., Any]:
    """A trainer, on ranks with `engine`."""

    def make(engine: str = "", ranks: Ranks | None = None, *, optimizer: Any = sgd, **options: Any) -> Any:
        trainer = make_trainer(**options)
        if engine:
            trainer.engine = ENGINES[engine](trainer.model, device=CPU, ranks=ranks)
        trainer.optimizer = optimizer(trainer.model)
        trainer.average = WeightAverage(trainer.model, decay=0.5)
        return trainer

    return make


@pytest.fixture
def updates(make_batch) -> list[list[Any]]:
    """B98: 3 and 30 targets; several batches a rank; ranks with one more; a batch without targets."""
    return [
        [make_batch([1, 2], seed=1), make_batch([10, 20], seed=2), make_batch([4], seed=3)],
        [make_batch([n, 1], seed=n) for n in (3, 9, 30, 2, 7, 5)],
        [make_batch([2], seed=5), make_batch([0, 0], seed=6), make_batch([8, 3], seed=7), make_batch([1], seed=8)],
    ]


def numbers(report: Any) -> list[float]:
    sums = [report.loss, report.nll, report.num_correct, report.grad_norm, *report.layer_grad_norms.values()]
    return [report.num_targets, *(one.item() for one in sums), *(one for m in report.means.values() for one in m)]


def assert_same_weights(state: Any, trainer: Any) -> None:
    for name, weight in trainer.model.state_dict().items():
        torch.testing.assert_close(state["model"][name], weight, rtol=0, atol=1e-6)
    for name, weight in trainer.average.state()["weights"].items():
        torch.testing.assert_close(state["average"]["weights"][name], weight, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("engine", "world_size"), [("ddp", 2), ("ddp", 3), ("fsdp", 3)])
def test_an_update_of_several_ranks_is_that_of_one_process(make, updates, engine, world_size):
    """B98: gradients are summed and divided once, and clipped by the norm of the whole; reports are global."""

    def train(ranks: Ranks) -> Any:
        results = {}
        for name, options in CHOICES.items():
            trainer = make(engine, ranks, **options)
            own = [list(ranks.share(batches)) for batches in updates]
            results[name] = [numbers(trainer.train_step(batches, with_layers=True)) for batches in own], trainer.state()
        return results

    everywhere = on_ranks(world_size, train)
    for name, options in CHOICES.items():
        alone = make(**options)
        expected = [torch.tensor(numbers(alone.train_step(batches, with_layers=True))) for batches in updates]
        for results in everywhere:
            for found, wanted in zip(results[name][0], expected, strict=True):
                torch.testing.assert_close(torch.tensor(found), wanted, rtol=1e-5, atol=1e-5)
        assert_same_weights(everywhere[0][name][1], alone)


def test_a_rank_without_a_batch_takes_part(make, make_batch):
    """B99: two of three ranks have none in the first update, one has none in the second."""
    updates = [[make_batch([3], seed=1)], [make_batch([2], seed=2), make_batch([9], seed=3)]]

    def train(ranks: Ranks) -> Any:
        trainer = make("ddp", ranks)
        return [numbers(trainer.train_step(list(ranks.share(batches)))) for batches in updates], trainer.state()

    everywhere = on_ranks(3, train)
    alone = make()
    expected = [numbers(alone.train_step(batches)) for batches in updates]
    for reports, _ in everywhere:
        torch.testing.assert_close(torch.tensor(reports), torch.tensor(expected), rtol=1e-5, atol=1e-5)
    assert_same_weights(everywhere[0][1], alone)


def test_an_update_nobody_has_targets_for_is_skipped_by_all(make, make_batch):
    def train(ranks: Ranks) -> bool:
        return make("ddp", ranks).train_step([make_batch([0])]).skipped

    assert on_ranks(2, train) == [True, True]


@pytest.mark.parametrize(("engine", "world_size"), [("ddp", 3), ("fsdp", 2)])
def test_training_goes_on_from_what_any_engine_saved(make, updates, engine, world_size):
    """One process, then ranks, then one process again: as one process all the way, moments and averages too."""
    whole, before, after = make(optimizer=adamw), make(optimizer=adamw), make(optimizer=adamw)
    for batches in updates:
        whole.train_step(batches)
    before.train_step(updates[0])
    start = before.state()

    def go_on(ranks: Ranks) -> Any:
        trainer = make(engine, ranks, optimizer=adamw)
        load_weights(trainer.model, start["model"], path=Path("start"), part=trainer.engine.part)
        trainer.load_state(start)
        trainer.train_step(list(ranks.share(updates[1])))
        with trainer.average.applied(), trainer.engine.evaluating(), torch.no_grad():
            for _ in range(ranks.rank):  # each rank may call the model as often as it likes
                trainer.task.loss_sum(trainer.model, updates[1][0])
        return trainer.state()

    state, *others = on_ranks(world_size, go_on)
    load_weights(after.model, state["model"], path=Path("state"))
    after.load_state(state)
    after.train_step(updates[2])
    assert after.step == 3
    assert_same_weights(after.state(), whole)
    if engine == "fsdp":
        assert all(weight is None for other in others for weight in other["model"].values())


def test_ranks_draw_different_numbers_that_a_checkpoint_restores(make_loop, make_trainer, make_batch):
    """Dropout differs from rank to rank; a resumed run draws what the first one drew."""

    def train(ranks: Ranks) -> Any:
        torch.manual_seed(ranks.rank)
        trainer = make_trainer(dropout=0.3, optimizer=sgd)
        trainer.engine = Replicated(trainer.model, device=CPU, ranks=ranks)
        contents = make_loop(trainer=trainer).contents()
        first = torch.rand(3).tolist()
        restore_random_state([contents["random"], *contents["random_of_others"]][ranks.rank])
        return first, torch.rand(3).tolist()

    results = on_ranks(2, train)
    assert all(first == again for first, again in results)
    assert results[0] != results[1]
