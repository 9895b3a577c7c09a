"""The few next tokens worth looking at, taken from the logits of the whole vocabulary.

N rows, V vocabulary, C candidate tokens a row.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BLOCK = 64  # vocabulary entries that `top` looks at together; 32 to 128 measure alike on a CPU
ROWS_IN_CACHE = 32  # times a vocabulary of 8,000 float32: 1 MB


@dataclass(frozen=True)
class BestTokens:
    """Log-probabilities in nats, under the softmax over all V, on the CPU."""

    log_prob_NC: NDArray[np.float64]
    """Highest first, equals by id. -inf: no candidate, whatever its id says."""
    id_NC: NDArray[np.int64]
    eos_log_prob_N: NDArray[np.float64]
    """That of eos, whether or not it is among the best."""


def best_tokens(logits_NV: Tensor, num: int, *, eos_id: int, banned: Sequence[int]) -> BestTokens:
    """The `num` most probable tokens of each row that are not `banned`; overwrites `logits_NV`.

    The banned ones keep their share of the probability. A row that holds NaN or
    +inf, or nothing but -inf, has no candidates.
    """
    # On a CPU some rows at a time, so that their logits are still in the cache when they are read again.
    parts = torch.split(logits_NV, ROWS_IN_CACHE if logits_NV.device.type == "cpu" else len(logits_NV))
    packed = [_pack_best(part_NV, min(num, part_NV.size(-1)), eos_id, banned) for part_NV in parts]
    array = torch.cat(packed).cpu().numpy()  # one array, because every transfer waits for the device
    num_candidates = (array.shape[1] - 2) // 2
    log_prob = array[:, 1 : num_candidates + 2] - array[:, :1]
    # Rounding may leave a hair above 0, and the bound on later scores needs that there is none.
    log_prob = np.where(np.isnan(log_prob), -np.inf, np.minimum(log_prob, 0.0))
    log_prob_NC, id_NC = log_prob[:, 1:], array[:, num_candidates + 2 :].astype(np.int64)
    order_NC = np.lexsort((id_NC, -log_prob_NC))
    return BestTokens(
        log_prob_NC=np.take_along_axis(log_prob_NC, order_NC, axis=1),
        id_NC=np.take_along_axis(id_NC, order_NC, axis=1),
        eos_log_prob_N=log_prob[:, 0],
    )


def _pack_best(logits_NV: Tensor, num: int, eos_id: int, banned: Sequence[int]) -> Tensor:
    """Columns: log of the sum of exponentials, logit of eos, logits of the best, their ids (exact in float64)."""
    max_N1 = logits_NV.amax(-1, keepdim=True)
    log_total_N1 = (logits_NV - max_N1).exp_().sum(-1, keepdim=True).log_() + max_N1
    eos_N1 = logits_NV[:, eos_id, None].clone()
    logits_NV[:, list(banned)] = -math.inf
    top_NC, id_NC = top(logits_NV, num)
    return torch.cat([log_total_N1.double(), eos_N1.double(), top_NC.double(), id_NC.double()], dim=-1)


def top(x_NV: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """Values and indices of the `num` largest of each row, as `torch.topk`, several times as fast on a CPU.

    The `num` largest lie in the `num` blocks with the largest maxima, and a
    maximum is a vector instruction where a selection is not. `num` 1 gives the
    first of equals.
    """
    num_blocks = x_NV.size(-1) // BLOCK
    if num_blocks <= 2 * num:
        return _select(x_NV, num)
    in_blocks = num_blocks * BLOCK
    _, block_NC = _select(x_NV[:, :in_blocks].reshape(-1, num_blocks, BLOCK).amax(-1), num)
    block_NC = block_NC.sort(-1).values  # so that places rise with ids, for "the first of equals"
    id_NM = (block_NC[:, :, None] * BLOCK + torch.arange(BLOCK, device=x_NV.device)).flatten(1)
    rest = torch.arange(in_blocks, x_NV.size(-1), device=x_NV.device)
    id_NM = torch.cat([id_NM, rest.expand(len(x_NV), -1)], dim=-1)
    value_NC, place_NC = _select(x_NV.gather(1, id_NM), num)
    return value_NC, id_NM.gather(1, place_NC)


def _select(x_NM: Tensor, num: int) -> tuple[Tensor, Tensor]:
    if num == 1:
        return x_NM.max(-1, keepdim=True)  # unlike topk, promises the first of equals
    return x_NM.topk(num, dim=-1)
