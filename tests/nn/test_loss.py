"""Shapes: B batch, T length, D model width, V vocabulary."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from headloom.nn import loss as module
from headloom.nn.loss import IGNORE, sequence_loss

B, T, D, V = 3, 7, 10, 23


@pytest.fixture(params=[1 << 22, 5 * V, 1], ids=["one chunk", "chunks of five", "a row at a time"], autouse=True)
def chunk(request, monkeypatch):
    """Where chunks end must not show."""
    monkeypatch.setattr(module, "CHUNK_LOGITS", request.param)


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """hidden_BTD, target_BT with padding, weight_VD."""
    torch.manual_seed(2)
    target_BT = torch.randint(V, (B, T))
    target_BT[0, 4:] = target_BT[2, 1:] = IGNORE
    return torch.randn(B, T, D, dtype=dtype).requires_grad_(), target_BT, torch.randn(V, D).requires_grad_()


def reference(hidden_BTD: Tensor, target_BT: Tensor, weight_VD: Tensor, label_smoothing: float) -> Tensor:
    logits_NV = (hidden_BTD @ weight_VD.T).flatten(0, 1)
    return F.cross_entropy(
        logits_NV, target_BT.flatten(), ignore_index=IGNORE, label_smoothing=label_smoothing, reduction="sum"
    )


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.9])
def test_the_loss_and_its_gradients_are_those_of_pytorch(label_smoothing):
    """B39: the sum over real targets, smoothing included, and nothing for padding."""
    hidden_BTD, target_BT, weight_VD = inputs()
    ours = sequence_loss(hidden_BTD, target_BT, weight_VD, label_smoothing=label_smoothing)
    theirs = reference(hidden_BTD, target_BT, weight_VD, label_smoothing)
    torch.testing.assert_close(ours.loss, theirs)
    torch.testing.assert_close(ours.nll, reference(hidden_BTD, target_BT, weight_VD, 0.0).detach())
    upstream = torch.tensor(0.37)  # the trainer divides: the sum's own gradient is not 1
    gradients = [torch.autograd.grad(loss, (hidden_BTD, weight_VD), upstream) for loss in (ours.loss, theirs)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_counts_are_those_of_the_targets_that_count():
    hidden_BTD, target_BT, weight_VD = inputs()
    best_BT = (hidden_BTD @ weight_VD.T).argmax(-1)
    target_BT[1, :3] = best_BT[1, :3]
    sums = sequence_loss(hidden_BTD, target_BT, weight_VD, label_smoothing=0.1)
    assert sums.num_targets == int((target_BT != IGNORE).sum()) == 12
    assert sums.num_correct == int((best_BT == target_BT).sum()) >= 3
    assert not sums.nll.requires_grad


def test_smoothing_changes_the_loss_and_not_the_likelihood():
    """B40: perplexity is never that of the smoothed loss."""
    plain = sequence_loss(*inputs(), label_smoothing=0.0)
    smooth = sequence_loss(*inputs(), label_smoothing=0.1)
    assert plain.nll == smooth.nll
    assert plain.loss == plain.nll
    assert plain.loss != smooth.loss


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_a_model_that_knows_nothing_has_the_perplexity_of_the_vocabulary(label_smoothing):
    """B40: uniform logits cost ln V a target, smoothed or not."""
    hidden_BTD, target_BT, weight_VD = inputs()
    sums = sequence_loss(torch.zeros_like(hidden_BTD), target_BT, weight_VD, label_smoothing=label_smoothing)
    assert sums.nll.item() / sums.num_targets == pytest.approx(math.log(V))
    assert sums.loss.item() / sums.num_targets == pytest.approx(math.log(V))


def test_what_stands_in_padding_does_not_matter():
    """B27: not even NaN."""
    hidden_BTD, target_BT, weight_VD = inputs()
    plain = sequence_loss(hidden_BTD, target_BT, weight_VD, label_smoothing=0.1)
    garbage_BTD = hidden_BTD.detach().masked_fill((target_BT == IGNORE)[..., None], math.nan).requires_grad_()
    garbled = sequence_loss(garbage_BTD, target_BT, weight_VD, label_smoothing=0.1)
    assert torch.equal(garbled.loss, plain.loss)
    (gradient,) = torch.autograd.grad(garbled.loss, garbage_BTD)
    assert gradient[target_BT == IGNORE].eq(0).all()


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_a_batch_without_targets_adds_nothing(label_smoothing):
    """B37: zero and zero gradients, never NaN."""
    hidden_BTD, target_BT, weight_VD = inputs()
    sums = sequence_loss(hidden_BTD, torch.full_like(target_BT, IGNORE), weight_VD, label_smoothing=label_smoothing)
    assert (sums.loss, sums.nll, sums.num_correct, sums.num_targets) == (0, 0, 0, 0)
    for gradient in torch.autograd.grad(sums.loss, (hidden_BTD, weight_VD)):
        assert gradient.eq(0).all()


def test_a_tied_weight_gets_the_gradient_of_both_its_uses():
    """B61."""
    _, target_BT, weight_VD = inputs()
    token_BT = torch.randint(V, (B, T))
    gradients = []
    for use in (
        lambda h, w: sequence_loss(h, target_BT, w, label_smoothing=0.1).loss,
        lambda h, w: reference(h, target_BT, w, 0.1),
    ):
        hidden_BTD = F.embedding(token_BT, weight_VD).sin()
        gradients.append(torch.autograd.grad(use(hidden_BTD, weight_VD), weight_VD)[0])
    torch.testing.assert_close(*gradients)


def test_without_gradients_the_sums_are_the_same():
    trained = sequence_loss(*inputs(), label_smoothing=0.1)
    with torch.no_grad():
        scored = sequence_loss(*inputs(), label_smoothing=0.1)
    assert torch.equal(scored.loss, trained.loss)
    assert torch.equal(scored.nll, trained.nll)
    assert not scored.loss.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_under_autocast_sums_stay_float32_and_close(dtype):
    """B50: bfloat16 has 8 bits of mantissa, so each product is off by up to 0.4 %."""
    hidden_BTD, target_BT, weight_VD = inputs()
    theirs = reference(hidden_BTD, target_BT, weight_VD, 0.1)
    expected = torch.autograd.grad(theirs, (hidden_BTD, weight_VD))
    narrow_BTD = hidden_BTD.to(dtype)
    with torch.autocast("cpu", torch.bfloat16):
        ours = sequence_loss(narrow_BTD, target_BT, weight_VD, label_smoothing=0.1)
    assert ours.loss.dtype is ours.nll.dtype is torch.float32
    torch.testing.assert_close(ours.loss, theirs, rtol=0.01, atol=0.0)
    gradients = torch.autograd.grad(ours.loss, (hidden_BTD, weight_VD))
    assert gradients[1].dtype is torch.float32
    for one, other in zip(gradients, expected, strict=True):
        assert (one - other).norm() < 0.02 * other.norm()


def test_large_logits_do_not_overflow():
    hidden_BTD, target_BT, weight_VD = inputs()
    sums = sequence_loss(hidden_BTD * 1e4, target_BT, weight_VD, label_smoothing=0.1)
    assert sums.loss.isfinite()
    torch.testing.assert_close(sums.loss, reference(hidden_BTD * 1e4, target_BT, weight_VD, 0.1))
    for gradient in torch.autograd.grad(sums.loss, (hidden_BTD, weight_VD)):
        assert gradient.isfinite().all()
