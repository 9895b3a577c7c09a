"""Numbers of rows for which oneDNN compiles a kernel: few of them, see linear.py."""

import torch
from torch import Tensor


def filled(num_rows: int) -> int:
    """The next number of rows for which a kernel is compiled: of six binary digits, and zeros."""
    step = 1 << max(0, num_rows.bit_length() - 6)
    return -(-num_rows // step) * step


def with_rows(x: Tensor, num_rows: int, dtype: torch.dtype) -> Tensor:
    """The rows of `x`, of any shape [..., I], in `dtype`, with rows of zeros below them: x_PI, P being `num_rows`."""
    num_real = x.numel() // x.size(-1)
    if num_real == num_rows:
        return x.reshape(num_rows, -1).to(dtype)
    x_PI = torch.empty(num_rows, x.size(-1), dtype=dtype, device=x.device)
    x_PI[:num_real].view(x.shape).copy_(x)  # once, also where `x` is not contiguous
    x_PI[num_real:] = 0
    return x_PI
