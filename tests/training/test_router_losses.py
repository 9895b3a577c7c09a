"""The losses of a mixture of experts in an update and in its record."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from headloom.config.schema_parts import MoeConfig
from headloom.nn.loss import IGNORE
from headloom.nn.mixture import MEANS
from headloom.training.interrupt import Interrupt

MOE = MoeConfig(num_experts=3, num_chosen=2, d_ff=8, load_balance_weight=0.5, router_z_weight=0.3)


def pieces(batch, *bounds):
    """Rows of a batch, as narrow as they can be: one piece has no padding where another had some."""
    for first, last in bounds:
        target_BT = batch.target_BT[first:last]
        width = int((target_BT != IGNORE).sum(1).max())
        yield replace(
            batch,
            source_BS=batch.source_BS[first:last],
            target_input_BT=batch.target_input_BT[first:last, :width],
            target_BT=target_BT[:, :width],
            num_targets=int((target_BT != IGNORE).sum()),
            rows=batch.rows[first:last],
        )


@pytest.mark.parametrize("capacity_factor", [None, 0.7])
def test_router_losses_do_not_depend_on_how_an_update_is_split(make_trainer, make_batch, capacity_factor):
    """B38: nor does what is dropped; rows of 1, 9, 2 and 20 targets."""
    sections = {"feed_forward": replace(MOE, capacity_factor=capacity_factor)}
    whole, parts = make_trainer(sections=sections), make_trainer(sections=sections)
    batch = make_batch([1, 9, 2, 20])
    one = whole.train_step([batch])
    many = parts.train_step(list(pieces(batch, (0, 1), (1, 3), (3, 4))))
    for name in ("loss", "nll", "grad_norm"):
        torch.testing.assert_close(getattr(many, name), getattr(one, name), rtol=1e-5, atol=0)
    for name in MEANS:
        torch.testing.assert_close(many.means[name], one.means[name], rtol=1e-5, atol=0)
    assert (one.means["dropped_assignments"][0] > 0) == (capacity_factor is not None)
    for a, b in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)


def test_the_loss_of_an_update_holds_those_of_the_routers(make_trainer, make_batch):
    """What is minimised is reported; with weights of zero it is the cross-entropy alone."""
    batch = make_batch([4, 6])
    with_losses = make_trainer(sections={"feed_forward": MOE}, label_smoothing=0.0).train_step([batch])
    without = make_trainer(
        sections={"feed_forward": replace(MOE, load_balance_weight=0.0, router_z_weight=0.0)}, label_smoothing=0.0
    ).train_step([batch])
    torch.testing.assert_close(without.loss, without.nll)
    balance, z = (with_losses.means[name][0] for name in ("load_balance_loss", "router_z_loss"))
    # Two layers of encoder and decoder: sums are averaged over the four.
    torch.testing.assert_close(with_losses.loss - with_losses.nll, (0.5 * balance + 0.3 * z) / 4, rtol=1e-5, atol=1e-5)


def test_a_record_shows_the_means_of_its_interval(make_trainer, make_loop):
    trainer = make_trainer(sections={"feed_forward": MOE}, learning_rate=lambda step: 0.01)
    loop = make_loop(trainer=trainer, max_steps=2, log_every=2)
    loop.run(Interrupt())
    values = next(values for step, values in loop.records if "train/loss" in values)
    assert 0.9 < values["train/load_balance_loss"] < 3
    assert values["train/router_z_loss"] > 0
    assert values["train/dropped_assignments"] == 0


def test_a_model_without_experts_has_no_such_record(make_trainer, make_batch):
    trainer = make_trainer()
    assert trainer.mixtures == []
    assert trainer.train_step([make_batch([3])]).means == {}


def test_an_evaluation_notes_nothing(make_trainer, make_batch):
    trainer, batch = make_trainer(sections={"feed_forward": MOE}), make_batch([3, 2])
    trainer.model.eval()
    hidden_BTD = trainer.model(batch.source_BS, None, batch.target_input_BT)
    assert F.linear(hidden_BTD, trainer.model.output_weight).isfinite().all()
    assert all(mixture.take() == [] for mixture in trainer.mixtures)
