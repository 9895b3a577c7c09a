"""Linear layers that do not pay for a number of rows they have not seen.

A product on a CPU is oneDNN's (products.py), which compiles a kernel for every
shape: 1 to 3 ms, several times as long as the product itself in a small model,
and the 1,024 kernels it keeps are those of a few dozen batches. Batches of text
have another number of tokens nearly every time. So there rows of zeros are added
up to one of 32 numbers an octave, and batches whose rows and lengths are
multiples already (`trainer.pad_to_multiple`) need none. No result changes.

Shapes: N rows, P rows with those added, I inputs, O outputs.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headloom.nn.filled_rows import filled, with_rows
from headloom.nn.packed import Packed
from headloom.nn.products import is_onednns, product, with_bias


def linear(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """`x weight^T + bias` for every row of `x`, of any shape [..., I]; in autocast's type where autocast is on."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.linear(x, weight_OI, bias_O)
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    if not is_onednns(dtype, weight_OI) or x.numel() == 0:  # no rows: an expert that no token has chosen
        return F.linear(x, weight_OI, bias_O)
    return _FilledLinear.apply(x, weight_OI, bias_O, dtype)  # type: ignore[no-untyped-call]


class Linear(nn.Linear):
    """`linear` as a module, or with packed weights, and then without gradient: see packed.py."""

    packed: Packed | None = None
    _joined: Packed | None = None

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias) if self.packed is None else self.packed(x)

    def pack(self, dtype: torch.dtype) -> None:
        self.packed = Packed(self.weight, self.bias, dtype)

    def unpack(self) -> None:
        self.packed = self._joined = None

    def joined(self, other: "Linear") -> Packed | None:
        """One layer with the outputs of this and of `other` side by side; None unless the weights are packed."""
        if self._joined is None and self.packed is not None:
            bias_O = None if self.bias is None else torch.cat([self.bias.detach(), other.bias.detach()])
            self._joined = Packed(torch.cat([self.weight.detach(), other.weight.detach()]), bias_O, self.packed.dtype)
        return self._joined


class _FilledLinear(torch.autograd.Function):
    """The product in `dtype` with rows of zeros added to both of its gradients' products too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_OI: Tensor, bias_O: Tensor | None, dtype: torch.dtype) -> Tensor:
        num_rows = x.numel() // x.size(-1)
        x_PI = with_rows(x, filled(num_rows), dtype)
        w_OI = weight_OI.to(dtype)
        with torch.autocast("cpu", enabled=False):
            out_PO = with_bias(x_PI, w_OI, None if bias_O is None else bias_O.to(dtype))
        ctx.save_for_backward(x_PI, w_OI)
        ctx.x_shape, ctx.dtypes = x.shape, (x.dtype, weight_OI.dtype)
        return out_PO[:num_rows].view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x_PI, w_OI = ctx.saved_tensors
        x_dtype, weight_dtype = ctx.dtypes
        wants_x, wants_weight, wants_bias, _ = ctx.needs_input_grad
        num_rows = gradients[0].numel() // gradients[0].size(-1)
        d_PO = with_rows(gradients[0], len(x_PI), x_PI.dtype)
        dx = product(d_PO, w_OI)[:num_rows].view(ctx.x_shape).to(x_dtype) if wants_x else None
        dweight_OI = product(d_PO.T, x_PI).to(weight_dtype) if wants_weight else None
        dbias_O = d_PO.sum(0).to(weight_dtype) if wants_bias else None
        return dx, dweight_OI, dbias_O, None
