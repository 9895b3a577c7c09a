"""Linear layers on a CPU, against PyTorch's."""

import pytest
import torch
from torch.nn import functional as F

from headloom.nn import products
from headloom.nn.filled_rows import filled
from headloom.nn.linear import Linear, linear
from headloom.nn.products import SMALLEST_FLOAT32, product

SHAPES = [(3, 7, 5), (37, 5), (1, 1, 5), (2, 3, 4, 5), (0, 5)]


def test_at_most_32_numbers_of_rows_occur_between_two_powers_of_two():
    assert len({filled(n) for n in range(1025, 2049)}) == 32
    assert all(n <= filled(n) <= n * 33 / 32 for n in range(1, 5000))


@pytest.mark.parametrize("num_rows", [0, 1, 31, 63, 64, 96, 128, 32 * 41])
def test_multiples_of_32_up_to_2048_and_few_rows_stay_as_they_are(num_rows):
    assert filled(num_rows) == num_rows


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bias", [True, False])
def test_output_and_gradients_are_those_of_pytorch(shape, bias):
    layer = Linear(5, 6, bias=bias)
    x, upstream = torch.randn(shape, requires_grad=True), torch.randn(*shape[:-1], 6).bfloat16()
    inputs = [x, *layer.parameters()]
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = layer(x), F.linear(x, layer.weight, layer.bias)

    torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)
    for one, other in zip(
        torch.autograd.grad(ours, inputs, upstream), torch.autograd.grad(theirs, inputs, upstream), strict=True
    ):
        assert one.dtype is torch.float32
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


def test_rows_of_a_transposed_input_are_read_in_their_order():
    weight = torch.randn(4, 3)
    x = torch.randn(3, 70).T.requires_grad_()
    upstream = torch.randn(4, 70).bfloat16().T
    with torch.autocast("cpu", torch.bfloat16):
        found = linear(x, weight)

    torch.testing.assert_close(found, linear(x.detach().bfloat16().contiguous(), weight.bfloat16()))
    (gradient,) = torch.autograd.grad(found, x, upstream)
    torch.testing.assert_close(gradient, upstream.float() @ weight, rtol=2e-2, atol=2e-2)


def test_a_row_does_not_depend_on_how_many_there_are():
    layer = Linear(16, 8).bfloat16()
    x = torch.randn(70, 16).bfloat16()
    assert torch.equal(layer(x)[:33], layer(x[:33]))


def test_a_frozen_weight_gets_no_gradient():
    layer = Linear(5, 6).requires_grad_(False)
    x = torch.randn(33, 5, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        layer(x).sum().backward()
    assert x.grad is not None
    assert layer.weight.grad is None


def test_a_small_layer_in_float32_is_pytorchs_own_product_to_the_last_bit():
    layer, x = Linear(5, 6), torch.randn(33, 5)
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_avx_512_products_are_pytorchs_to_the_last_bit(monkeypatch, dtype):
    """oneDNN has no bfloat16 there, and is slower than MKL in float32."""
    monkeypatch.setattr(products, "FLOAT32_IS_ONEDNNS", False)
    monkeypatch.setattr(products, "BFLOAT16_IS_ONEDNNS", False)
    layer, x = Linear(64, SMALLEST_FLOAT32 // 64), torch.randn(33, 64)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
        assert layer(x).dtype is dtype
        assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))


@pytest.mark.parametrize("shape", [(3, 7, 64), (65, 64), (1, 64), (0, 64)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_large_layer_in_float32_has_output_and_gradients_of_pytorchs(shape, bias):
    layer = Linear(64, SMALLEST_FLOAT32 // 64, bias=bias)
    x, upstream = torch.randn(shape, requires_grad=True), torch.randn(*shape[:-1], layer.out_features)
    inputs = [x, *layer.parameters()]
    ours, theirs = layer(x), F.linear(x, layer.weight, layer.bias)

    torch.testing.assert_close(ours, theirs)
    for one, other in zip(
        torch.autograd.grad(ours, inputs, upstream), torch.autograd.grad(theirs, inputs, upstream), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_product_reads_transposed_and_strided_factors_as_they_are(dtype):
    a, b = torch.randn(70, 6, dtype=dtype).T[:, ::2], torch.randn(8, 35, dtype=dtype).T
    torch.testing.assert_close(product(a, b), a @ b)
    torch.testing.assert_close(product(a, b[:, ::3]), a @ b[:, ::3])
