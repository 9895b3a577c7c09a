import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headloom.nn.linear import Linear
from headloom.nn.packed import SMALLEST_PACKED
from headloom.nn.packing import packed_weights

NUM_INPUTS, NUM_OUTPUTS = 256, SMALLEST_PACKED // 256
ROWS = [(1,), (3,), (2, 2), (129,)]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", ROWS)
@torch.no_grad()
def test_packed_weights_change_nothing_but_rounding(bias, rows):
    layer, x_NI = Linear(NUM_INPUTS, NUM_OUTPUTS, bias=bias), torch.randn(*rows, NUM_INPUTS)
    plain_NO = layer(x_NI)
    with packed_weights(layer, torch.float32):
        packed_NO = layer(x_NI)
    assert packed_NO.dtype is torch.float32
    torch.testing.assert_close(packed_NO, plain_NO, atol=1e-5, rtol=1e-5)
    assert torch.equal(layer(x_NI), plain_NO)


@pytest.mark.parametrize("rows", ROWS)
@torch.no_grad()
def test_packed_for_bfloat16_a_layer_computes_as_under_autocast(rows):
    layer, x_NI = Linear(24, 16), torch.randn(*rows, 24)
    with torch.autocast("cpu", torch.bfloat16):
        plain_NO = layer(x_NI)
        with packed_weights(layer, torch.bfloat16):
            packed_NO = layer(x_NI)
    assert packed_NO.dtype is plain_NO.dtype is torch.bfloat16
    torch.testing.assert_close(packed_NO, plain_NO)


@torch.no_grad()
def test_after_the_block_a_layer_has_the_weights_it_has_got_since():
    layer, x_NI = Linear(NUM_INPUTS, NUM_OUTPUTS), torch.randn(3, NUM_INPUTS)
    with packed_weights(layer, torch.float32):
        layer(x_NI)
    layer.weight.add_(1)
    torch.testing.assert_close(layer(x_NI), F.linear(x_NI, layer.weight, layer.bias))


@torch.no_grad()
def test_a_block_inside_another_leaves_the_weights_packed():
    layer, x_NI = Linear(NUM_INPUTS, NUM_OUTPUTS), torch.randn(3, NUM_INPUTS)
    with packed_weights(layer, torch.bfloat16):
        with packed_weights(layer, torch.bfloat16):
            pass
        assert layer(x_NI).dtype is torch.bfloat16


def test_packing_adds_nothing_to_what_is_saved_and_keeps_a_weight_that_is_shared():
    table, layer = nn.Embedding(8, 4), Linear(4, 8, bias=False)
    layer.weight = table.weight
    with packed_weights(layer, torch.bfloat16):
        assert list(layer.state_dict()) == ["weight"]
    assert layer.weight is table.weight
    layer(torch.randn(2, 4)).sum().backward()
    assert table.weight.grad is not None
