"""Shapes: B batch, T length, D model width."""

import pytest
import torch
from torch import nn

from headloom.nn.norm import LayerNorm
from headloom.nn.residual import Branch, DeepNorm, PostNorm, PreNorm, SandwichNorm, to_step_precision

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


def test_sandwich_norm_normalises_what_is_added_too():
    """x + norm(f(norm(x))): Ding et al. (2021), section 2.4."""
    first, last, x_BTD = LayerNorm(D, epsilon=1e-5), LayerNorm(D, epsilon=1e-3), torch.randn(2, 3, D)
    out_BTD = SandwichNorm(first, last, 0.0)(x_BTD, torch.sin)
    torch.testing.assert_close(out_BTD, x_BTD + last(first(x_BTD).sin()))


def test_deep_norm_scales_the_stream():
    """norm(alpha x + f(x)): Wang et al. (2022), section 3."""
    norm, x_BTD = LayerNorm(D, epsilon=1e-5), torch.randn(2, 3, D)
    torch.testing.assert_close(DeepNorm(norm, 0.0, alpha=1.7)(x_BTD, torch.sin), norm(1.7 * x_BTD + x_BTD.sin()))


def with_branch(branch: Branch) -> list[nn.Module]:
    return [
        PreNorm(nn.Identity(), 0.0, branch=branch),
        PostNorm(nn.Identity(), 0.0, branch=branch),
        SandwichNorm(nn.Identity(), nn.Identity(), 0.0, branch=branch),
        DeepNorm(nn.Identity(), 0.0, alpha=1.0, branch=branch),
    ]


@pytest.mark.parametrize("placement", range(4))
def test_a_row_leaves_a_sublayer_out_in_training_only(placement):
    """Stochastic depth: kept rows are divided by the keep probability; evaluation draws no number."""
    residual, x_BTD = with_branch(Branch(drop_probability=0.75))[placement], torch.randn(200, 3, D)
    added_BTD = (residual(x_BTD, torch.ones_like) - x_BTD).round(decimals=4)
    assert sorted(added_BTD.unique().tolist()) == [0.0, 4.0]
    assert added_BTD.flatten(1).std(dim=1).eq(0).all()  # a row as a whole
    assert 20 < added_BTD[:, 0, 0].gt(0).sum() < 80
    residual.eval()
    state = torch.get_rng_state()
    torch.testing.assert_close(residual(x_BTD, torch.ones_like), x_BTD + 1)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("placement", range(4))
@pytest.mark.parametrize("training", [True, False])
def test_a_fixed_scale_multiplies_what_is_added(placement, training):
    residual = with_branch(Branch(scale=0.5))[placement].train(training)
    x_BTD = torch.randn(2, 3, D)
    torch.testing.assert_close(residual(x_BTD, torch.ones_like), x_BTD + 0.5)


def test_the_expectation_of_a_scaled_and_dropped_branch_is_its_scale():
    branch = Branch(scale=0.5, drop_probability=0.2).train()
    assert branch(torch.ones(20_000, 1, 1)).mean().item() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("residual", [SandwichNorm, DeepNorm])
def test_the_stream_stays_float32_in_every_placement(residual):
    norms = [LayerNorm(D, epsilon=1e-5) for _ in range(2 if residual is SandwichNorm else 1)]
    options = {"alpha": 1.5} if residual is DeepNorm else {}
    with torch.autocast("cpu", torch.bfloat16):
        out_BTD = residual(*norms, 0.1, **options, branch=Branch(drop_probability=0.5))(
            torch.randn(2, 3, D), nn.Linear(D, D)
        )
    assert out_BTD.dtype is torch.float32
