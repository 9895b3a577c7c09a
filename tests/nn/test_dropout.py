import pytest
import torch
from torch.utils.checkpoint import checkpoint

from headloom.nn import dropout as module
from headloom.nn.dropout import Dropout, dropout, dropout_add

LARGE = 300_000  # more elements than one stream yields


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("probability", [0.01, 0.1, 0.5, 0.9])
def test_an_element_is_dropped_with_the_probability_and_kept_ones_are_scaled(dtype, probability):
    """Five standard errors; kept values carry one factor, 1 / (1 - p) with p a multiple of 2^-16."""
    out = dropout(torch.ones(100_000, dtype=dtype), probability)
    assert out.dtype is dtype
    share = (out == 0).double().mean().item()
    assert abs(share - probability) < 5 * (probability * (1 - probability) / 100_000) ** 0.5
    rounded = round(probability * 2**16) / 2**16
    kept = out[out != 0]
    assert torch.equal(kept, torch.full_like(kept, 1 / (1 - rounded)))


def test_neighbours_are_dropped_independently():
    kept = dropout(torch.ones(LARGE), 0.5) != 0
    for lag in (1, 2, 3, 4, 5, 8, 64, 4 * module.STREAM_WORDS):
        both = (kept[lag:] & kept[:-lag]).double().mean().item()
        assert abs(both - 0.25) < 5 * (0.25 * 0.75 / (LARGE - lag)) ** 0.5


@pytest.mark.parametrize("num_values", [0, 1, 3, 4, 5, 1000, LARGE])
def test_the_seed_of_pytorch_repeats_the_mask(num_values):
    """B54: a restored random state restores the masks."""
    x = torch.randn(num_values)
    torch.manual_seed(7)
    first, second = dropout(x, 0.5), dropout(x, 0.5)
    torch.manual_seed(7)
    assert torch.equal(dropout(x, 0.5), first)
    assert torch.equal(dropout(x, 0.5), second)
    if num_values > 100:
        assert not torch.equal(first, second)


def test_the_number_of_threads_changes_no_mask():
    results = []
    num_threads = torch.get_num_threads()
    try:
        for threads in (1, 4):
            torch.set_num_threads(threads)
            module._threads.cache_clear()
            torch.manual_seed(7)
            results.append(dropout(torch.ones(LARGE), 0.3))
    finally:
        torch.set_num_threads(num_threads)
        module._threads.cache_clear()
    assert torch.equal(*results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_goes_through_the_elements_that_were_kept(dtype):
    x = torch.randn(50, 70, dtype=dtype).requires_grad_()
    out = dropout(x, 0.4)
    upstream = torch.randn_like(out)
    (gradient,) = torch.autograd.grad(out, x, upstream)
    scale = (out / x)[out != 0].float().median()
    expected = torch.where(out != 0, upstream.float() * scale, 0.0)
    torch.testing.assert_close(gradient.float(), expected, atol=0.02 if dtype is torch.bfloat16 else 1e-6, rtol=0.01)


@pytest.mark.parametrize("residual_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adding_in_one_pass_is_dropout_and_a_sum(residual_dtype, dtype):
    residual, x = (
        torch.randn(20, 30, dtype=residual_dtype).requires_grad_(),
        torch.randn(20, 30, dtype=dtype).requires_grad_(),
    )
    torch.manual_seed(9)
    fused = dropout_add(residual, x, 0.3)
    torch.manual_seed(9)
    apart = residual + dropout(x, 0.3)
    assert fused.dtype is torch.promote_types(residual_dtype, dtype)
    torch.testing.assert_close(fused, apart.to(fused.dtype), atol=0.02, rtol=0.02)
    upstream = torch.randn_like(fused)
    gradients = [torch.autograd.grad(out, (residual, x), upstream.to(out.dtype)) for out in (fused, apart)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=0.02, rtol=0.02)


def test_in_float32_adding_in_one_pass_differs_by_rounding_only():
    residual, x = torch.randn(20, 30), torch.randn(20, 30)
    torch.manual_seed(9)
    fused = dropout_add(residual, x, 0.3)
    torch.manual_seed(9)
    torch.testing.assert_close(fused, residual + dropout(x, 0.3))


@pytest.mark.parametrize("function", [dropout, lambda x, p: dropout_add(torch.zeros_like(x), x, p)])
def test_no_probability_is_the_identity_and_draws_no_number(function):
    x = torch.randn(10)
    state = torch.get_rng_state()
    assert torch.equal(function(x, 0.0), x)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_module_drops_in_training_only():
    """B28, B33."""
    layer, x = Dropout(0.5), torch.randn(1000)
    assert not torch.equal(layer(x), x)
    layer.eval()
    state = torch.get_rng_state()
    assert torch.equal(layer(x), x)
    assert torch.equal(torch.get_rng_state(), state)
    layer.train()
    assert not torch.equal(layer(x), x)


@pytest.mark.parametrize("needs_input_gradient", [False, True])
def test_recomputed_activations_have_the_same_mask(needs_input_gradient):
    """B34: gradients with activation checkpointing are those without, bit for bit."""
    weight = torch.randn(30, 30, requires_grad=True)
    x = torch.randn(8, 30, requires_grad=needs_input_gradient)
    gradients = []
    for recompute in (False, True):
        torch.manual_seed(11)

        def layer(x, weight):
            return dropout_add(x, dropout(x @ weight, 0.3), 0.3).sin()

        out = checkpoint(layer, x, weight, use_reentrant=False) if recompute else layer(x, weight)
        gradients.append(torch.autograd.grad(out.sum() + dropout(out, 0.2).sum(), weight)[0])
    assert torch.equal(*gradients)


def test_strides_of_the_input_do_not_matter():
    x = torch.randn(40, 50)
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(3)
        across = dropout(x.to(dtype).T, 0.5)
        torch.manual_seed(3)
        assert torch.equal(across, dropout(x.to(dtype).T.contiguous(), 0.5))


def test_an_input_is_never_changed():
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(100, dtype=dtype)
        before = x.clone()
        dropout(x, 0.5)
        dropout_add(x, x, 0.5)
        assert torch.equal(x, before)
