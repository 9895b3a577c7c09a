"""Matrix products on a CPU by oneDNN, which multiplies bfloat16 alone and with AVX-512 float32 faster than MKL.

PyTorch asks MKL for float32. With AVX-512 on processors that are not Intel's that
takes about twice as long, forwards and backwards, and on Intel's the two are alike;
without AVX-512 it is MKL that is faster, by a sixth in a whole update.

Shapes: N rows, I inputs, O outputs.
"""

from collections.abc import Callable

import torch
from torch import Tensor

SMALLEST_FLOAT32 = 1 << 14
"""Weights in float32 below which a call of oneDNN, and kernels compiled for new shapes, cost more than it saves."""

CAN_BE_ASKED = torch.backends.mkldnn.is_available() and hasattr(  # type: ignore[no-untyped-call]
    torch.ops.mkldnn, "_linear_pointwise"
)
"""Whether PyTorch has oneDNN here, with the product that is asked for below."""

BFLOAT16_IS_ONEDNNS = CAN_BE_ASKED and torch.ops.mkldnn._is_mkldnn_bf16_supported()
"""Whether oneDNN multiplies bfloat16 here: not without AVX-512, where PyTorch's own, slow product has to do."""

FLOAT32_IS_ONEDNNS = CAN_BE_ASKED and torch.backends.cpu.get_cpu_capability() == "AVX512"
"""Whether float32 is multiplied faster by oneDNN than by what PyTorch asks."""


def is_onednns(dtype: torch.dtype, weight: Tensor) -> bool:
    """Whether products with `weight`, both factors in `dtype`, are to be oneDNN's: on a CPU alone."""
    if weight.device.type != "cpu":
        return False
    if dtype is torch.float32:
        return FLOAT32_IS_ONEDNNS and weight.numel() >= SMALLEST_FLOAT32
    return dtype is torch.bfloat16 and BFLOAT16_IS_ONEDNNS


def with_bias(x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """`x weight^T + bias` by oneDNN, all of one type and `x` of one row or more.

    It adds the bias while it writes the product, where PyTorch's `linear` has it pass over the output beforehand.
    """
    if not CAN_BE_ASKED:
        return torch.nn.functional.linear(x_NI, weight_OI, bias_O)
    out_NO: Tensor = torch.ops.mkldnn._linear_pointwise.default(x_NI, weight_OI, bias_O, "none", [], "")
    return out_NO


def product(a_NI: Tensor, b_IO: Tensor) -> Tensor:
    """`a b` for factors of one type that are oneDNN's (`is_onednns`), of which float32 has to be asked for."""
    if a_NI.dtype is torch.float32:
        return with_bias(a_NI, b_IO.T, None)
    return a_NI @ b_IO


def product_for(dtype: torch.dtype, weight: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """What multiplies in `dtype` where a factor is as large as `weight`, on its device."""
    return product if is_onednns(dtype, weight) else torch.matmul
