import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headloom.nn import init
from headloom.nn.attention import MultiHeadAttention
from headloom.nn.feed_forward import FeedForward, GatedFeedForward


def feed_forward() -> FeedForward:
    return FeedForward(200, 400, activation=torch.relu, bias=True, dropout=0.0)


def test_xavier_gives_each_matrix_a_variance_by_its_two_widths():
    """Glorot and Bengio (2010), equation 16; biases are zero."""
    module = feed_forward()
    init.xavier(module)
    for linear in (module.up, module.down):
        assert math.isclose(linear.weight.std().item(), math.sqrt(2 / 600), rel_tol=0.02)
        assert linear.weight.abs().max() <= math.sqrt(6 / 600)
        assert linear.bias.eq(0).all()


def test_small_normal_narrows_what_writes_to_the_residual_stream():
    """Radford et al. (2019), section 2.3."""
    module = nn.ModuleDict({"feed_forward": feed_forward()})
    init.small_normal(module, num_residuals=16)
    assert math.isclose(module["feed_forward"].up.weight.std().item(), 0.02, rel_tol=0.02)
    assert math.isclose(module["feed_forward"].down.weight.std().item(), 0.02 / 4, rel_tol=0.02)
    assert module["feed_forward"].down.bias.eq(0).all()


def test_embeddings_times_the_root_of_the_width_have_deviation_one():
    table = nn.Embedding(500, 100)
    init.embedding(table)
    assert math.isclose(table.weight.std().item() * math.sqrt(100), 1.0, rel_tol=0.02)


def test_deepnorm_s_constants_are_those_of_the_paper():
    """Wang et al. (2022), figure 2: 18 layers of each stack; a decoder alone has an encoder's."""
    assert init.deepnorm_constants(18) == pytest.approx(((2 * 18) ** 0.25, (8 * 18) ** -0.25))
    assert init.deepnorm_constants_of_encoder(18, 6) == pytest.approx(
        (0.81 * (18**4 * 6) ** (1 / 16), 0.87 * (18**4 * 6) ** (-1 / 16))
    )
    assert init.deepnorm_constants_of_decoder(6) == pytest.approx(((3 * 6) ** 0.25, (12 * 6) ** -0.25))


def test_deepnorm_scales_values_and_outputs_and_feed_forwards_only():
    attention = MultiHeadAttention(8, 4, num_kv_heads=2)
    feed_forward = FeedForward(8, 6, activation=F.relu, bias=True, dropout=0.0)
    gated = GatedFeedForward(8, 6, activation=F.silu, bias=True, dropout=0.0)
    stack = nn.ModuleList([attention, feed_forward, gated])
    before = {name: value.clone() for name, value in stack.state_dict().items()}
    init.scale_for_depth(stack, 0.5)
    expected = {
        **{name: 1.0 for name in before},
        **{f"{name}.weight": 0.5 for name in ("0.output", "1.up", "1.down", "2.gate_up", "2.down")},
    }
    expected.pop("0.key_value.weight")
    for name, factor in expected.items():
        assert torch.equal(stack.state_dict()[name], before[name] * factor), name
    key, value = attention.key_value.weight.split(4)
    assert torch.equal(key, before["0.key_value.weight"][:4])
    assert torch.equal(value, before["0.key_value.weight"][4:] * 0.5)
