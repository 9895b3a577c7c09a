"""Shapes: B batch, T length, D model width, F inner width."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headloom.nn.feed_forward import FeedForward, GatedFeedForward
from headloom.nn.norm import LayerNorm, RMSNorm

D = 12
NORMS = {LayerNorm: nn.LayerNorm, RMSNorm: nn.RMSNorm}
parametrize_norm = pytest.mark.parametrize("norm", NORMS)


@parametrize_norm
def test_a_norm_and_its_gradients_are_those_of_pytorch(norm):
    torch.manual_seed(0)
    ours, theirs = norm(D, epsilon=1e-3), NORMS[norm](D, eps=1e-3)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    ours.load_state_dict(theirs.state_dict())
    results = []
    for module in (ours, theirs):
        x_BTD = torch.linspace(-3, 5, 2 * 4 * D).sin().view(2, 4, D).requires_grad_()
        out_BTD = module(x_BTD)
        results.append([out_BTD, *torch.autograd.grad(out_BTD.exp().sum(), [x_BTD, *module.parameters()])])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@parametrize_norm
def test_a_norm_starts_as_the_identity_up_to_scale(norm):
    x_BTD = torch.randn(2, 3, D)
    normed = norm(D, epsilon=1e-5)(x_BTD)
    torch.testing.assert_close(normed.square().mean(-1), torch.ones(2, 3), atol=1e-3, rtol=1e-3)


@parametrize_norm
def test_a_norm_is_float32_whatever_it_reads(norm):
    x_BTD = torch.randn(2, 3, D) * 1000
    with torch.autocast("cpu", torch.bfloat16):
        normed = norm(D, epsilon=1e-5)(x_BTD.bfloat16())
    assert normed.dtype is torch.float32
    torch.testing.assert_close(normed, norm(D, epsilon=1e-5)(x_BTD.bfloat16().float()))


@parametrize_norm
@pytest.mark.parametrize("size", [0.0, 1e-20, 1e15])
def test_a_row_of_zeros_or_of_any_size_has_finite_gradients(norm, size):
    x_BTD = (torch.randn(2, 3, D) * size).requires_grad_()
    out_BTD = norm(D, epsilon=1e-5)(x_BTD)
    out_BTD.square().sum().backward()
    assert out_BTD.isfinite().all()
    assert x_BTD.grad.isfinite().all()


@pytest.mark.parametrize("activation", [F.relu, F.gelu])
def test_the_feed_forward_is_two_matrices_around_an_activation(activation):
    """Vaswani et al. (2017), equation 2."""
    ours = FeedForward(D, 20, activation=activation, bias=True, dropout=0.0)
    x_BTD = torch.randn(2, 3, D)
    expected = activation(x_BTD @ ours.up.weight.T + ours.up.bias) @ ours.down.weight.T + ours.down.bias
    torch.testing.assert_close(ours(x_BTD), expected)


def test_swiglu_gates_one_product_with_another():
    """Shazeer (2020), equation 6."""
    ours = GatedFeedForward(D, 20, activation=F.silu, bias=False, dropout=0.0)
    x_BTD = torch.randn(2, 3, D)
    gate_FD, up_FD = ours.gate_up.weight.split(20)
    expected = (F.silu(x_BTD @ gate_FD.T) * (x_BTD @ up_FD.T)) @ ours.down.weight.T
    torch.testing.assert_close(ours(x_BTD), expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda bias: FeedForward(D, 20, activation=F.relu, bias=bias, dropout=0.0),
        lambda bias: GatedFeedForward(D, 20, activation=F.silu, bias=bias, dropout=0.0),
    ],
)
def test_bias_false_leaves_matrices_only(make):
    assert all(parameter.dim() == 2 for parameter in make(False).parameters())
    assert sum(parameter.dim() == 1 for parameter in make(True).parameters()) == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: FeedForward(D, 200, activation=F.gelu, bias=True, dropout=0.5),
        lambda: GatedFeedForward(D, 200, activation=F.silu, bias=True, dropout=0.5),
    ],
)
def test_dropout_falls_on_the_activations_in_training_only(make):
    feed_forward = make()
    x_BTD = torch.randn(1, 2, D)
    assert not torch.equal(feed_forward(x_BTD), feed_forward(x_BTD))
    feed_forward.eval()
    assert torch.equal(feed_forward(x_BTD), feed_forward(x_BTD))
