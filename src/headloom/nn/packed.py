"""Weights a second time, in a layout or a type in which a CPU multiplies a few rows fastest.

A search multiplies a few rows by the same weights in every step; without
packing, oneDNN brings the weights into its layout in each of them. In float32
PyTorch would ask MKL, which for few rows takes two to four times as long on
processors that are not Intel's; on Intel's the two are alike but between 2 and
128 rows, where packing is faster.

With float16 the weights alone are of that type, sums and all else float32: few
rows wait for the weights to be read, and these are half as many bytes. FBGEMM,
a part of PyTorch for x86 with AVX2, multiplies them, without AVX-512 faster than
oneDNN multiplies float32 whatever the number of rows.

Shapes: N rows (any leading axes), P rows with those added (filled_rows.py), I inputs, O outputs.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from headloom.nn.filled_rows import filled, with_rows
from headloom.nn.products import BFLOAT16_IS_ONEDNNS, CAN_BE_ASKED, with_bias

SMALLEST_PACKED = 1 << 17
"""Weights below which the cost of a call is more than packing saves; bfloat16 is always packed."""


def can_be_packed(dtype: torch.dtype) -> bool:
    """Whether something here, a CPU, multiplies weights that are packed in `dtype`."""
    if dtype is torch.float16:
        return "fbgemm" in torch.backends.quantized.supported_engines
    return BFLOAT16_IS_ONEDNNS if dtype is torch.bfloat16 else CAN_BE_ASKED


class Packed:
    """A linear layer with its weights in `dtype` (float32, bfloat16, float16), on a CPU.

    There is no gradient, and weights must not change.
    """

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.weight_OI = weight_OI.detach()
        self.bias_O = None if bias_O is None else bias_O.detach()
        self.packed_OI = self.half_OI = None
        is_large = weight_OI.numel() >= SMALLEST_PACKED
        if dtype is torch.float16:
            if is_large:
                self.half_OI = torch.ops.quantized.linear_prepack_fp16(self.weight_OI, self.bias_O)
        elif is_large or dtype is torch.bfloat16:
            self.bias_O = None if self.bias_O is None else self.bias_O.to(dtype)
            self.packed_OI = torch.ops.mkldnn._reorder_linear_weight(self.weight_OI.to(dtype).contiguous())

    def __call__(self, x_NI: Tensor) -> Tensor:
        num_rows = x_NI.numel() // x_NI.size(-1)
        if self.half_OI is not None:
            out_NO: Tensor = torch.ops.quantized.linear_dynamic_fp16(x_NI, self.half_OI)
            return out_NO
        if self.packed_OI is None:
            return F.linear(x_NI, self.weight_OI, self.bias_O)
        num_filled = filled(num_rows)
        x_PI = x_NI.to(self.dtype) if num_filled == num_rows else with_rows(x_NI, num_filled, self.dtype)
        out_PO = with_bias(x_PI, self.packed_OI, self.bias_O)
        return out_PO if num_filled == num_rows else out_PO[:num_rows].view(*x_NI.shape[:-1], -1)
