"""Both paths of the attention product equal the NumPy reference in float64, outputs and gradients.

Shapes: B batch, T query length, S key length, H query heads, G key/value heads, K head width.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headloom.nn import kernels
from headloom.reference import parts


def exact(*arguments: Any, **options: Any) -> Tensor:
    return kernels.exact(*arguments, **options)[0]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("path", [exact, kernels.fused, kernels.attend], ids=["exact", "fused", "attend"])
def test_an_attention_product_is_the_references(path, seed):
    """Causal or not, with padding or shared rows or a score bias, with rows that may attend to nothing."""
    rng = np.random.default_rng(seed)
    B, G, K = rng.integers(1, 4), rng.integers(1, 3), rng.integers(1, 5)
    H, T = G * rng.integers(1, 4), rng.integers(1, 6)
    S = T + rng.integers(0, 3)
    arrays = rng.normal(size=(B, H, T, K)), rng.normal(size=(B, G, S, K)), rng.normal(size=(B, G, S, K))
    is_causal = bool(rng.integers(2))
    allowed = (None, rng.random((B, S)) < 0.7, rng.random((B, T, S)) < 0.7)[seed % 3]
    bias_HTS = rng.normal(size=(H, T, S)) if rng.random() < 0.5 else None

    allowed_B1TS = np.tri(T, S, k=S - T if is_causal else S, dtype=bool)[None, None]
    if allowed is not None:
        allowed_B1TS = allowed_B1TS & (allowed[:, None, None] if allowed.ndim == 2 else allowed[:, None])
    expected_BHTK, _, backward = parts.attention(*arrays, allowed_B1TS, bias_HTS)
    dout_BHTK = rng.normal(size=expected_BHTK.shape)

    leaves = [torch.from_numpy(array).requires_grad_() for array in arrays]
    out_BHTK = path(
        *leaves,
        None if allowed is None else torch.from_numpy(allowed),
        causal=is_causal,
        dropout_probability=0.0,
        bias_1HTS=None if bias_HTS is None else torch.from_numpy(bias_HTS)[None],
    )
    out_BHTK.backward(torch.from_numpy(dout_BHTK))
    np.testing.assert_allclose(out_BHTK.detach().numpy(), expected_BHTK, rtol=1e-10, atol=1e-10)
    for leaf, gradient in zip(leaves, backward(dout_BHTK), strict=True):
        np.testing.assert_allclose(leaf.grad.numpy(), gradient, rtol=1e-10, atol=1e-10)
