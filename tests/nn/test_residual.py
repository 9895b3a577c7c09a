"""Shapes: B batch, T length, D model width."""

import pytest
import torch
from torch import nn

from headloom.nn.norm import LayerNorm
from headloom.nn.residual import PostNorm, PreNorm, to_step_precision

D = 8


def test_pre_norm_leaves_the_stream_itself_alone():
    """x + f(norm(x)): Xiong et al. (2020), figure 1b."""
    norm, x_BTD = LayerNorm(D, epsilon=1e-5), torch.randn(2, 3, D)
    torch.testing.assert_close(PreNorm(norm, 0.0)(x_BTD, torch.sin), x_BTD + norm(x_BTD).sin())


def test_post_norm_normalises_the_sum():
    """norm(x + f(x)): Vaswani et al. (2017), section 3.1."""
    norm, x_BTD = LayerNorm(D, epsilon=1e-5), torch.randn(2, 3, D)
    torch.testing.assert_close(PostNorm(norm, 0.0)(x_BTD, torch.sin), norm(x_BTD + x_BTD.sin()))


@pytest.mark.parametrize("residual", [PreNorm, PostNorm])
def test_what_a_sublayer_adds_is_dropped_in_training_only(residual):
    module, x_BTD = residual(nn.Identity(), 0.5), torch.randn(20, 3, D)
    added = (module(x_BTD, torch.ones_like) - x_BTD).round(decimals=4)
    assert sorted(added.unique().tolist()) == [0.0, 2.0]
    module.eval()
    torch.testing.assert_close(module(x_BTD, torch.ones_like), x_BTD + 1)


@pytest.mark.parametrize("residual", [PreNorm, PostNorm])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_stream_stays_float32_and_the_sublayer_computes_in_the_precision_of_the_step(residual, dropout):
    """B50."""
    linear = nn.Linear(D, D)
    seen = []

    def sublayer(x_BTD):
        seen.append(x_BTD.dtype)
        return linear(x_BTD)

    with torch.autocast("cpu", torch.bfloat16):
        out_BTD = residual(LayerNorm(D, epsilon=1e-5), dropout)(torch.randn(2, 3, D), sublayer)
    assert seen == [torch.bfloat16]
    assert out_BTD.dtype is torch.float32


def test_without_autocast_nothing_is_converted():
    x = torch.randn(3)
    assert to_step_precision(x) is x
    with torch.autocast("cpu", torch.bfloat16):
        assert to_step_precision(x).dtype is torch.bfloat16
