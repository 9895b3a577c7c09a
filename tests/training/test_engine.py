"""Ranks that share an update make the update of one process; what one engine saves, another goes on from."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from headloom.config.schema_parts import MoeConfig
from headloom.errors import CheckpointError
from headloom.ranks import Ranks
from headloom.resume_check import leaves
from headloom.training.averaging import WeightAverage
from headloom.training.checkpoint import check_sums, load_checkpoint, load_weights
from headloom.training.random_state import restore_random_state
from headloom.training.replicated import Replicated
from headloom.training.sharded import Sharded

sys.path.insert(0, str(Path(__file__).parent.parent))
from ranks_in_forks import on_ranks

CPU = torch.device("cpu")
ROUNDING = 1e-5
"""Of sums in another order; the rate is 1, so an update moves a weight by as much."""
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


def saved(trainer: Any, path: Path) -> Path:
    """The state of a trainer in a file, as one process has it."""
    trainer.engine.save(path, trainer.state())
    return path


def assert_same_weights(path: Path, trainer: Any) -> None:
    state = load_checkpoint(path)
    for name, weight in trainer.model.state_dict().items():
        torch.testing.assert_close(state["model"][name], weight, rtol=0, atol=ROUNDING)
    for name, weight in trainer.average.state()["weights"].items():
        torch.testing.assert_close(state["average"]["weights"][name], weight, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize(("engine", "world_size"), [("ddp", 2), ("ddp", 3), ("fsdp", 3)])
def test_an_update_of_several_ranks_is_that_of_one_process(make, updates, engine, world_size, tmp_path):
    """B98: gradients are summed and divided once, and clipped by the norm of the whole; reports are global."""

    def train(ranks: Ranks) -> Any:
        results = {}
        for name, options in CHOICES.items():
            trainer = make(engine, ranks, **options)
            own = [list(ranks.share(batches)) for batches in updates]
            results[name] = [numbers(trainer.train_step(batches, with_layers=True)) for batches in own]
            saved(trainer, tmp_path / name)
        return results

    everywhere = on_ranks(world_size, train)
    for name, options in CHOICES.items():
        alone = make(**options)
        expected = [torch.tensor(numbers(alone.train_step(batches, with_layers=True))) for batches in updates]
        for results in everywhere:
            for found, wanted in zip(results[name], expected, strict=True):
                torch.testing.assert_close(torch.tensor(found), wanted, rtol=1e-5, atol=1e-5)
        assert_same_weights(tmp_path / name, alone)


def test_a_rank_without_a_batch_takes_part(make, make_batch, tmp_path):
    """B99: two of three ranks have none in the first update, one has none in the second."""
    updates = [[make_batch([3], seed=1)], [make_batch([2], seed=2), make_batch([9], seed=3)]]

    def train(ranks: Ranks) -> Any:
        trainer = make("ddp", ranks)
        reports = [numbers(trainer.train_step(list(ranks.share(batches)))) for batches in updates]
        saved(trainer, tmp_path / "state")
        return reports

    everywhere = on_ranks(3, train)
    alone = make()
    expected = [numbers(alone.train_step(batches)) for batches in updates]
    for reports in everywhere:
        torch.testing.assert_close(torch.tensor(reports), torch.tensor(expected), rtol=1e-5, atol=1e-5)
    assert_same_weights(tmp_path / "state", alone)


def test_an_update_nobody_has_targets_for_is_skipped_by_all(make, make_batch):
    def train(ranks: Ranks) -> bool:
        return make("ddp", ranks).train_step([make_batch([0])]).skipped

    assert on_ranks(2, train) == [True, True]


@pytest.mark.parametrize(("engine", "world_size"), [("ddp", 3), ("fsdp", 2)])
def test_training_goes_on_from_what_any_engine_saved(make, updates, engine, world_size, tmp_path):
    """One process, then ranks, then one process again: as one process all the way, moments and averages too."""
    whole, before, after = make(optimizer=adamw), make(optimizer=adamw), make(optimizer=adamw)
    for batches in updates:
        whole.train_step(batches)
    before.train_step(updates[0])
    saved(before, tmp_path / "start")

    def go_on(ranks: Ranks) -> Any:
        trainer = make(engine, ranks, optimizer=adamw)
        start = trainer.engine.load(tmp_path / "start")
        load_weights(trainer.model, start["model"], path=Path("start"), part=trainer.engine.part)
        trainer.load_state(start)
        trainer.train_step(list(ranks.share(updates[1])))
        with trainer.average.applied(), trainer.engine.evaluating(), torch.no_grad():
            for _ in range(ranks.rank):  # each rank may call the model as often as it likes
                trainer.task.loss_sum(trainer.model, updates[1][0])
        saved(trainer, tmp_path / "state")

    on_ranks(world_size, go_on)
    state = load_checkpoint(tmp_path / "state")
    load_weights(after.model, state["model"], path=tmp_path / "state")
    after.load_state(state)
    after.train_step(updates[2])
    assert after.step == 3
    assert_same_weights(saved(after, tmp_path / "after"), whole)


def tied(values: dict[str, Any]) -> set[tuple[str, ...]]:
    """Names that share a memory."""
    names: dict[int, list[str]] = {}
    for name, value in values.items():
        if isinstance(value, torch.Tensor) and value.numel():
            names.setdefault(value.data_ptr(), []).append(name)
    return {tuple(of_one) for of_one in names.values() if len(of_one) > 1}


def test_what_ranks_save_together_is_the_file_of_a_process_alone(make, updates, tmp_path):
    """Names, shapes, types and tied matrices; it can be mapped into memory, and a flipped bit is noticed."""

    def train(ranks: Ranks) -> None:
        trainer = make("fsdp", ranks, optimizer=adamw)
        trainer.train_step(list(ranks.share(updates[0])))
        saved(trainer, tmp_path / "together.pt")

    on_ranks(3, train)
    trainer = make(optimizer=adamw)
    trainer.train_step(updates[0])
    alone = dict(leaves(load_checkpoint(saved(trainer, tmp_path / "alone.pt"))))
    for mapped in (False, True):
        together = dict(leaves(load_checkpoint(tmp_path / "together.pt", mapped=mapped)))
        assert list(together) == list(alone)
        for name, value in alone.items():
            if isinstance(value, torch.Tensor):
                assert (together[name].shape, together[name].dtype) == (value.shape, value.dtype)
                torch.testing.assert_close(together[name], value, rtol=0, atol=1e-5)
            else:
                assert together[name] == value
    assert tied(together) == tied(alone) != set()
    content = bytearray((tmp_path / "together.pt").read_bytes())
    assert len(content) < 1.1 * (tmp_path / "alone.pt").stat().st_size
    content[content.index(together["model.decoder.norm.weight"].numpy().tobytes())] ^= 1
    (tmp_path / "together.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match="does not match its checksum"):
        check_sums(tmp_path / "together.pt")


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


class SmallMemory:
    """A task that has no memory for more than one row, from a place in the backward pass on, in some updates."""

    headline, higher_is_better = "loss", False

    def __init__(self, task: Any, where: str) -> None:
        self.task, self.where = task, where

    def loss_sum(self, model: nn.Module, batch: Any) -> Any:
        if len(batch.rows) == 1:
            return self.task.loss_sum(model, batch)
        if self.where == "forward":
            self.fail()
        handle = model.encoder.register_forward_hook(self.failing_backward)
        try:
            sums = self.task.loss_sum(model, batch)
        finally:
            handle.remove()
        if self.where == "start of backward":
            sums.loss.register_hook(self.fail)
            sums.loss = sums.loss + 0.0
        return sums

    def failing_backward(self, module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        if self.where == "middle of backward":
            output.register_hook(self.fail)

    def fail(self, *gradients: torch.Tensor) -> None:
        raise torch.OutOfMemoryError("no memory")


@pytest.mark.parametrize("where", ["forward", "start of backward", "middle of backward"])
def test_where_one_rank_runs_out_of_memory_all_begin_the_update_anew(make, updates, where, tmp_path):
    """In the middle of the sum over the ranks, too; rank 1 of 2 makes its updates in single rows."""

    def train(ranks: Ranks) -> Any:
        trainer = make("ddp", ranks)
        if ranks.rank == 1:
            trainer.task = SmallMemory(trainer.task, where)
        found = [numbers(trainer.train_step(list(ranks.share(batches)))) for batches in updates]
        saved(trainer, tmp_path / "state")
        return found, trainer.num_halved

    everywhere = on_ranks(2, train)
    alone = make()
    expected = [numbers(alone.train_step(batches)) for batches in updates]
    for reports, _ in everywhere:
        torch.testing.assert_close(torch.tensor(reports), torch.tensor(expected), rtol=1e-5, atol=1e-5)
    assert [num_halved for _, num_halved in everywhere] == [0, 4]
    assert_same_weights(tmp_path / "state", alone)


def test_gradients_are_added_up_while_the_backward_pass_goes_on(make, updates):
    """A parameter near the end of the model is done when the beginning has yet to come."""

    def train(ranks: Ranks) -> list[str]:
        trainer, order = make("ddp", ranks), []
        note = trainer.model.decoder.norm.weight.register_post_accumulate_grad_hook

        def of_the_encoder(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
            output.register_hook(lambda gradient: order.append("encoder"))

        note(lambda parameter: order.append("norm at the end"))
        trainer.model.encoder.register_forward_hook(of_the_encoder)
        trainer.train_step(updates[0][:1])
        return order

    assert on_ranks(2, train) == [["norm at the end", "encoder"]] * 2


def test_no_rank_sees_the_whole_of_what_it_saves_and_loads(tmp_path):
    """What a save and a load add to the memory of a rank is a fraction of the file."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("no /proc here")
    rows, columns = 4096, 1024

    def save_and_load(ranks: Ranks) -> int:
        model = nn.Sequential(*(nn.Linear(columns, rows, bias=False) for _ in range(4)))
        engine = Sharded(model, device=CPU, ranks=ranks)
        parts = dict(model.named_parameters())
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
        before = status_bytes("VmRSS")
        engine.save(tmp_path / "last.pt", {"model": parts})
        whole = engine.load(tmp_path / "last.pt")["model"]
        for name, weight in whole.items():
            assert torch.equal(engine.part(weight, parts[name]).to_local(), parts[name].to_local())
        return status_bytes("VmHWM") - before

    num_bytes = 4 * 4 * rows * columns
    grown = on_ranks(3, save_and_load)
    assert max(grown) < 0.9 * num_bytes, grown
    assert (tmp_path / "last.pt").stat().st_size > num_bytes


def status_bytes(field: str) -> int:
    """Of this process; pages of a mapped file count that it has looked at."""
    (line,) = (line for line in Path("/proc/self/status").read_text().split("\n") if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024
