"""The two attention paths against PyTorch and against each other.

Shapes: B batch, T queries, S keys, H query heads, G key/value heads, K head width.
"""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from headloom.nn import kernels

B, H, K = 2, 4, 8


def exact(*arguments, **options) -> Tensor:
    return kernels.exact(*arguments, **options)[0]


KERNELS = {"exact": exact, "fused": kernels.fused, "attend": kernels.attend}
parametrize_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)


def inputs(num_queries: int, num_keys: int, num_kv_heads: int = H, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(1)
    shapes = (B, H, num_queries, K), (B, num_kv_heads, num_keys, K), (B, num_kv_heads, num_keys, K)
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]


def by_hand(q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, allowed_BTS: Tensor) -> Tensor:
    """Softmax over what is allowed, query by query."""
    out_BHTK = torch.empty_like(q_BHTK)
    group = H // k_BGSK.size(1)
    for b in range(B):
        for h in range(H):
            for t in range(q_BHTK.size(2)):
                keys, values = k_BGSK[b, h // group, allowed_BTS[b, t]], v_BGSK[b, h // group, allowed_BTS[b, t]]
                out_BHTK[b, h, t] = torch.softmax(keys @ q_BHTK[b, h, t] / K**0.5, dim=0) @ values
    return out_BHTK


@parametrize_kernel
@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    ("causal", "num_queries", "num_keys"), [(False, 3, 5), (True, 5, 5), (True, 2, 5), (True, 1, 5)]
)
def test_attention_is_a_softmax_over_the_allowed_keys(kernel, num_kv_heads, padded, causal, num_queries, num_keys):
    """With fewer queries than keys the last query stands at the last key (B30)."""
    q, k, v = inputs(num_queries, num_keys, num_kv_heads)
    allowed_BS = torch.tensor([[True] * 5, [True] * 2 + [False] * 3]) if padded else None
    seen_BTS = torch.ones(B, num_queries, num_keys, dtype=torch.bool)
    if padded:
        seen_BTS &= allowed_BS[:, None]
    if causal:
        seen_BTS &= torch.arange(num_keys) <= torch.arange(num_keys)[num_keys - num_queries :, None]
    out = kernel(q, k, v, allowed_BS, causal=causal, dropout_probability=0.0)
    torch.testing.assert_close(out, by_hand(q.detach(), k.detach(), v.detach(), seen_BTS))


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_both_paths_have_the_same_gradients(num_kv_heads, padded, causal):
    allowed_BS = torch.tensor([[True] * 5, [True] * 2 + [False] * 3]) if padded else None
    gradients = []
    for kernel in (exact, kernels.fused):
        leaves = inputs(5, 5, num_kv_heads)
        out = kernel(*leaves, allowed_BS, causal=causal, dropout_probability=0.0)
        gradients.append(torch.autograd.grad(out.sin().sum(), leaves))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@parametrize_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dropout_probability", [0.0, 0.3])
def test_a_row_that_may_attend_to_nothing_gives_zeros(kernel, dtype, causal, dropout_probability):
    """B26: with padding on the left the first queries see nothing under a causal mask; nothing becomes NaN."""
    leaves = inputs(5, 5, dtype=dtype)
    allowed_BS = torch.tensor([[False] * 5, [False] * 2 + [True] * 3])
    out_BHTK = kernel(*leaves, allowed_BS, causal=causal, dropout_probability=dropout_probability)
    assert out_BHTK[0].abs().max() == 0
    assert out_BHTK[1].isfinite().all()
    if causal:
        assert out_BHTK[1, :, :2].abs().max() == 0
    for gradient in torch.autograd.grad(out_BHTK.float().square().sum(), leaves):
        assert gradient.isfinite().all()
        assert gradient[0].abs().max() == 0


@parametrize_kernel
def test_a_row_that_sees_nothing_changes_no_other_row(kernel):
    """B26."""
    q, k, v = (x.detach() for x in inputs(3, 5))
    allowed_BS = torch.tensor([[False] * 5, [True] * 3 + [False] * 2])
    both = kernel(q, k, v, allowed_BS, causal=False, dropout_probability=0.0)
    alone = kernel(q[1:], k[1:], v[1:], allowed_BS[1:], causal=False, dropout_probability=0.0)
    torch.testing.assert_close(both[1:], alone)


@parametrize_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_stands_in_a_masked_key_does_not_matter(kernel, dtype):
    """B27, B31: not even when its score is far above all others."""
    q, k, v = (x.detach() for x in inputs(3, 5, dtype=dtype))
    allowed_BS = torch.tensor([[True] * 3 + [False] * 2] * 2)
    plain = kernel(q, k, v, allowed_BS, causal=False, dropout_probability=0.0)
    k[:, :, 3:], v[:, :, 3:] = 1e4, 1e4
    torch.testing.assert_close(kernel(q, k, v, allowed_BS, causal=False, dropout_probability=0.0), plain)


@parametrize_kernel
def test_large_scores_are_no_overflow(kernel):
    q, k, v = inputs(3, 3)
    out = kernel(q * 1e4, k * 1e4, v, None, causal=True, dropout_probability=0.0)
    assert out.isfinite().all()


def test_the_weights_shown_are_those_that_made_the_output():
    q, k, v = inputs(4, 6)
    allowed_BS = torch.tensor([[True] * 6, [True] * 2 + [False] * 4])
    out_BHTK, weights_BHTS = kernels.exact(q, k, v, allowed_BS, causal=False, dropout_probability=0.0)
    torch.testing.assert_close(weights_BHTS @ v, out_BHTK)
    torch.testing.assert_close(weights_BHTS.sum(-1), torch.ones(B, H, 4))
    assert weights_BHTS[1, :, :, 2:].abs().max() == 0


@parametrize_kernel
@pytest.mark.parametrize("causal", [False, True])
def test_dropout_falls_on_the_weights_and_keeps_their_expectation(kernel, causal):
    q, k, v = (x.detach()[:1] for x in inputs(5, 5))
    many = 4000
    draws = kernel(*(x.expand(many, -1, -1, -1) for x in (q, k, v)), None, causal=causal, dropout_probability=0.3)
    plain = kernel(q, k, v, None, causal=causal, dropout_probability=0.0)
    assert not torch.equal(draws[0], draws[1])
    standard_error = draws.std(0, keepdim=True) / many**0.5 + 1e-9
    assert ((draws.mean(0, keepdim=True) - plain).abs() / standard_error).max() < 5  # of 160 values


def test_bfloat16_is_close_to_float32():
    leaves = inputs(6, 6)
    allowed_BS = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    wide = kernels.attend(*leaves, allowed_BS, causal=True, dropout_probability=0.0)
    narrow = kernels.attend(*(x.bfloat16() for x in leaves), allowed_BS, causal=True, dropout_probability=0.0)
    assert narrow.dtype is torch.bfloat16
    torch.testing.assert_close(narrow.float(), wide, atol=0.05, rtol=0.05)  # 8 bits of mantissa
    gradients = [torch.autograd.grad(out.float().sin().sum(), leaves) for out in (narrow, wide)]
    for one, other in zip(*gradients, strict=True):
        assert F.cosine_similarity(one.flatten(), other.flatten(), dim=0) > 0.999
