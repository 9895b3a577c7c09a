"""FlexAttention, slow to load and without a gradient on a CPU; bench/gpu_check.sh compares that on a GPU."""

import pytest
import torch
from torch import Tensor

from headloom.nn import gpu_kernels, kernels

B, H, T, K = 3, 4, 6, 16


def leaves(num_kv_heads: int = H, num_queries: int = T) -> list[Tensor]:
    torch.manual_seed(1)
    shapes = (B, H, num_queries, K), (B, num_kv_heads, T, K), (B, num_kv_heads, T, K)
    return [torch.randn(shape) for shape in shapes]


ALLOWED = {
    "all": None,
    "padding": torch.arange(T) < torch.tensor([T, 2, 0])[:, None],
    "documents": torch.eye(2, dtype=torch.bool).repeat_interleave(3, 0).repeat_interleave(3, 1).expand(B, T, T),
}
WINDOW = {"pattern_TS": torch.ones(T, T, dtype=torch.bool).triu(-2)}
BIAS = {"bias_1HTS": torch.linspace(-2, 2, H * T * T).view(1, H, T, T)}
CAP = {"soft_cap": 0.7}


@pytest.mark.parametrize(
    ("allowed", "options", "causal"),
    [("padding", {}, True), ("documents", WINDOW | BIAS, True), ("all", CAP, False)],
    ids=["padding", "documents, window and bias", "cap"],
)
def test_flex_is_the_path_written_out(allowed, options, causal):
    """The third row sees nothing under padding, and gives zeros (B26). On a CPU it has no gradient to compare."""
    inputs = leaves()
    out = gpu_kernels.flex(*inputs, ALLOWED[allowed], causal=causal, **options)
    right = kernels.exact(*inputs, ALLOWED[allowed], causal=causal, dropout_probability=0.0, **options)[0]
    torch.testing.assert_close(out, right)


def test_flex_knows_shared_heads_and_fewer_queries_than_keys():
    inputs = leaves(num_kv_heads=2, num_queries=3)
    out = gpu_kernels.flex(*inputs, ALLOWED["padding"], causal=True)
    right = kernels.exact(*inputs, ALLOWED["padding"], causal=True, dropout_probability=0.0)[0]
    torch.testing.assert_close(out, right)
