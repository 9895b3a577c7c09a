"""One update: exact however it is split, skipped or refused where it must be."""

import copy
import gc
import io
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headloom.data.batch import Batch
from headloom.nn.loss import IGNORE
from headloom.training.averaging import WeightAverage
from headloom.training.optim import DecayRule, adam, adamw
from headloom.training.trainer import Trainer, layer_grad_norms


def adam_of(model: nn.Module) -> torch.optim.Optimizer:
    return adam(model, beta1=0.9, beta2=0.98, epsilon=1e-9)


def weights(trainer: Trainer) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def rows(batch: Batch, first: int, last: int) -> Batch:
    """Some rows of a batch, as narrow as they can be."""
    target_BT = batch.target_BT[first:last]
    width = int((target_BT != IGNORE).sum(1).max())
    return replace(
        batch,
        source_BS=batch.source_BS[first:last],
        target_input_BT=batch.target_input_BT[first:last, :width],
        target_BT=target_BT[:, :width],
        num_targets=int((target_BT != IGNORE).sum()),
        rows=batch.rows[first:last],
    )


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("max_grad_norm", [None, 0.1])
@pytest.mark.parametrize("split", [[(0, 2), (2, 4)], [(0, 1), (1, 2), (2, 3), (3, 4)], [(0, 3), (3, 4)]])
def test_splitting_an_update_into_batches_changes_nothing(
    make_trainer, make_batch, label_smoothing, max_grad_norm, split
):
    """B38, B39: rows of 1, 9, 2 and 30 targets; a mean of means would weigh the short ones more."""
    options = {"label_smoothing": label_smoothing, "max_grad_norm": max_grad_norm}
    whole, parts = make_trainer(**options), make_trainer(**options)
    batch = make_batch([1, 9, 2, 30])
    one, many = whole.train_step([batch]), parts.train_step([rows(batch, *part) for part in split])
    assert one.num_targets == many.num_targets == 42
    for name in ("loss", "nll", "num_correct", "grad_norm"):
        torch.testing.assert_close(getattr(many, name), getattr(one, name), rtol=1e-5, atol=0)
    for a, b in zip(weights(parts), weights(whole), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)


def test_the_reported_sums_are_those_of_the_targets(make_trainer, make_batch):
    """B38: nll / num_targets is the mean over all 42 targets; what is minimised is smoothed."""
    trainer, batch = make_trainer(), make_batch([1, 9, 2, 30])
    with torch.no_grad():
        hidden_BTD = trainer.model(batch.source_BS, None, batch.target_input_BT)
        logits_NV = trainer.model.logits(hidden_BTD).flatten(0, 1)
    report = trainer.train_step([batch])
    target_N = batch.target_BT.flatten()
    for value, smoothing in ((report.nll, 0.0), (report.loss, 0.1)):
        mean = F.cross_entropy(logits_NV, target_N, label_smoothing=smoothing, ignore_index=IGNORE)
        assert value.item() / report.num_targets == pytest.approx(mean.item(), rel=1e-6)
    assert report.num_correct == (logits_NV.argmax(-1) == target_N).sum()


def test_a_batch_without_targets_adds_nothing_to_an_update(make_trainer, make_batch):
    """B37."""
    plain, mixed = make_trainer(), make_trainer()
    plain.train_step([make_batch([3, 4])])
    report = mixed.train_step([make_batch([0, 0]), make_batch([3, 4]), make_batch([0])])
    assert report.num_targets == 7
    for a, b in zip(weights(mixed), weights(plain), strict=True):
        assert torch.equal(a, b)


def test_an_update_without_targets_is_skipped_and_counted(make_trainer, make_batch):
    """B37: weights, step and average stay; nothing becomes NaN."""
    trainer = make_trainer(optimizer=adam_of)
    trainer.average = WeightAverage(trainer.model, decay=0.9)
    before = weights(trainer)
    report = trainer.train_step([make_batch([0, 0]), make_batch([0])])
    assert report.skipped
    assert (trainer.step, trainer.num_skipped, trainer.average.num_updates) == (0, 1, 0)
    assert all(torch.equal(a, b) for a, b in zip(weights(trainer), before, strict=True))
    assert not trainer.train_step([make_batch([3])]).skipped
    assert (trainer.step, trainer.num_skipped, trainer.average.num_updates) == (1, 1, 1)


def test_a_long_gradient_is_scaled_down_to_the_longest_norm(make_trainer, make_batch):
    """B46: the norm is that of the whole gradient, reported as it was before; a tied matrix counts once."""
    free, clipped = make_trainer(max_grad_norm=None), make_trainer(max_grad_norm=0.25)
    batch = make_batch([3, 9])
    start = weights(free)
    norms = [trainer.train_step([batch]).grad_norm for trainer in (free, clipped)]
    moved = [torch.cat([(a - b).flatten() for a, b in zip(weights(t), start, strict=True)]) for t in (free, clipped)]
    assert norms[0] > 0.5  # or the test shows nothing
    torch.testing.assert_close(norms[0], norms[1])
    torch.testing.assert_close(moved[0].norm(), norms[0], rtol=1e-4, atol=0)
    torch.testing.assert_close(moved[1].norm(), torch.tensor(0.25), rtol=1e-4, atol=0)
    assert F.cosine_similarity(*moved, dim=0) > 0.9999


def test_a_short_gradient_is_left_as_it_is(make_trainer, make_batch):
    free, clipped = make_trainer(max_grad_norm=None), make_trainer(max_grad_norm=1e6)
    for trainer in (free, clipped):
        trainer.train_step([make_batch([3, 9])])
    assert all(torch.equal(a, b) for a, b in zip(weights(free), weights(clipped), strict=True))


def test_the_norms_of_the_layers_make_up_the_norm_of_the_whole(make_trainer, make_batch):
    trainer = make_trainer(max_grad_norm=0.01)
    report = trainer.train_step([make_batch([3, 9])], with_layers=True)
    norms = report.layer_grad_norms
    torch.testing.assert_close(torch.stack(list(norms.values())).norm(), report.grad_norm)
    assert {"encoder.blocks.0", "encoder.blocks.1", "decoder.blocks.0", "decoder.norm"} < norms.keys()
    assert not trainer.train_step([make_batch([3, 9])]).layer_grad_norms


def test_a_layer_without_gradient_has_no_norm():
    module = nn.ModuleDict({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
    module["used"](torch.ones(2)).sum().backward()
    assert layer_grad_norms(module).keys() == {"used"}


def test_each_update_has_the_rate_of_its_step(make_trainer, make_batch):
    """B56: the rate is a function of the step and of nothing that is stored."""
    trainer = make_trainer(optimizer=adam_of, learning_rate=lambda step: 0.01 * (step + 1))
    for step in range(3):
        report = trainer.train_step([make_batch([3])])
        assert report.learning_rate == 0.01 * (step + 1)
        assert {group["lr"] for group in trainer.optimizer.param_groups} == {report.learning_rate}


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("waits", [True, False])
def test_a_gradient_that_is_not_finite_changes_no_weight(make_trainer, make_batch, value, waits):
    """Whether the host knows it at once, or the optimizer skips the update on the device."""
    trainer = make_trainer(optimizer=adam_of, waits=waits)
    trainer.train_step([make_batch([3])])
    norm = trainer.model.decoder.norm.weight
    with torch.no_grad():
        norm[0], kept = value, norm[0].item()
    before, moments = weights(trainer), copy.deepcopy(trainer.optimizer.state_dict()["state"])
    report = trainer.train_step([make_batch([3])])
    assert not report.grad_norm.isfinite()
    assert (report.diverged, report.skipped, trainer.step) == ((True, True, 1) if waits else (False, False, 2))
    for a, b in zip(weights(trainer), before, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, atol=0, rtol=0)
    torch.testing.assert_close(trainer.optimizer.state_dict()["state"], moments, rtol=0, atol=0)
    with torch.no_grad():
        norm[0] = kept
    assert trainer.train_step([make_batch([3])]).grad_norm.isfinite()


def test_not_waiting_changes_no_sound_update(make_trainer, make_batch):
    trainers = [make_trainer(optimizer=adam_of, waits=waits) for waits in (True, False)]
    for trainer in trainers:
        for seed in range(3):
            trainer.train_step([make_batch([3, 7], seed=seed)])
    assert all(torch.equal(a, b) for a, b in zip(*map(weights, trainers), strict=True))


def test_a_trainer_waits_where_the_optimizer_cannot_skip_on_the_device(make_trainer):
    """SGD as PyTorch has it is not fused; a float16 update has another rate where the one before was skipped."""
    assert make_trainer(waits=False).waits
    assert make_trainer(optimizer=adam_of, waits=False, autocast_dtype=torch.float16).waits
    assert not make_trainer(optimizer=adam_of, waits=False).waits


def test_an_update_over_the_loss_allowed_is_refused(make_trainer, make_batch):
    trainer = make_trainer()
    before = weights(trainer)
    trainer.max_loss = 0.5
    assert trainer.train_step([make_batch([3, 7])]).diverged
    assert all(torch.equal(a, b) for a, b in zip(weights(trainer), before, strict=True))


class SmallMemory:
    """A task whose batches must not have more rows than `max_rows`; it fails in the backward pass."""

    headline, higher_is_better = "loss", False

    def __init__(self, task, max_rows: int) -> None:
        self.task, self.max_rows, self.num_rows = task, max_rows, []

    def loss_sum(self, model, batch):
        sums = self.task.loss_sum(model, batch)
        self.num_rows.append(len(batch.rows))
        if len(batch.rows) > self.max_rows:
            sums.loss.register_hook(self.fail)
            sums.loss = sums.loss + 0.0
        return sums

    def fail(self, gradient):
        raise torch.OutOfMemoryError("no memory")


@pytest.mark.parametrize("max_rows", [1, 2, 5])
def test_an_update_that_does_not_fit_in_memory_is_made_in_halves(make_trainer, make_batch, max_rows):
    """What the failed attempts added counts for nothing."""
    whole, parts = make_trainer(), make_trainer()
    parts.task = SmallMemory(parts.task, max_rows)
    batches = [make_batch([1, 9, 2, 30]), make_batch([3, 0, 4, 4, 8], seed=1)]
    one, many = whole.train_step(batches), parts.train_step(batches)
    assert (parts.num_halved > 0) is (max_rows < 5)
    for name in ("loss", "nll", "num_correct", "grad_norm"):
        torch.testing.assert_close(getattr(many, name), getattr(one, name), rtol=1e-5, atol=0)
    for a, b in zip(weights(parts), weights(whole), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)


def test_a_row_that_does_not_fit_in_memory_is_an_error(make_trainer, make_batch):
    trainer = make_trainer()
    trainer.task = SmallMemory(trainer.task, 0)
    with pytest.raises(torch.OutOfMemoryError):
        trainer.train_step([make_batch([3, 7])])


def test_a_report_holds_no_graph(make_trainer, make_batch):
    """B104: reports that are kept keep numbers, not activations."""
    trainer = make_trainer()
    reports = [trainer.train_step([make_batch([3, 4])], with_layers=True) for _ in range(2)]
    gc.collect()
    kept = [tensor for report in reports for tensor in (report.loss, report.nll, report.num_correct, report.grad_norm)]
    assert not any(tensor.requires_grad or tensor.grad_fn for tensor in kept)
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_trainer_with_restored_state_goes_on_bit_for_bit(make_trainer, make_batch, dtype):
    """B54: optimizer, average, step; dropout goes on from PyTorch's own random state."""

    def make() -> Trainer:
        trainer = make_trainer(
            optimizer=adam_of, learning_rate=lambda step: 1e-3 * (step + 1), dropout=0.2, autocast_dtype=dtype
        )
        trainer.average = WeightAverage(trainer.model, decay=0.9)
        return trainer

    straight = make()
    for step in range(3):
        straight.train_step([make_batch([3, 7], seed=step)])
    file = io.BytesIO()
    torch.save(straight.state(), file)
    file.seek(0)
    state, random_state = torch.load(file, weights_only=True), torch.get_rng_state()
    resumed = make()
    resumed.model.load_state_dict(state["model"])
    resumed.load_state({name: value for name, value in state.items() if name != "model"})
    assert resumed.step == 3
    reports = []
    for trainer in (straight, resumed):
        torch.set_rng_state(random_state)
        reports.append([trainer.train_step([make_batch([3, 7], seed=step)]) for step in range(3, 6)])
    for one, other in zip(*reports, strict=True):
        assert (one.loss, one.nll, one.grad_norm, one.learning_rate) == (
            other.loss,
            other.nll,
            other.grad_norm,
            other.learning_rate,
        )
    assert all(torch.equal(a, b) for a, b in zip(weights(straight), weights(resumed), strict=True))
    with straight.average.applied(), resumed.average.applied():
        assert all(torch.equal(a, b) for a, b in zip(weights(straight), weights(resumed), strict=True))


def test_a_restored_optimizer_keeps_its_own_options(make_trainer, make_batch):
    """B64: what the user sets for the rest of a run is not undone by what the checkpoint holds."""

    def decayed(model: nn.Module, **options: float) -> torch.optim.Optimizer:
        return adamw(model, **options, rule=DecayRule())

    before = make_trainer(optimizer=lambda model: decayed(model, beta1=0.9, beta2=0.9, epsilon=1e-8, weight_decay=0.5))
    before.train_step([make_batch([3])])
    after = make_trainer(optimizer=lambda model: decayed(model, beta1=0.8, beta2=0.99, epsilon=1e-9, weight_decay=0.1))
    after.load_state(before.state())
    groups = after.optimizer.param_groups
    assert [(g["betas"], g["eps"], g["weight_decay"]) for g in groups] == [
        ((0.8, 0.99), 1e-9, 0.1),
        ((0.8, 0.99), 1e-9, 0.0),
    ]
    moments = after.optimizer.state_dict()["state"]
    assert torch.equal(moments[0]["exp_avg"], before.optimizer.state_dict()["state"][0]["exp_avg"])


def test_bfloat16_needs_no_loss_scaler_and_keeps_weights_in_float32(make_trainer, make_batch):
    """B50: the same update within the rounding of the products."""
    wide, narrow = make_trainer(), make_trainer(autocast_dtype=torch.bfloat16)
    start, batch = weights(wide), make_batch([5, 9])
    reports = [trainer.train_step([batch]) for trainer in (wide, narrow)]
    assert not narrow.scaler.is_enabled()
    assert {parameter.dtype for parameter in narrow.model.parameters()} == {torch.float32}
    torch.testing.assert_close(reports[1].loss, reports[0].loss, rtol=0.01, atol=0)
    moved = [torch.cat([(a - b).flatten() for a, b in zip(weights(t), start, strict=True)]) for t in (wide, narrow)]
    assert F.cosine_similarity(*moved, dim=0) > 0.99


def test_three_updates_keep_their_recorded_losses(make_trainer, make_batch):
    """If this fails and you meant to change no numbers, you changed some.

    If you did mean to (a new initialisation, another order of random draws), record the
    new values and say in the commit why they moved.
    """
    trainer = make_trainer(optimizer=adam_of, learning_rate=lambda step: 1e-2, dropout=0.1)
    torch.manual_seed(0)
    losses = []
    for seed in range(3):
        report = trainer.train_step([make_batch([3, 8], seed=seed), make_batch([5], seed=seed + 10)])
        losses.append(report.loss.item() / report.num_targets)
    assert losses == pytest.approx([3.395167, 3.319392, 3.585272], abs=1e-4)
