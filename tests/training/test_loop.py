"""What happens around the updates: records, validations, checkpoints, and the end."""

import gc
import math
import os
import signal
from collections.abc import Mapping
from itertools import count
from pathlib import Path

import pytest
import torch

from headloom.errors import TrainingDiverged
from headloom.training.checkpoint import load_checkpoint
from headloom.training.interrupt import Interrupt, noting_interrupts
from headloom.training.loop import Loop
from headloom.training.optim import adam
from headloom.training.schedule import Plateau


def recorded(loop: Loop, name: str) -> dict[int, float]:
    return {step: values[name] for step, values in loop.records if name in values}


def saved(folder) -> dict[str, int]:
    return {path.stem: load_checkpoint(path)["step"] for path in sorted(folder.glob("*.pt"))}


def test_every_interval_has_its_steps_and_the_end_has_all_of_them(make_loop, tmp_path):
    loop = make_loop(log_every=2, evaluate_every=3, save_every=4, max_steps=7)
    loop.run(Interrupt())
    assert list(recorded(loop, "train/loss")) == [2, 4, 6, 7]
    assert list(recorded(loop, "valid/loss")) == [3, 6, 7]
    assert saved(tmp_path) == {"best": 3, "last": 7, "step_4": 4}


def test_without_intervals_there_is_one_validation_and_one_checkpoint_at_the_end(make_loop, tmp_path):
    loop = make_loop()
    assert loop.run(Interrupt()) == 1.0
    assert list(recorded(loop, "valid/loss")) == [6]
    assert saved(tmp_path) == {"best": 6, "last": 6}


def test_a_record_is_the_mean_over_all_targets_since_the_last(make_loop):
    """B38: not a mean of the means of updates with unequal numbers of targets."""
    fine, coarse = make_loop(), make_loop(log_every=3)
    for loop in (fine, coarse):
        loop.run(Interrupt())
    losses, targets = recorded(fine, "train/loss"), recorded(fine, "train/tokens_per_update")
    assert len(set(targets.values())) > 1  # or the test shows nothing
    for last, steps in ((3, (1, 2, 3)), (6, (4, 5, 6))):
        mean = sum(losses[s] * targets[s] for s in steps) / sum(targets[s] for s in steps)
        assert recorded(coarse, "train/loss")[last] == pytest.approx(mean, rel=1e-9)
        assert recorded(coarse, "train/tokens_per_update")[last] == pytest.approx(sum(targets[s] for s in steps) / 3)


def test_a_record_has_what_a_run_is_judged_by(make_loop):
    loop = make_loop(max_steps=1)
    loop.run(Interrupt())
    values = loop.records[0][1]
    assert {name for name in values if name.startswith("train/")} == {
        "train/loss",
        "train/perplexity",
        "train/accuracy",
        "train/learning_rate",
        "train/gradient_norm",
        "train/tokens_per_second",
        "train/tokens_per_update",
        "train/data_wait_seconds",
        "train/epoch",
    }
    assert "gradient_norm/decoder.blocks.1" in values
    assert all(type(value) in (int, float) for value in values.values())


def test_the_perplexity_is_that_of_the_plain_loss(make_loop, make_trainer):
    """B40: smoothing shows in the loss and not in the perplexity."""
    perplexities = []
    for label_smoothing in (0.0, 0.1):
        trainer = make_trainer(label_smoothing=label_smoothing, learning_rate=lambda step: 0.0)
        loop = make_loop(trainer=trainer, max_steps=2)
        loop.run(Interrupt())
        perplexities.append(recorded(loop, "train/perplexity"))
        smoothed = math.exp(recorded(loop, "train/loss")[2])
        assert (smoothed == pytest.approx(perplexities[-1][2])) is (label_smoothing == 0)
    assert perplexities[0] == pytest.approx(perplexities[1])


def test_accumulated_batches_are_one_update(make_loop):
    """B38."""
    loop = make_loop(accumulation=3, max_steps=4)
    loop.run(Interrupt())
    assert loop.batches.number == 12
    assert loop.trainer.step == 4


@pytest.mark.parametrize("higher_is_better", [False, True])
def test_the_best_is_the_best_and_not_the_last(make_loop, tmp_path, higher_is_better):
    values = [3.0, 1.0, 2.0, 1.0]
    loop = make_loop(iter([-v if higher_is_better else v for v in values]), evaluate_every=1, max_steps=4)
    loop.ranking.higher_is_better = higher_is_better
    assert abs(loop.run(Interrupt())) == 1.0
    assert saved(tmp_path) == {"best": 2, "last": 4}  # an equal one later is no better


def test_a_headline_that_is_not_a_number_is_never_the_best_and_warned_of(make_loop, tmp_path, caplog):
    """B19: without any, a run leaves no best.pt."""
    loop = make_loop(iter([math.nan, 2.0, math.nan]), evaluate_every=1, max_steps=3)
    assert loop.run(Interrupt()) == 2.0
    assert saved(tmp_path)["best"] == 2
    warned = [line.partition(":")[0] for line in caplog.messages if "is not a number" in line]
    assert warned == ["step 1", "step 3"]


def test_training_ends_when_patience_runs_out(make_loop, tmp_path):
    """Counted in validations since the best one."""
    loop = make_loop(iter([3.0, 2.0, 2.5, 2.2, 1.0]), evaluate_every=2, patience=2, max_steps=100)
    assert loop.run(Interrupt()) == 2.0
    assert saved(tmp_path) == {"best": 4, "last": 8}
    assert loop.is_finished


def test_patience_ends_nothing_before_the_fewest_steps(make_loop, tmp_path):
    loop = make_loop(iter([1.0, 2.0, 2.0, 2.0, 2.0]), evaluate_every=2, patience=2, min_steps=9, max_steps=100)
    assert loop.run(Interrupt()) == 1.0
    assert saved(tmp_path) == {"best": 2, "last": 10}


def test_patience_is_part_of_the_checkpoint(make_loop, tmp_path):
    """B65: a run that ended early is finished when it is resumed."""
    make_loop(iter([1.0, 2.0, 3.0]), evaluate_every=1, patience=2, max_steps=100).run(Interrupt())
    resumed = make_loop(evaluate_every=1, patience=2, max_steps=100)
    resumed.load_contents(load_checkpoint(tmp_path / "last.pt"))
    assert resumed.is_finished
    assert resumed.run(Interrupt()) == 1.0
    assert not resumed.records


@pytest.mark.parametrize("stop_at", [1, 2, 3, 5])
def test_a_resumed_loop_records_what_one_that_never_stopped_does(make_loop, tmp_path, stop_at):
    """B54: sums of an unfinished interval go on; intervals keep their place."""
    options = {"log_every": 3, "evaluate_every": 2, "save_every": 1, "max_steps": 6}
    straight = make_loop(folder=tmp_path / "straight", **options)
    straight.run(Interrupt())
    contents = load_checkpoint(tmp_path / "straight" / f"step_{stop_at}.pt")
    resumed = make_loop(count(1.0 + stop_at // 2), folder=tmp_path / "resumed", **options)
    resumed.trainer.model.load_state_dict(contents["model"])
    resumed.load_contents(contents)
    assert resumed.run(Interrupt()) == 1.0
    for name in ("train/loss", "train/accuracy", "train/tokens_per_update", "train/gradient_norm", "valid/loss"):
        later = {step: value for step, value in recorded(straight, name).items() if step > stop_at}
        assert recorded(resumed, name) == later


@pytest.mark.parametrize("stop_at", [2, 3, 4, 7])
def test_a_plateau_hears_of_validations_and_goes_on_where_it_was(make_loop, make_trainer, tmp_path, stop_at):
    """B56: the rates after a resume are those of the run that never stopped."""

    def make(folder, headlines) -> Loop:
        plateau = Plateau(peak=0.01, warmup_steps=2, factor=0.5, patience=2, final_share=0.0)
        trainer = make_trainer(learning_rate=plateau)
        options = {"trainer": trainer, "plateau": plateau, "evaluate_every": 1, "save_every": 1, "max_steps": 8}
        return make_loop(iter(headlines), folder=folder, **options)

    headlines = [3.0, 4.0, 2.0, 2.5, 2.5, 2.5, 1.0, 1.5]
    straight = make(tmp_path / "straight", headlines)
    straight.run(Interrupt())
    rates = recorded(straight, "train/learning_rate")
    assert list(rates.values()) == [0.005, 0.01, 0.01, 0.01, 0.01, 0.005, 0.005, 0.005]
    contents = load_checkpoint(tmp_path / "straight" / f"step_{stop_at}.pt")
    resumed = make(tmp_path / "resumed", headlines[stop_at:])
    resumed.trainer.model.load_state_dict(contents["model"])
    resumed.load_contents(contents).run(Interrupt())
    assert recorded(resumed, "train/learning_rate") == {step: rate for step, rate in rates.items() if step > stop_at}
    assert load_checkpoint(tmp_path / "resumed" / "last.pt")["plateau"] == straight.plateau.state()


def test_a_signal_ends_the_loop_after_its_step_with_a_checkpoint(make_loop, tmp_path):
    loop = make_loop(max_steps=100)

    def interrupt_third(step: int, loss: float, rate: float) -> None:
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    loop.progress = interrupt_third
    with noting_interrupts() as interrupt:
        loop.run(interrupt)
    assert saved(tmp_path) == {"last": 3}


def test_a_signal_during_a_validation_is_saved_too(make_loop, tmp_path):
    """Also when that validation is not the best and no checkpoint is due."""
    loop = make_loop(evaluate_every=1, max_steps=100)
    validate, validated = loop.validate, []

    def interrupted(step: int) -> Mapping[str, float]:
        validated.append(step)
        if step == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return validate(step)

    loop.validate = interrupted
    with noting_interrupts() as interrupt:
        loop.run(interrupt)
    assert validated == [1, 2]
    assert saved(tmp_path) == {"best": 1, "last": 2}


def test_a_signal_while_updates_are_skipped_is_saved_too(make_loop, make_trainer, tmp_path):
    """B45: the first updates of a float16 run overflow until the scale fits; they are no steps."""
    interrupt = Interrupt()

    def interrupting_rate(step: int) -> float:
        interrupt.signal = signal.SIGTERM
        return 0.01

    trainer = make_trainer(autocast_dtype=torch.float16, learning_rate=interrupting_rate)
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    make_loop(trainer=trainer, max_steps=2).run(interrupt)
    assert saved(tmp_path) == {"last": 0}
    assert load_checkpoint(tmp_path / "last.pt")["num_skipped"] == 1


def test_skipped_updates_are_recorded_and_are_no_steps(make_loop, make_trainer):
    """B45."""
    trainer = make_trainer(autocast_dtype=torch.float16, learning_rate=lambda step: 0.01)
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    loop = make_loop(trainer=trainer, max_steps=2)
    loop.run(Interrupt())
    skipped = recorded(loop, "train/skipped_updates")
    assert list(skipped) == [1, 2]
    assert skipped[1] == skipped[2] == loop.batches.number - 2 > 5


def test_an_update_that_is_skipped_spoils_no_record(make_loop, make_trainer):
    """B37: the loss of an overflow is not a number."""
    trainer = make_trainer(autocast_dtype=torch.float16, learning_rate=lambda step: 0.01)
    loop = make_loop(trainer=trainer, max_steps=1)
    norm = trainer.model.decoder.norm

    def mend_after_one(state: float) -> float:
        with torch.no_grad():
            norm.weight[0] = math.nan if trainer.num_skipped == 0 else 1.0
        return 0.01

    trainer.learning_rate = mend_after_one
    loop.run(Interrupt())
    assert trainer.num_skipped == 1
    assert all(math.isfinite(value) for _, values in loop.records for value in values.values())


def test_a_run_that_diverges_keeps_the_checkpoint_from_before(make_loop, tmp_path):
    loop = make_loop(save_every=2, max_steps=10)

    def spoil_the_third(step: int, loss: float, rate: float) -> None:
        if step == 3:
            with torch.no_grad():
                loop.trainer.model.decoder.norm.weight[0] = math.nan

    loop.progress = spoil_the_third
    with pytest.raises(TrainingDiverged, match="step 3: loss nan"):
        loop.run(Interrupt())
    assert saved(tmp_path) == {"last": 2, "step_2": 2}


class Scored:
    """A task that is judged by a score: higher is better."""

    headline = "score"
    higher_is_better = True

    def __init__(self, task) -> None:
        self.loss_sum = task.loss_sum


def test_among_equal_headlines_the_lower_loss_is_the_best(make_loop):
    """A score such as BLEU is 0 for a while; the loss tells the better of two such models."""
    loop = make_loop(max_steps=3, evaluate_every=1)
    loop.trainer.task = Scored(loop.trainer.task)
    loop.ranking.higher_is_better = True
    losses = iter([5.0, 3.0, 4.0])
    loop.validate = lambda step: {"score": 0.0, "loss": next(losses)}
    loop.run(Interrupt())
    best = loop.ranking.best
    assert (best.headline, best.loss, best.step, best.num_worse) == (0.0, 3.0, 2, 1)


def test_memory_is_flat_however_many_updates_are_made(make_loop):
    """B104: nothing is kept of an update but numbers."""
    loop = make_loop(max_steps=60, log_every=20)
    loop.run(Interrupt())
    before = num_tensors(), resident_bytes()
    loop.max_steps = 200
    loop.run(Interrupt())
    assert num_tensors() <= before[0]
    assert resident_bytes() - before[1] < 2 << 20


def num_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_no_update_between_records_is_waited_for(make_loop, make_trainer, monkeypatch):
    """B104: the host reads nothing from the device but at a record."""
    reads = []
    for name in ("item", "__float__", "__int__", "__bool__", "tolist"):
        read = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda self, read=read: (reads.append(loop.trainer.step), read(self))[1]
        )
    trainer = make_trainer(
        optimizer=lambda model: adam(model, beta1=0.9, beta2=0.98, epsilon=1e-9),
        learning_rate=lambda step: 0.01,
        waits=False,
    )
    loop = make_loop(trainer=trainer, max_steps=9, log_every=5)
    later = [False] * 9
    monkeypatch.setattr("headloom.training.guard._Later.is_known", lambda self: bool(later) and later.pop())
    loop.run(Interrupt())
    # Step 5 and 9 are recorded; steps are counted before they are recorded.
    assert set(reads) <= {5, 9}
    assert {5, 9} <= set(reads)
