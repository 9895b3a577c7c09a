"""Normalisation of the residual stream, computed in float32 (float64 of a float64) whatever the precision of the step.

Shapes: B batch, T length, D model width.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LayerNorm(nn.LayerNorm):
    """Layer normalisation (Ba et al. 2016, section 3) with gain and bias."""

    def __init__(self, d_model: int, *, epsilon: float) -> None:
        super().__init__(d_model, eps=epsilon)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD.to(torch.promote_types(x_BTD.dtype, torch.float32))
        return F.layer_norm(x_BTD, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """Root-mean-square normalisation (Zhang and Sennrich 2019, section 4) with gain and no bias.

    Written out since PyTorch's own is several times slower than its layer
    normalisation on a CPU; `addcmul`-free so that both passes vectorise.
    """

    def __init__(self, d_model: int, *, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.epsilon = epsilon

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD.to(torch.promote_types(x_BTD.dtype, torch.float32))
        mean_square_BT1 = torch.linalg.vector_norm(x_BTD, dim=-1, keepdim=True).square() / x_BTD.size(-1)
        return x_BTD * torch.rsqrt(mean_square_BT1 + self.epsilon) * self.weight
