import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headloom.nn.linear import Linear
from headloom.nn.packed import SMALLEST_PACKED, can_be_packed
from headloom.nn.packing import hold_in_float16, packed_weights

NUM_INPUTS, NUM_OUTPUTS = 256, SMALLEST_PACKED // 256
ROWS = [(1,), (3,), (2, 2), (129,)]
needs_float16 = pytest.mark.skipif(not can_be_packed(torch.float16), reason="FBGEMM is not here")


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


@needs_float16
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", ROWS)
@torch.no_grad()
def test_held_in_float16_a_layer_computes_in_float32_with_the_weights_rounded(bias, rows):
    layer, x_NI = Linear(NUM_INPUTS, NUM_OUTPUTS, bias=bias), torch.randn(*rows, NUM_INPUTS)
    rounded_OI = layer.weight.half().float()
    hold_in_float16(layer)
    assert layer.packed is not None
    assert torch.equal(layer.weight, rounded_OI)
    torch.testing.assert_close(layer(x_NI), F.linear(x_NI, rounded_OI, layer.bias), atol=1e-5, rtol=1e-5)


@needs_float16
@torch.no_grad()
def test_queries_too_small_to_be_packed_have_the_same_weights_joined_with_keys_and_values():
    query, key_value = Linear(NUM_INPUTS, NUM_OUTPUTS // 2), Linear(NUM_INPUTS, NUM_OUTPUTS)
    rounded_OI = query.weight.half().float()
    hold_in_float16(nn.ModuleList([query, key_value]))
    x_NI = torch.randn(3, NUM_INPUTS)
    joined = query.joined(key_value)
    assert joined is not None
    assert torch.equal(query.weight, rounded_OI)
    torch.testing.assert_close(joined(x_NI), torch.cat([query(x_NI), key_value(x_NI)], dim=-1), atol=1e-5, rtol=1e-5)


@needs_float16
@pytest.mark.parametrize("num_outputs", [NUM_OUTPUTS // 2, NUM_OUTPUTS])
def test_a_weight_beyond_float16_is_named(num_outputs):
    layer = nn.ModuleDict({"up": Linear(NUM_INPUTS, num_outputs)})
    with torch.no_grad():
        layer["up"].weight[3, 4] = -7e4
    with pytest.raises(OverflowError, match=r"up\.weight holds 7e\+04, which is beyond float16"):
        hold_in_float16(layer)


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
    with packed_weights(layer, torch.float32):
        packed_NO = layer(x_NI)
        with packed_weights(layer, torch.float32):
            pass
        assert layer.packed is not None
        assert torch.equal(layer(x_NI), packed_NO)
    assert layer.packed is None


def test_packing_adds_nothing_to_what_is_saved_and_keeps_a_weight_that_is_shared():
    table, layer = nn.Embedding(8, 4), Linear(4, 8, bias=False)
    layer.weight = table.weight
    with packed_weights(layer, torch.bfloat16):
        assert list(layer.state_dict()) == ["weight"]
    assert layer.weight is table.weight
    layer(torch.randn(2, 4)).sum().backward()
    assert table.weight.grad is not None
