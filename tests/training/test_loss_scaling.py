"""float16 and its loss scaler, which work on a CPU too, if slowly."""

import pytest
import torch

from headloom.training.optim import adam

FLOAT16 = {"autocast_dtype": torch.float16}


def adam_of(model):
    return adam(model, beta1=0.9, beta2=0.98, epsilon=1e-9)


def weights(trainer):
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def test_an_overflow_skips_the_update_and_the_schedule_waits(make_trainer, make_batch):
    """B45: from a scale that must overflow until one that does not; no warning is given."""
    trainer = make_trainer(optimizer=adam_of, learning_rate=lambda step: 1e-3 * (step + 1), **FLOAT16)
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    before = weights(trainer)
    for num_skipped in range(1, 40):
        report = trainer.train_step([make_batch([3, 7])])
        if not report.skipped:
            break
        assert (trainer.step, trainer.num_skipped) == (0, num_skipped)
        assert all(torch.equal(a, b) for a, b in zip(weights(trainer), before, strict=True))
        assert trainer.scaler.get_scale() == 2.0 ** (40 - num_skipped)
    assert trainer.num_skipped > 5
    assert report.learning_rate == 1e-3
    assert trainer.step == 1
    assert trainer.train_step([make_batch([3, 7])]).learning_rate == 2e-3


def test_the_gradient_is_unscaled_before_it_is_clipped(make_trainer, make_batch):
    """B46: the norm and the update are those of float32, not 65536 times larger."""
    batch = make_batch([5, 9])
    reports, moved = [], []
    for options in ({}, FLOAT16):
        trainer = make_trainer(max_grad_norm=0.5, **options)
        before = weights(trainer)
        reports.append(trainer.train_step([batch]))
        moved.append(torch.cat([(a - b).flatten() for a, b in zip(weights(trainer), before, strict=True)]))
    assert trainer.scaler.get_scale() == 65536
    assert reports[0].grad_norm > 0.5  # or nothing is clipped
    torch.testing.assert_close(reports[1].grad_norm, reports[0].grad_norm, rtol=0.01, atol=0)
    torch.testing.assert_close(moved[1], moved[0], rtol=0, atol=0.01 * moved[0].norm().item())


def test_the_scale_is_part_of_the_state(make_trainer, make_batch):
    """B47."""
    trainer = make_trainer(optimizer=adam_of, **FLOAT16)
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2)
    for _ in range(3):
        trainer.train_step([make_batch([3])])
    assert trainer.scaler.get_scale() == 2.0**13
    resumed = make_trainer(optimizer=adam_of, **FLOAT16)
    resumed.load_state(trainer.state())
    assert resumed.scaler.state_dict() == trainer.scaler.state_dict()


@pytest.mark.parametrize(("before", "after"), [(FLOAT16, {}), ({}, FLOAT16)])
def test_a_run_may_go_on_in_another_precision(make_trainer, make_batch, before, after):
    """B47: a scaler's state is taken where there is one, and left where there is none."""
    trainer, resumed = make_trainer(optimizer=adam_of, **before), make_trainer(optimizer=adam_of, **after)
    trainer.train_step([make_batch([3])])
    resumed.load_state(trainer.state())
    assert not resumed.train_step([make_batch([3])]).skipped
    assert resumed.step == 2


def spoiled(trainer):
    with torch.no_grad():
        trainer.model.decoder.norm.weight[0] = torch.nan
    return trainer


def test_weights_that_are_not_finite_are_no_matter_of_the_scale(make_trainer, make_batch):
    """Every update would be skipped for ever; the scale falls below any that a sound gradient needs."""
    trainer = spoiled(make_trainer(**FLOAT16))
    reports = [trainer.train_step([make_batch([3])]) for _ in range(31)]
    assert [report.diverged for report in reports] == [False] * 29 + [True] * 2
    assert all(report.skipped for report in reports)


@pytest.mark.parametrize("other", [torch.float32, torch.bfloat16])
def test_when_the_scale_collapses_training_goes_on_in_another_type(make_trainer, make_batch, caplog, other):
    """B45: said once, and kept by a run that is resumed."""
    trainer = spoiled(make_trainer(optimizer=adam_of, collapses_to=other, **FLOAT16))
    while trainer.scaler.is_enabled():
        assert not trainer.train_step([make_batch([3])]).diverged
    assert caplog.messages == [
        f"step 0: gradients overflow float16 at every loss scale: going on in {str(other).removeprefix('torch.')}"
    ]
    assert trainer.train_step([make_batch([3])]).diverged  # here it was not the type
    with torch.no_grad():
        trainer.model.decoder.norm.weight[0] = 1.0
    assert not trainer.train_step([make_batch([3])]).skipped
    resumed = make_trainer(optimizer=adam_of, collapses_to=other, **FLOAT16)
    resumed.load_state(trainer.state())
    assert not resumed.scaler.is_enabled()
    assert resumed.autocast_dtype == trainer.autocast_dtype == (None if other is torch.float32 else other)
