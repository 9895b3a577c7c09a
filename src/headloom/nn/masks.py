"""Who may attend to whom. Every mask has one sense: True where a query may attend.

A pattern says which keys a query reaches by their distance; padding and
causality come on top. To add one, write its class here with the three methods of
`Pattern`, and give it a name in the schema and an arm in `build_parts.py`.

Shapes: B batch, T query length, S key length.
"""

from typing import Protocol

import torch
from torch import Tensor


def causal(num_queries: int, num_keys: int, device: torch.device | None = None) -> Tensor:
    """allowed_TS where the last query stands at the last key and none sees beyond its own position.

    With as many queries as keys it is the lower triangle; with a cache of
    earlier keys the queries are the last ones.
    """
    return torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).tril(num_keys - num_queries)


def combine(allowed: Tensor | None, *positions_TS: Tensor | None) -> Tensor | None:
    """allowed_B1TS (or with axes of size 1): what the padding mask and every mask of positions allow; None: all.

    `allowed` is allowed_BS (True where a key is real) or allowed_BTS (True where a query may attend to a key).
    """
    combined = None
    if allowed is not None:
        combined = allowed[:, None, None, :] if allowed.dim() == 2 else allowed[:, None]
    for allowed_TS in positions_TS:
        if allowed_TS is not None:
            combined = allowed_TS[None, None] if combined is None else combined & allowed_TS
    return combined


class Pattern(Protocol):
    """Which keys of its own sequence a query reaches."""

    def allowed(self, num_queries: int, num_keys: int, device: torch.device) -> Tensor | None:
        """allowed_TS of the last `num_queries` positions; None where all are reached. Causality comes on top."""
        ...

    def mask(self, num_queries: int, num_keys: int, device: torch.device) -> Tensor:
        """`allowed`, also where all are reached: for a graph that must not depend on lengths."""
        ...

    def first_key(self, num_keys: int) -> int:
        """The first key that the last query reaches: keys before it need not be read."""
        ...


class Window:
    """Keys nearer than `width`: with a causal mask itself and the `width` - 1 before it.

    Beltagy et al. (2020), section 3.1, with a window of 2 `width` - 1 where both
    sides are seen; Jiang et al. (2023), section 2, with a causal mask.
    """

    def __init__(self, width: int) -> None:
        self.width = width

    def allowed(self, num_queries: int, num_keys: int, device: torch.device) -> Tensor | None:
        if num_keys <= self.width:
            return None
        return self.mask(num_queries, num_keys, device)

    def mask(self, num_queries: int, num_keys: int, device: torch.device) -> Tensor:
        distance_TS = distances(num_queries, num_keys, device)
        return (distance_TS < self.width) & (distance_TS > -self.width)

    def first_key(self, num_keys: int) -> int:
        return max(0, num_keys - self.width)


class BlockSparse:
    """Blocks of `block` tokens: a query reaches its own block, `num_local` on each side, and the first `num_global`.

    The local and the global part of Zaheer et al. (2020), section 2: tokens of
    the global blocks reach every key in turn. There is no random part, so that
    a mask is a function of positions alone.
    """

    def __init__(self, block: int, *, num_local: int, num_global: int) -> None:
        self.block = block
        self.num_local = num_local
        self.num_global = num_global

    def allowed(self, num_queries: int, num_keys: int, device: torch.device) -> Tensor | None:
        if num_keys <= self.block * (1 + max(self.num_local, self.num_global)):
            return None
        return self.mask(num_queries, num_keys, device)

    def mask(self, num_queries: int, num_keys: int, device: torch.device) -> Tensor:
        key_S = torch.arange(num_keys, device=device) // self.block
        query_T1 = key_S[num_keys - num_queries :, None]
        near_TS = (key_S - query_T1).abs() <= self.num_local
        return near_TS | (key_S < self.num_global) | (query_T1 < self.num_global)

    def first_key(self, num_keys: int) -> int:
        if self.num_global:
            return 0
        return max(0, (num_keys - 1) // self.block - self.num_local) * self.block


def distances(num_queries: int, num_keys: int, device: torch.device) -> Tensor:
    """distance_TS from each query back to each key, negative for a later key; the last query stands at the last key."""
    key_S = torch.arange(num_keys, device=device)
    return key_S[num_keys - num_queries :, None] - key_S
