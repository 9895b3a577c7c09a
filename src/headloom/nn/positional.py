"""Where token order enters the model.

A scheme overrides the one hook it needs: `embed` adds to the embeddings,
`rotate` turns queries and keys. Both take the position of the first token, so
that cached decoding asks for the same numbers as a full pass.

To add a scheme, write its class here and give it a name in the schema and an
arm in `build.py`. Nothing else knows the names.

Shapes: B batch, T length, D model width, H heads, K head width.
"""

import math

import torch
from torch import Tensor, nn


class Positional(nn.Module):
    """No positions at all: the base class, and the scheme `none`."""

    max_length: int | None = None
    """Longest sequence the scheme can place, in tokens; None: any."""

    def embed(self, x_BTD: Tensor, *, first: int = 0) -> Tensor:
        """`x` with positions `first`, `first` + 1, ... added."""
        return x_BTD

    def rotate(self, x_BHTK: Tensor, *, first: int = 0) -> Tensor:
        """Queries or keys turned by their positions."""
        return x_BHTK


class Sinusoidal(Positional):
    """Fixed sine and cosine embeddings (Vaswani et al. 2017, section 3.5).

    Sine in the even channels, cosine in the odd ones. The table grows when a
    longer sequence comes: the scheme has no longest length.
    """

    table_TD: Tensor

    def __init__(self, d_model: int, *, base: float = 10_000.0) -> None:
        super().__init__()
        self.d_model = d_model
        self.base = base
        self.register_buffer("table_TD", torch.empty(0, d_model), persistent=False)

    def embed(self, x_BTD: Tensor, *, first: int = 0) -> Tensor:
        stop = first + x_BTD.size(-2)
        dtype = torch.promote_types(x_BTD.dtype, torch.float32)
        if stop > self.table_TD.size(0) or self.table_TD.dtype is not dtype:
            angle_TK = _angles(_rounded_up(stop), self.d_model, self.base)
            table_TD = torch.stack([angle_TK.sin(), angle_TK.cos()], dim=-1).flatten(-2)[:, : self.d_model]
            self.table_TD = table_TD.to(device=x_BTD.device, dtype=dtype)
        return x_BTD + self.table_TD[first:stop]


class Learned(Positional):
    """One trained vector a position (Gehring et al. 2017, section 3.1)."""

    def __init__(self, d_model: int, *, max_length: int) -> None:
        super().__init__()
        self.max_length = max_length
        self.weight_TD = nn.Parameter(torch.empty(max_length, d_model).normal_(std=d_model**-0.5))

    def embed(self, x_BTD: Tensor, *, first: int = 0) -> Tensor:
        stop = first + x_BTD.size(-2)
        if stop > self.weight_TD.size(0):
            raise ValueError(f"sequence of {stop} tokens is longer than position.max_length={self.weight_TD.size(0)}")
        return x_BTD + self.weight_TD[first:stop]


class Rotary(Positional):
    """Rotary embedding (Su et al. 2021, section 3.2.2).

    Channel k of a head is paired with channel k + K/2 and the pair turned by
    position / base^(2k/K), so that a score depends on positions only through
    their distance. (The paper pairs neighbours; the halves are a fixed
    permutation of that and vectorise.) Angles are float32 at least: bfloat16 rounds
    whole numbers above 256, so that neighbouring positions would share an angle.

    Raises:
        ValueError: the head width is odd.
    """

    cos_TK: Tensor
    sin_TK: Tensor

    def __init__(self, head_width: int, *, base: float) -> None:
        super().__init__()
        if head_width % 2:
            raise ValueError(f"rotary positions need an even head width, not {head_width}")
        self.head_width = head_width
        self.base = base
        self.register_buffer("cos_TK", torch.empty(0, head_width), persistent=False)
        self.register_buffer("sin_TK", torch.empty(0, head_width), persistent=False)

    def rotate(self, x_BHTK: Tensor, *, first: int = 0) -> Tensor:
        stop = first + x_BHTK.size(-2)
        dtype = torch.promote_types(x_BHTK.dtype, torch.float32)
        if stop > self.cos_TK.size(0) or self.cos_TK.dtype is not dtype:
            angle_TK = _angles(_rounded_up(stop), self.head_width, self.base)
            self.cos_TK = torch.cat([angle_TK.cos(), angle_TK.cos()], dim=-1).to(x_BHTK.device, dtype)
            self.sin_TK = torch.cat([-angle_TK.sin(), angle_TK.sin()], dim=-1).to(x_BHTK.device, dtype)
        swapped_BHTK = x_BHTK.roll(self.head_width // 2, dims=-1)
        turned_BHTK = x_BHTK * self.cos_TK[first:stop] + swapped_BHTK * self.sin_TK[first:stop]
        return turned_BHTK.to(x_BHTK.dtype)


def _angles(length: int, width: int, base: float) -> Tensor:
    """angle[t, i] = t / base^(2i / width), for t < length and i < width / 2 (rounded up), in float64."""
    rate_K = torch.exp(-math.log(base) * torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.arange(length, dtype=torch.float64)[:, None] * rate_K[None, :]


def _rounded_up(length: int) -> int:
    """The next power of two from 256 on, so that a table grows a few times and not at each step."""
    return max(256, 1 << (length - 1).bit_length())
