"""R-Drop and scheduled sampling. Shapes: B batch, T target length, D model width, V vocabulary."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from headloom.data.batch import Batch
from headloom.models.seq2seq import Seq2Seq
from headloom.nn.loss import IGNORE
from headloom.tasks.base import FollowsSteps
from headloom.tasks.scheduled_sampling import Decay, ScheduledSampling
from headloom.tasks.translation import TranslationTask

V, BOS, PAD = 9, 1, 0


@pytest.fixture
def model(make_model) -> Seq2Seq:
    return make_model(V).train()


@pytest.fixture
def batch() -> Batch:
    target_BT = torch.tensor([[4, 5, 6, 2], [7, 2, IGNORE, IGNORE]])
    return Batch(
        source_BS=torch.tensor([[3, 4, 5], [6, 7, PAD]]),
        source_allowed_BS=torch.tensor([[True, True, True], [True, True, False]]),
        target_input_BT=torch.tensor([[BOS, 4, 5, 6], [BOS, 7, PAD, PAD]]),
        target_BT=target_BT,
        num_targets=6,
        rows=np.arange(2),
    )


def task(**options) -> TranslationTask:
    return TranslationTask(label_smoothing=0.1, headline="loss", **options)


def test_r_drop_is_half_of_equation_4_of_its_paper(model, batch):
    """From the logits of the two passes that it makes."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        sums = task(r_drop=3.0).loss_sum(model, batch)
        torch.manual_seed(5)
        hidden_BTD = model(
            torch.cat([batch.source_BS] * 2),
            torch.cat([batch.source_allowed_BS] * 2),
            torch.cat([batch.target_input_BT] * 2),
        )
    counts_BT = batch.target_BT != IGNORE
    one_NV, other_NV = (model.logits(h_BTD[counts_BT]).log_softmax(-1) for h_BTD in hidden_BTD.chunk(2))
    assert not torch.allclose(one_NV, other_NV)
    target_N = batch.target_BT[counts_BT]
    nll, likelihood = (
        [F.cross_entropy(x, target_N, label_smoothing=s, reduction="sum") for x in (one_NV, other_NV)]
        for s in (0.1, 0.0)
    )
    divergences = ((one_NV.exp() - other_NV.exp()) * (one_NV - other_NV)).sum()
    torch.testing.assert_close(sums.loss, (sum(nll) + 3.0 * divergences / 2) / 2)
    torch.testing.assert_close(sums.nll, (sum(likelihood) / 2).detach())
    assert sums.num_targets == 6
    assert 0 <= sums.num_correct <= 6


@pytest.mark.parametrize(
    "options", [{"r_drop": 3.0}, {"sampling": ScheduledSampling(probability=1.0, decay=Decay.constant, num_steps=None)}]
)
def test_an_evaluation_is_that_of_a_plain_task_and_draws_nothing(model, batch, options):
    model.eval()
    state = torch.get_rng_state()
    sums, plain = task(**options).loss_sum(model, batch), task().loss_sum(model, batch)
    assert torch.equal(sums.loss, plain.loss)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_shares_of_true_tokens_are_those_of_the_paper():
    def at(decay: Decay, step: int) -> float:
        return ScheduledSampling(probability=0.5, decay=decay, num_steps=10).probability_at(step)

    assert ScheduledSampling(probability=0.5, decay=Decay.constant, num_steps=None).probability_at(0) == 0.5
    assert [at(Decay.linear, step) for step in (0, 5, 10, 99)] == [0.0, 0.25, 0.5, 0.5]
    assert at(Decay.exponential, 10) == pytest.approx(0.5 * (1 - math.exp(-1)))
    assert at(Decay.inverse_sigmoid, 0) == pytest.approx(0.5 * (1 - 10 / 11))
    assert at(Decay.inverse_sigmoid, 10**6) == 0.5


def test_every_true_token_is_replaced_by_the_likeliest_of_the_place_before_at_probability_1(model, batch):
    for module in model.modules():  # both passes as one
        if hasattr(module, "probability"):
            module.probability = 0.0
        if hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = 0.0
    sampling = ScheduledSampling(probability=1.0, decay=Decay.constant, num_steps=None)
    input_BT = sampling.inputs(model, batch, None)
    model.eval()
    logits_BTV = model.logits(model(batch.source_BS, batch.source_allowed_BS, batch.target_input_BT))
    expected_BT = torch.cat([torch.full((2, 1), BOS), logits_BTV.argmax(-1)[:, :-1]], dim=1)
    expected_BT[1, 2:] = PAD
    assert torch.equal(input_BT, expected_BT)


def test_nothing_is_replaced_nor_drawn_while_the_probability_is_0(model, batch):
    sampling = ScheduledSampling(probability=1.0, decay=Decay.linear, num_steps=4)
    state = torch.get_rng_state()
    assert sampling.inputs(model, batch, None) is batch.target_input_BT
    assert torch.equal(torch.get_rng_state(), state)
    following = task(sampling=sampling)
    assert isinstance(following, FollowsSteps)
    following.at_step(4)
    assert sampling.probability_at(sampling.step) == 1.0


def test_the_gradient_is_that_of_the_second_pass_alone(model, batch):
    sampling = ScheduledSampling(probability=0.7, decay=Decay.constant, num_steps=None)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        ours = task(sampling=sampling).loss_sum(model, batch).loss
        torch.manual_seed(5)
        mixed = replace(batch, target_input_BT=sampling.inputs(model, batch, None))
        theirs = task().loss_sum(model, mixed).loss
    gradients = [torch.autograd.grad(loss, list(model.parameters())) for loss in (ours, theirs)]
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)
