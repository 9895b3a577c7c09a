"""Where token order enters the model.

A scheme overrides the one hook it needs: `embed` adds to the embeddings,
`rotate` turns queries and keys, `bias` adds to the attention scores. All know
the position of the first token, so that cached decoding asks for the same
numbers as a full pass.

To add a scheme, write its class here (one with a bias: in relative.py) and give
it a name in the schema and an arm in `build_parts.py`. Nothing else knows the
names.

Shapes: B batch, T (query) length, S key length, D model width, H heads, K head width.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headloom.nn.rope_scaling import RopeScaling, Unscaled


class Positional(nn.Module):
    """No positions at all: the base class, and the scheme `none`."""

    max_length: int | None = None
    """Longest sequence the scheme can place, in tokens; None: any."""
    turns = False
    """Whether `rotate` turns anything."""
    adds_bias = False
    """Whether `bias` has something to add."""
    learns_bias = False
    """Whether the bias has a gradient."""

    def embed(self, x_BTD: Tensor, *, first: int = 0) -> Tensor:
        """`x` with positions `first`, `first` + 1, ... added."""
        return x_BTD

    def rotate(self, x_BHTK: Tensor, *, first: int = 0) -> Tensor:
        """Queries or keys turned by their positions."""
        return x_BHTK

    def bias(self, num_queries: int, num_keys: int, *, like: Tensor) -> Tensor:
        """bias_1HTS on the scores of the last `num_queries` of `num_keys` positions; only where `adds_bias`.

        On the device of `like`, and in its precision where that is above float32, which it has otherwise.
        """
        raise NotImplementedError


class Sinusoidal(Positional):
    """Fixed sine and cosine embeddings (Vaswani et al. 2017, section 3.5), times `scale`.

    Sine in the even channels, cosine in the odd ones. The table grows when a
    longer sequence comes: the scheme has no longest length.
    """

    table_TD: Tensor

    def __init__(self, d_model: int, *, base: float = 10_000.0, scale: float = 1.0) -> None:
        super().__init__()
        self.d_model = d_model
        self.base = base
        self.scale = scale
        self.register_buffer("table_TD", torch.empty(0, d_model), persistent=False)

    def embed(self, x_BTD: Tensor, *, first: int = 0) -> Tensor:
        stop = first + x_BTD.size(-2)
        dtype = torch.promote_types(x_BTD.dtype, torch.float32)
        if stop > self.table_TD.size(0) or self.table_TD.dtype is not dtype:
            angle_TP = Unscaled().angles(_rounded_up(stop), self.d_model, self.base)
            table_TD = torch.stack([angle_TP.sin(), angle_TP.cos()], dim=-1).flatten(-2)[:, : self.d_model]
            self.table_TD = (table_TD * self.scale).to(device=x_BTD.device, dtype=dtype)
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

    @torch.no_grad()
    def stretch(self, max_length: int) -> None:
        """Make the trained table one of `max_length` positions, straight between neighbours; its ends stay as they are.

        Position interpolation (Chen et al. 2023, section 2.3) for a table in place of angles.
        """
        table_1DT = F.interpolate(self.weight_TD.T[None], size=max_length, mode="linear", align_corners=True)
        self.weight_TD = nn.Parameter(table_1DT[0].T.contiguous())
        self.max_length = max_length


class Rotary(Positional):
    """Rotary embedding (Su et al. 2021, section 3.2.2).

    Channel k of a head is paired with channel k + K/2 and the pair turned by
    position / base^(2k/K), so that a score depends on positions only through
    their distance. (The paper pairs neighbours; the halves are a fixed
    permutation of that and vectorise.) Angles are float32 at least: bfloat16 rounds
    whole numbers above 256, so that neighbouring positions would share an angle.

    Of the head only the `share` turns, as if it were so wide; the other pairs
    keep the angle 0. `scaling` stretches the positions (rope_scaling.py).

    Raises:
        ValueError: the head width is odd.
    """

    turns = True
    cos_TK: Tensor
    sin_TK: Tensor

    def __init__(self, head_width: int, *, base: float, share: float = 1.0, scaling: RopeScaling | None = None) -> None:
        super().__init__()
        if head_width % 2:
            raise ValueError(f"rotary positions need an even head width, not {head_width}")
        self.head_width = head_width
        self.base = base
        self.turned_width = turned_width(head_width, share)
        self.scaling = Unscaled() if scaling is None else scaling
        self.register_buffer("cos_TK", torch.empty(0, head_width), persistent=False)
        self.register_buffer("sin_TK", torch.empty(0, head_width), persistent=False)

    def rotate(self, x_BHTK: Tensor, *, first: int = 0) -> Tensor:
        stop = first + x_BHTK.size(-2)
        dtype = torch.promote_types(x_BHTK.dtype, torch.float32)
        if stop > self.cos_TK.size(0) or self.cos_TK.dtype is not dtype:
            self._make_tables(_rounded_up(stop), x_BHTK.device, dtype)
        swapped_BHTK = x_BHTK.roll(self.head_width // 2, dims=-1)
        turned_BHTK = x_BHTK * self.cos_TK[first:stop] + swapped_BHTK * self.sin_TK[first:stop]
        return turned_BHTK.to(x_BHTK.dtype)

    def rescale(self, scaling: RopeScaling) -> None:
        """Go on with another scaling."""
        self.scaling = scaling
        self.cos_TK = self.cos_TK[:0]
        self.sin_TK = self.sin_TK[:0]

    def _make_tables(self, length: int, device: torch.device, dtype: torch.dtype) -> None:
        angle_TP = self.scaling.angles(length, self.turned_width, self.base)
        angle_TP = F.pad(angle_TP, (0, (self.head_width - self.turned_width) // 2))
        cos_TP, sin_TP = angle_TP.cos() * self.scaling.magnitude, angle_TP.sin() * self.scaling.magnitude
        self.cos_TK = torch.cat([cos_TP, cos_TP], dim=-1).to(device, dtype)
        self.sin_TK = torch.cat([-sin_TP, sin_TP], dim=-1).to(device, dtype)


def turned_width(head_width: int, share: float) -> int:
    """Channels of a head that turn: the even number nearest to `share` of it, at least one pair."""
    return max(2, 2 * round(share * head_width / 2))


def _rounded_up(length: int) -> int:
    """The next power of two from 256 on, so that a table grows a few times and not at each step."""
    return max(256, 1 << (length - 1).bit_length())
