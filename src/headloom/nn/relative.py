"""Positions as a bias on attention scores: a number for each head and distance.

Beside the other schemes (positional.py) so that none pays for it; a scheme here
overrides `bias`. The last query stands at the last key, so a cached step asks
for the same numbers as a full pass.

Shapes: T query length, S key length, H heads, N buckets, R distances.
"""

import math

import torch
from torch import Tensor, nn

from headloom.nn.positional import Positional


class Alibi(Positional):
    """A penalty that grows with the distance, at a fixed slope a head: Press et al. (2022), section 3.

    The paper has causal attention only. Where a query sees both sides, the
    penalty is that of the absolute distance: symmetric, so that heads tell how
    far a key is and not on which side, as the authors suggest for encoders.
    """

    adds_bias = True

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.slopes = alibi_slopes(num_heads)
        self._made: Tensor | None = None

    def bias(self, num_queries: int, num_keys: int, *, like: Tensor) -> Tensor:
        made, dtype = self._made, torch.promote_types(like.dtype, torch.float32)
        # Every layer of a stack asks for the same numbers in turn.
        if (
            made is None
            or made.shape[-2:] != (num_queries, num_keys)
            or made.device != like.device
            or made.dtype is not dtype
        ):
            slope_H11 = torch.tensor(self.slopes, device=like.device, dtype=dtype)[:, None, None]
            key_S = torch.arange(num_keys, device=like.device)
            distance_TS = (key_S[num_keys - num_queries :, None] - key_S).abs()
            made = self._made = -(slope_H11 * distance_TS)[None]
        return made


def alibi_slopes(num_heads: int) -> list[float]:
    """2^(-8/n), 2^(-16/n), ..., 2^-8 for n heads: Press et al. (2022), section 3.

    For a number that is no power of two, those of the largest power of two
    below, then every second one of twice that power, as the authors' code does:
    the slopes then stay between those of a trained number of heads.
    """
    whole = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (h + 1) / whole) for h in range(whole)]
    between = [2.0 ** (-8 * (h + 1) / (2 * whole)) for h in range(0, 2 * whole, 2)]
    return slopes + between[: num_heads - whole]


class RelativeBuckets(Positional):
    """A learnt number for each head and bucket of distances: Raffel et al. (2020), section 2.1.

    Near distances have a bucket each, farther ones share buckets whose width
    grows with the logarithm, and from `max_distance` on all share the last.
    `causal`: only distances back exist; else half of the buckets is for later
    keys. One object serves all layers of a stack, which so share the table. It
    starts at zero: the model then starts as one without positions.
    """

    adds_bias = True
    learns_bias = True
    bucket_R: Tensor

    def __init__(self, num_heads: int, *, num_buckets: int, max_distance: int, causal: bool) -> None:
        super().__init__()
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.causal = causal
        # Three axes: no map between hidden spaces, so not a matrix to optimizers that tell by the shape.
        self.weight_1HN = nn.Parameter(torch.zeros(1, num_heads, num_buckets))
        self.register_buffer("bucket_R", torch.empty(0, dtype=torch.int64), persistent=False)
        self._lengths = (0, 0)

    def bias(self, num_queries: int, num_keys: int, *, like: Tensor) -> Tensor:
        if self._lengths != (num_queries, num_keys) or self.bucket_R.device != self.weight_1HN.device:
            # A key lies from num_keys - 1 before to num_queries - 1 after a query.
            offset_R = torch.arange(1 - num_keys, num_queries)
            buckets = relative_buckets(
                offset_R, num_buckets=self.num_buckets, max_distance=self.max_distance, causal=self.causal
            )
            self.bucket_R = buckets.to(self.weight_1HN.device)
            self._lengths = (num_queries, num_keys)
        line_1HR = self.weight_1HN.index_select(-1, self.bucket_R)
        # Query t reads the line from num_queries - 1 - t on.
        return line_1HR.unfold(-1, num_keys, 1).flip(-2)


def relative_buckets(offset: Tensor, *, num_buckets: int, max_distance: int, causal: bool) -> Tensor:
    """The bucket of each offset (position of the key minus position of the query).

    Raffel et al. (2020), section 2.1, in the form of their code: of n buckets the
    first n/2 are one distance each, distance d >= n/2 has the bucket
    n/2 + floor(log(d / (n/2)) / log(max_distance / (n/2)) * n/2), at most n - 1.
    Without `causal`, n is half of `num_buckets`, and later keys have the other half.
    """
    if causal:
        first, num_each, distance = torch.zeros_like(offset), num_buckets, (-offset).clamp(min=0)
    else:
        num_each = num_buckets // 2
        first, distance = (offset > 0) * num_each, offset.abs()
    num_near = num_each // 2
    far = (distance.clamp(min=1).double() / num_near).log() / math.log(max_distance / num_near)
    # The nudge keeps a distance at the very edge of a bucket from falling below it by rounding.
    far_bucket = (num_near + far * (num_each - num_near) + 1e-9).long().clamp(max=num_each - 1)
    return first + torch.where(distance < num_near, distance, far_bucket)
