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


def combine(allowed_BS: Tensor | None, causal_TS: Tensor | None) -> Tensor | None:
    """allowed_B1TS (or with axes of size 1) from a padding mask and a causal one; None where all is allowed."""
    if allowed_BS is None:
        return None if causal_TS is None else causal_TS[None, None]
    padding_B11S = allowed_BS[:, None, None, :]
    return padding_B11S if causal_TS is None else padding_B11S & causal_TS
