"""Parts of our models as a graph can hold them: nothing in them looks at a length or at a number.

A traced graph keeps only the way that was taken. So what chooses a way by the
lengths or numbers that come (a table that grows, a mask that is left out where
it hides nothing, an expert that gets its tokens) is replaced by what always
takes the same way, to the same result.

Shapes: B batch, T (query) length, S key length, D model width, H heads, K head width, N any flat count,
        E experts, C experts chosen by a token, R distances.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headloom.nn.attention import MultiHeadAttention, prefer_kernel
from headloom.nn.kernels import Asked, Preference
from headloom.nn.masks import Pattern, distances
from headloom.nn.mixture import MixtureOfExperts
from headloom.nn.positional import Learned, Positional, Rotary, Sinusoidal
from headloom.nn.relative import Alibi, RelativeBuckets, relative_buckets


class AddedTable(Positional):
    """`Sinusoidal` or `Learned` as a table of all their positions."""

    def __init__(self, table_TD: Tensor) -> None:
        super().__init__()
        self.table_TD = nn.Parameter(table_TD, requires_grad=False)

    def embed(self, x_BTD: Tensor, *, first: int = 0) -> Tensor:
        return x_BTD + F.embedding(torch.arange(first, first + x_BTD.size(-2)), self.table_TD)


class TurnedByTable(Positional):
    """`Rotary` with all of its angles."""

    turns = True

    def __init__(self, cos_TK: Tensor, sin_TK: Tensor) -> None:
        super().__init__()
        self.cos_TK = nn.Parameter(cos_TK, requires_grad=False)
        self.sin_TK = nn.Parameter(sin_TK, requires_grad=False)

    def rotate(self, x_BHTK: Tensor, *, first: int = 0) -> Tensor:
        position_T = torch.arange(first, first + x_BHTK.size(-2))
        cos_TK, sin_TK = (F.embedding(position_T, table_TK) for table_TK in (self.cos_TK, self.sin_TK))
        return x_BHTK * cos_TK + x_BHTK.roll(x_BHTK.size(-1) // 2, dims=-1) * sin_TK


class SlopeBias(Positional):
    """`Alibi`, made anew each time."""

    adds_bias = True

    def __init__(self, slopes: list[float]) -> None:
        super().__init__()
        self.slope_H = nn.Parameter(torch.tensor(slopes), requires_grad=False)

    def bias(self, num_queries: int, num_keys: int, *, like: Tensor) -> Tensor:
        return -(self.slope_H[:, None, None] * distances(num_queries, num_keys, like.device).abs())[None]


class TableBias(Positional):
    """`RelativeBuckets` as the biases of all distances that differ: from `max_distance` on they are one."""

    adds_bias = True

    def __init__(self, buckets: RelativeBuckets) -> None:
        super().__init__()
        self.max_distance = buckets.max_distance
        bucket_R = relative_buckets(
            torch.arange(self.max_distance, -self.max_distance - 1, -1),  # of keys from the latest on
            num_buckets=buckets.num_buckets,
            max_distance=buckets.max_distance,
            causal=buckets.causal,
        )
        self.bias_RH = nn.Parameter(buckets.weight_1HN.detach()[0, :, bucket_R].T.contiguous(), requires_grad=False)

    def bias(self, num_queries: int, num_keys: int, *, like: Tensor) -> Tensor:
        distance_TS = distances(num_queries, num_keys, like.device).clamp(-self.max_distance, self.max_distance)
        return F.embedding(distance_TS + self.max_distance, self.bias_RH).permute(2, 0, 1)[None]


class WholeMask:
    """A pattern that leaves no mask out."""

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern

    def allowed(self, num_queries: int, num_keys: int, device: torch.device) -> Tensor:
        return self.pattern.mask(num_queries, num_keys, device)

    mask = allowed

    def first_key(self, num_keys: int) -> int:
        return 0


class EveryExpert(nn.Module):
    """A mixture in evaluation whose experts all compute all tokens; the weight of those not chosen is 0."""

    def __init__(self, mixture: MixtureOfExperts) -> None:
        super().__init__()
        self.router = mixture.router
        self.experts = mixture.experts
        self.num_chosen = mixture.num_chosen

    def forward(self, x: Tensor, *, real_BT: Tensor | None = None) -> Tensor:
        """`real` makes no difference to what is real."""
        x_ND = x.reshape(-1, x.size(-1))
        probability_NE = self.router(x_ND).softmax(-1)
        weight_NC, expert_NC = probability_NE.topk(self.num_chosen, dim=-1)
        if self.num_chosen > 1:
            weight_NC = weight_NC / weight_NC.sum(-1, keepdim=True)
        weight_NE = torch.zeros_like(probability_NE).scatter(-1, expert_NC, weight_NC)
        out_ND = torch.zeros_like(x_ND)
        for number, expert in enumerate(self.experts):
            out_ND = out_ND + weight_NE[:, number, None] * expert(x_ND)
        return out_ND.view_as(x)


def traceable(model: nn.Module, num_positions: int) -> nn.Module:
    """`model` with such parts, and `num_positions` positions where it takes them from a table; weights are shared."""
    shared: dict[int, Any] = {id(parameter): parameter for parameter in model.parameters()}
    copied = copy.deepcopy(model, shared).eval()
    replaced: dict[int, nn.Module] = {}
    for module in list(copied.modules()):
        for name, child in module.named_children():
            if isinstance(child, Positional | MixtureOfExperts):
                if id(child) not in replaced:
                    replaced[id(child)] = _replacement(child, num_positions)
                setattr(module, name, replaced[id(child)])
        if isinstance(module, MultiHeadAttention) and module.pattern is not None:
            module.pattern = WholeMask(module.pattern)
    prefer_kernel(copied, Preference(Asked.eager))
    return copied


def _replacement(part: nn.Module, num_positions: int) -> nn.Module:
    match part:
        case Sinusoidal():
            part.embed(torch.zeros(num_positions, part.d_model))  # makes the table
            return AddedTable(part.table_TD[:num_positions])
        case Learned():
            return AddedTable(part.weight_TD.detach())
        case Rotary():
            part.rotate(torch.zeros(num_positions, part.head_width))
            return TurnedByTable(part.cos_TK[:num_positions], part.sin_TK[:num_positions])
        case Alibi():
            return SlopeBias(part.slopes)
        case RelativeBuckets():
            return TableBias(part)
        case MixtureOfExperts():
            return EveryExpert(part)
        case _:
            return part
