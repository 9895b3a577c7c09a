"""Who may attend to whom. Every mask has one sense: True where a query may attend.

Shapes: B batch, T query length, S key length.
"""

import torch
from torch import Tensor


def causal(num_queries: int, num_keys: int, device: torch.device | None = None) -> Tensor:
    """allowed_TS where the last query stands at the last key and none sees beyond its own position.

    With as many queries as keys it is the lower triangle; with a cache of
    earlier keys the queries are the last ones.
    """
    return torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).tril(num_keys - num_queries)


def combine(allowed: Tensor | None, causal_TS: Tensor | None) -> Tensor | None:
    """allowed_B1TS (or with axes of size 1) from a padding mask and a causal one; None where all is allowed.

    `allowed` is allowed_BS (True where a key is real) or allowed_BTS (True where a query may attend to a key).
    """
    if allowed is None:
        return None if causal_TS is None else causal_TS[None, None]
    allowed_B1TS = allowed[:, None, None, :] if allowed.dim() == 2 else allowed[:, None]
    return allowed_B1TS if causal_TS is None else allowed_B1TS & causal_TS
