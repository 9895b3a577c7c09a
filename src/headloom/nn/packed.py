"""Weights a second time, in the layout that a CPU multiplies fastest.

A search multiplies a few rows by the same weights in every step; without
packing, oneDNN brings the weights into its layout in each of them. In float32
PyTorch would ask MKL, which on processors that are not Intel's takes two to
four times as long, whatever the number of rows; on Intel's the two are alike
but between 2 and 128 rows, where packing is faster.

Shapes: N rows (any leading axes), P rows with those added (filled_rows.py), I inputs, O outputs.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from headloom.nn.filled_rows import filled, with_rows
from headloom.nn.products import with_bias

SMALLEST_PACKED = 1 << 17
"""Weights in float32 below which oneDNN's cost of a call is more than its layout saves."""


class Packed:
    """A linear layer in `dtype`, float32 or bfloat16, on a CPU. There is no gradient, and weights must not change."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.weight_OI = weight_OI.detach()
        self.bias_O = None if bias_O is None else bias_O.detach().to(dtype)
        self.packed_OI = None
        if dtype is torch.bfloat16 or weight_OI.numel() >= SMALLEST_PACKED:
            self.packed_OI = torch.ops.mkldnn._reorder_linear_weight(self.weight_OI.to(dtype).contiguous())

    def __call__(self, x_NI: Tensor) -> Tensor:
        num_rows = x_NI.numel() // x_NI.size(-1)
        if self.packed_OI is None:
            return F.linear(x_NI, self.weight_OI, self.bias_O)
        num_filled = filled(num_rows)
        x_PI = x_NI.to(self.dtype) if num_filled == num_rows else with_rows(x_NI, num_filled, self.dtype)
        out_PO = with_bias(x_PI, self.packed_OI, self.bias_O)
        return out_PO if num_filled == num_rows else out_PO[:num_rows].view(*x_NI.shape[:-1], -1)
