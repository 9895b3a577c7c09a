"""What a run does when its training goes wrong."""

import logging
import math
import signal
import sys
from pathlib import Path

import pytest
import torch

from headloom.errors import TrainingDiverged
from headloom.training import guard as module
from headloom.training.averaging import WeightAverage
from headloom.training.checkpoint import load_checkpoint
from headloom.training.guard import Guard, OnDivergence
from headloom.training.interrupt import Interrupt
from headloom.training.optim import adam
from headloom.training.replicated import Replicated
from headloom.training.sharded import Sharded

sys.path.insert(0, str(Path(__file__).parent.parent))
from ranks_in_forks import on_ranks


@pytest.fixture
def make_adam_trainer(make_trainer):
    def make(**options):
        def optimizer(model):
            return adam(model, beta1=0.9, beta2=0.98, epsilon=1e-9)

        return make_trainer(optimizer=optimizer, learning_rate=lambda step: 1e-3, dropout=0.1, **options)

    return make


class Poisoned:
    """A task in which batches of a certain number of targets give NaN from inside the model."""

    headline, higher_is_better = "loss", False

    def __init__(self, task, num_targets: int) -> None:
        self.task, self.num_targets = task, num_targets

    def loss_sum(self, model, batch):
        module = model.decoder.blocks[1].feed_forward
        poison = module.register_forward_hook(
            lambda module, inputs, out: out * math.nan if batch.num_targets == self.num_targets else None,
            prepend=True,
        )
        try:
            return self.task.loss_sum(model, batch)
        finally:
            poison.remove()


# Of the batches of `make_loop`, number n has 2 + 3 + n % 4 targets: 6, 7, 8, 5, 6, ...
THIRD, NONE = 8, 99


@pytest.mark.parametrize("waits", [True, False])
def test_a_run_stops_and_names_the_module_the_batch_and_the_last_checkpoint(
    make_loop, make_adam_trainer, tmp_path, caplog, waits
):
    trainer = make_adam_trainer(waits=waits)
    trainer.task = Poisoned(trainer.task, THIRD)
    loop = make_loop(trainer=trainer, save_every=2, log_every=100, max_steps=10)
    with pytest.raises(TrainingDiverged) as caught:
        loop.run(Interrupt())
    message = str(caught.value)
    assert message.startswith("step 2: loss nan, gradient norm nan; the first output that is not finite is that of ")
    assert "that of decoder.blocks.1.feed_forward; " in message
    assert f"{tmp_path / 'last.pt'} is from before. Lower optimizer.lr, lengthen schedule.warmup_steps" in message
    assert "\n" not in message
    assert caplog.messages == ["in the batch: row 0", "in the batch: row 1"]
    assert load_checkpoint(tmp_path / "last.pt")["step"] == 2


def test_a_run_that_skips_leaves_the_update_out_and_nothing_else(make_loop, make_adam_trainer, tmp_path, caplog):
    """Steps and rates are those of a run that never met the batch."""
    trainer = make_adam_trainer()
    trainer.task = Poisoned(trainer.task, THIRD)
    loop = make_loop(trainer=trainer, policy="skip", max_steps=5)
    loop.run(Interrupt())
    assert (trainer.step, trainer.num_skipped, loop.batches.number) == (5, 1, 6)
    assert any("feed_forward; computed" not in m and m.endswith(": skipped") for m in caplog.messages)
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    assert [v["train/skipped_updates"] for _, v in loop.records if "train/skipped_updates" in v] == [1, 1, 1]


def test_a_run_does_not_skip_for_ever(make_loop, make_adam_trainer):
    trainer = make_adam_trainer()
    with torch.no_grad():
        trainer.model.decoder.norm.weight[0] = math.nan
    loop = make_loop(trainer=trainer, policy="skip", max_steps=5)
    with pytest.raises(TrainingDiverged, match=r"the weight decoder\.norm\.weight is not finite; there is no"):
        loop.run(Interrupt())
    assert loop.batches.number == module.MAX_SKIPPED + 1


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_ranks_whose_updates_are_all_refused_end(make_loop, make_adam_trainer, policy):
    """Far from any step that is recorded or saved, too, which they would never reach."""

    def train(ranks):
        trainer = make_adam_trainer()
        trainer.engine = Replicated(trainer.model, device=torch.device("cpu"), ranks=ranks)
        with torch.no_grad():
            trainer.model.decoder.norm.weight[0] = math.nan
        loop = make_loop(trainer=trainer, policy=policy, log_every=100, max_steps=100)
        loop.run(Interrupt())

    for error in on_ranks(2, train):
        assert isinstance(error, TrainingDiverged)


@pytest.mark.parametrize("waits", [True, False])
def test_a_run_that_rolls_back_goes_on_from_the_last_checkpoint_with_the_data_that_follows(
    make_loop, make_adam_trainer, tmp_path, caplog, waits
):
    trainer = make_adam_trainer(waits=waits)
    trainer.task = Poisoned(trainer.task, THIRD)
    options = {"policy": "rollback", "save_every": 1, "max_steps": 4}
    torch.manual_seed(3)
    loop = make_loop(trainer=trainer, folder=tmp_path / "poisoned", **options)
    loop.run(Interrupt())
    assert loop.guard.num_rollbacks == 1
    assert [step for step, values in loop.records if "train/loss" in values] == [1, 2, 3, 4]
    assert loop.batches.number == 5
    assert any(message.endswith("last.pt, and on with the data that follows") for message in caplog.messages)

    other = make_adam_trainer()
    torch.manual_seed(3)
    straight = make_loop(trainer=other, folder=tmp_path / "straight", **options)
    straight.run(Interrupt())
    states = [load_checkpoint(tmp_path / name / "step_2.pt")["optimizer"] for name in ("poisoned", "straight")]
    torch.testing.assert_close(*states, rtol=0, atol=0)


def test_a_signal_finds_an_unread_update_that_went_wrong_and_the_run_rolls_back_before_it_ends(
    make_loop, make_adam_trainer, tmp_path, monkeypatch
):
    """It is no reason to end as diverged: the resumed run goes on with the data that follows."""
    trainer = make_adam_trainer(waits=False)
    trainer.task = Poisoned(trainer.task, THIRD)
    loop = make_loop(trainer=trainer, policy="rollback", save_every=2, log_every=100, max_steps=100)
    interrupt = Interrupt()

    def interrupting(step: int, loss: float, rate: float) -> None:
        interrupt.signal = signal.SIGTERM if step == 3 else None

    loop.progress = interrupting
    monkeypatch.setattr("headloom.training.guard._Later.is_known", lambda self: False)
    loop.run(interrupt)
    contents = load_checkpoint(tmp_path / "last.pt")
    assert (contents["step"], contents["data"], contents["guard"]["num_rollbacks"]) == (2, {"number": 3}, 1)
    assert all(weight.isfinite().all() for weight in contents["model"].values())


@pytest.mark.parametrize("due", [{"save_every": 1}, {"evaluate_every": 1}, {}])
def test_weights_that_a_rate_has_thrown_off_are_never_saved(make_loop, make_adam_trainer, tmp_path, due):
    """The update that did it had a finite loss and gradient, and a checkpoint was due, or a signal came, right then."""
    trainer = make_adam_trainer()
    trainer.learning_rate = lambda step: 1e30 if step == 2 else 1e-3
    loop = make_loop(trainer=trainer, folder=tmp_path, max_steps=2)
    loop.run(Interrupt())
    loop = make_loop(trainer=trainer, folder=tmp_path, max_steps=9, **due)
    interrupt = Interrupt()

    def interrupting(step: int, loss: float, rate: float) -> None:
        interrupt.signal = signal.SIGTERM if step == 3 else None

    loop.progress = (lambda step, loss, rate: None) if due else interrupting
    with pytest.raises(TrainingDiverged, match=r"step 2: the weights that it left give its batch a loss of nan; "):
        loop.run(interrupt)
    contents = load_checkpoint(tmp_path / "last.pt")
    assert contents["step"] == 2
    assert all(weight.abs().max() < 100 for weight in contents["model"].values())


@pytest.mark.parametrize("policy", ["rollback", "stop"])
def test_a_checkpoint_saved_among_losses_off_their_course_is_not_from_before(
    make_loop, make_adam_trainer, tmp_path, monkeypatch, caplog, policy
):
    """Three in a row are trouble here, and a checkpoint is due after the first."""
    monkeypatch.setattr(module, "FEWEST", 4)
    monkeypatch.setattr(module, "SPIKE_UPDATES", 3)
    trainer = make_adam_trainer()
    loop = make_loop(trainer=trainer, folder=tmp_path, policy=policy, save_every=2, max_steps=12)
    trainer.learning_rate = lambda step: 3.0 if step == 6 and not loop.guard.num_rollbacks else 1e-3
    if policy == "stop":
        with pytest.raises(TrainingDiverged, match=r"in a row far above the others; .*step_6\.pt is from before"):
            loop.run(Interrupt())
        return
    loop.run(Interrupt())
    assert loop.guard.num_rollbacks == 1
    assert any("back to" in line and "step_6.pt, and on" in line for line in caplog.messages)
    assert load_checkpoint(tmp_path / "step_8.pt")["guard"]["num_spiking"] == 0


def test_the_best_checkpoint_is_not_of_the_course_that_a_rollback_left(
    make_loop, make_adam_trainer, tmp_path, monkeypatch
):
    """The run goes back to step 6, over the validation of step 8, which was the best one."""
    monkeypatch.setattr(module, "FEWEST", 4)
    monkeypatch.setattr(module, "SPIKE_UPDATES", 3)
    trainer = make_adam_trainer()
    options = {"policy": "rollback", "save_every": 2, "evaluate_every": 2, "max_steps": 12}
    loop = make_loop(iter([5.0, 4.0, 3.0, 1.0, 6.0, 6.0, 6.0]), trainer=trainer, folder=tmp_path, **options)
    trainer.learning_rate = lambda step: 3.0 if step == 6 and not loop.guard.num_rollbacks else 1e-3
    assert loop.run(Interrupt()) == 3.0
    assert load_checkpoint(tmp_path / "best.pt")["step"] == 6


def test_an_average_that_the_checkpoint_has_not_begins_again_with_its_weights(make_loop, make_adam_trainer, tmp_path):
    """trainer.average_decay, switched on when the run was resumed: what went wrong is in no average."""
    trainer = make_adam_trainer()
    make_loop(trainer=trainer, folder=tmp_path, max_steps=1).run(Interrupt())
    trainer.average = WeightAverage(trainer.model, decay=0.5)
    trainer.task = Poisoned(trainer.task, THIRD)
    loop = make_loop(trainer=trainer, folder=tmp_path, policy="rollback", max_steps=4)
    loop.run(Interrupt())
    assert loop.guard.num_rollbacks == 1
    assert load_checkpoint(tmp_path / "last.pt")["average"]["num_updates"] == 3


def test_under_fsdp_the_sentences_are_those_of_the_rank_at_fault(make_loop, make_adam_trainer, caplog):
    """Rank 1 has the second batch of each update, of 7 targets in the first one."""

    def train(ranks):
        trainer = make_adam_trainer()
        trainer.task = Poisoned(trainer.task, 7)
        trainer.engine = Sharded(trainer.model, device=torch.device("cpu"), ranks=ranks)
        loop = make_loop(trainer=trainer, accumulation=2)
        loop.describe = lambda batch: [f"of rank {ranks.rank}"]
        with caplog.at_level(logging.WARNING):
            try:
                loop.run(Interrupt())
            except TrainingDiverged as error:
                return [str(error), *caplog.messages]

    for found in on_ranks(2, train):
        assert "the first output that is not finite is that of decoder.blocks.1.feed_forward; " in found[0]
        assert found[1:] == ["in the batch: of rank 1"]


def test_a_run_without_a_checkpoint_has_nothing_to_go_back_to(make_loop, make_adam_trainer):
    trainer = make_adam_trainer()
    trainer.task = Poisoned(trainer.task, THIRD)
    with pytest.raises(TrainingDiverged, match="there is no checkpoint yet"):
        make_loop(trainer=trainer, policy="rollback", max_steps=4).run(Interrupt())


def test_looking_for_the_cause_changes_no_weight_and_draws_no_random_number(make_loop, make_adam_trainer):
    """A run that skips a poisoned batch is the run of the other batches."""
    trainers = [make_adam_trainer() for _ in range(2)]
    trainers[0].task = Poisoned(trainers[0].task, THIRD)
    for trainer in trainers:
        loop = make_loop(trainer=trainer, policy="skip", max_steps=4)
        if trainer is trainers[1]:
            draw = loop.batches.__class__.__next__

            def without_third(self, draw=draw):
                batch = draw(self)
                return draw(self) if batch.num_targets == THIRD else batch

            loop.batches = type("Without", (type(loop.batches),), {"__next__": without_third})(loop.batches.make_batch)
        torch.manual_seed(3)
        loop.run(Interrupt())
    for a, b in zip(*(trainer.model.parameters() for trainer in trainers), strict=True):
        if not torch.equal(a, b):  # the poisoned update drew its dropout
            torch.testing.assert_close(a, b, rtol=0.2, atol=0.02)


class Losses:
    """Reports with these losses, for a guard alone."""

    def __init__(self, trainer, make_batch, report) -> None:
        self.trainer, self.batch, self.report = trainer, make_batch([3]), report

    def watch(self, guard: Guard, losses) -> list[str]:
        found = []
        for step, loss in enumerate(losses):
            total = torch.tensor(loss * 3, dtype=torch.float64)
            report = self.report(total)
            guard.watch(step, report, [self.batch], guard.before_update())
            trouble = guard.trouble(wait=True)
            if trouble is not None:
                found.append(f"{trouble.watched.step}: {trouble.what}")
        return found


@pytest.fixture
def losses(make_trainer, make_batch):
    return make_losses(make_trainer(), make_batch)


def make_losses(trainer, make_batch):
    plain = trainer.train_step([make_batch([3])])

    def report(total):
        return type(plain)(total, total, plain.num_correct, 3, 3, plain.grad_norm, 0.0, num_choices=100)

    return Losses(trainer, make_batch, report)


def noisy(middle: float, number: int) -> list[float]:
    return [middle + 0.1 * math.sin(7 * n) for n in range(number)]


def test_losses_that_leave_their_course_are_noticed(losses):
    guard = Guard(losses.trainer, OnDivergence.stop, spike_deviations=10.0)
    found = losses.watch(guard, noisy(3.0, 80) + noisy(6.0, 9))
    assert found[0] == "87: 8 losses in a row far above the others"


@pytest.mark.parametrize(
    "course",
    [
        noisy(3.0, 80) + noisy(6.0, 7) + noisy(3.0, 20),  # a few hard batches
        noisy(0.01, 80) + noisy(0.4, 20),  # far, but in a measure that means nothing
        [8.0 - 0.1 * n for n in range(100)],  # learning
        noisy(3.0, 30) + noisy(6.0, 30),  # nothing is known yet
    ],
)
def test_losses_that_only_waver_are_left_alone(losses, course):
    assert not losses.watch(Guard(losses.trainer, OnDivergence.stop, spike_deviations=10.0), course)


def test_a_run_may_let_losses_go_where_they_like(losses):
    guard = Guard(losses.trainer, OnDivergence.skip, spike_deviations=None)
    assert not losses.watch(guard, noisy(3.0, 80) + noisy(90.0, 20))
    assert losses.trainer.max_loss == math.inf


def test_a_run_that_skips_leaves_out_a_single_update_off_course(losses):
    guard = Guard(losses.trainer, OnDivergence.skip, spike_deviations=10.0)
    losses.watch(guard, noisy(3.0, 80))
    guard.before_update()
    assert 3.5 < losses.trainer.max_loss < 5


def test_what_the_guard_knows_goes_on_with_the_run(losses):
    """B54."""
    guards = [Guard(losses.trainer, OnDivergence.stop, spike_deviations=10.0) for _ in range(2)]
    losses.watch(guards[0], noisy(3.0, 80) + noisy(6.0, 5))
    guards[1].load_state(guards[0].state())
    assert losses.watch(guards[1], noisy(6.0, 3)) == ["2: 8 losses in a row far above the others"]


def test_a_perplexity_that_guessing_would_beat_ends_the_run_after_a_time(losses, monkeypatch):
    monkeypatch.setattr(module, "GRACE_STEPS", 30)
    guard = Guard(losses.trainer, OnDivergence.stop, spike_deviations=None)
    assert not losses.watch(guard, [math.log(100)] * 40)
    found = losses.watch(guard, [math.log(120)] * 40)
    assert found[0] == "30: perplexity 120, where guessing has 100"


def test_what_a_waiting_guard_does_does_not_depend_on_how_often_the_run_is_recorded(losses):
    """B33, B70: the limit of an update is the same whether the run has just been saved or validated, or has not."""
    limits = []
    for every in (1, 1000):
        guard = Guard(losses.trainer, OnDivergence.skip, spike_deviations=10.0)
        limits.append([])
        for step, loss in enumerate(noisy(3.0, 80)):
            report = losses.report(torch.tensor(loss * 3, dtype=torch.float64))
            guard.watch(step, report, [losses.batch], guard.before_update())
            limits[-1].append(losses.trainer.max_loss)
            assert guard.trouble(wait=step % every == 0) is None
    assert limits[0] == limits[1]


def test_a_guard_that_waits_for_nothing_reads_no_loss(make_adam_trainer, make_batch, caplog):
    """B104: losses of an interval are read together, when they are recorded."""
    losses = make_losses(make_adam_trainer(waits=False), make_batch)
    guard = Guard(losses.trainer, OnDivergence.stop, spike_deviations=10.0)
    for step in range(5):
        report = losses.report(torch.tensor(9.0, dtype=torch.float64))
        guard.watch(step, report, [losses.batch], guard.before_update())
        assert guard.trouble(wait=False) is None
    assert not guard.state()["losses"]
    assert guard.trouble(wait=True) is None
    assert guard.state()["losses"] == [3.0] * 5
    with caplog.at_level(logging.INFO):
        assert guard.trouble(wait=True) is None
