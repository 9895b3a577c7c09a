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
LOGITS_IN_CACHE = 1 << 20  # 4 MB of float32: the fastest of half as much to eight times as much


@dataclass(frozen=True)
class BestTokens:
    """Log-probabilities in nats, under the softmax over all V, on the CPU."""

    log_prob_NC: NDArray[np.float64]
    """Highest first, equals by id. -inf: no candidate, whatever its id says."""
    id_NC: NDArray[np.int64]
    eos_log_prob_N: NDArray[np.float64]
    """That of eos, whether or not it is among the best."""


@dataclass(frozen=True)
class Edits:
    """What a step must not choose, must choose or shall choose less; the probabilities stay the model's own.

    Rows and ids side by side: the banned tokens, the only token of some rows,
    and the tokens whose logits `penalty` makes smaller (Keskar et al. 2019,
    section 4.1: divided by it where positive, multiplied where negative).
    """

    banned: tuple[NDArray[np.int64], NDArray[np.int64]]
    forced: tuple[NDArray[np.int64], NDArray[np.int64]]
    penalised: tuple[NDArray[np.int64], NDArray[np.int64]]
    penalty: float = 1.0

    def apply(self, logits_NV: Tensor) -> None:
        """Overwrite the logits, which are then for choosing only."""
        device = logits_NV.device
        if len(self.penalised[0]):
            row, token = (torch.from_numpy(a).to(device) for a in self.penalised)
            old = logits_NV[row, token]
            logits_NV[row, token] = torch.where(old > 0, old / self.penalty, old * self.penalty)
        if len(self.banned[0]):
            row, token = (torch.from_numpy(a).to(device) for a in self.banned)
            logits_NV[row, token] = -math.inf
        if len(self.forced[0]):
            row, token = (torch.from_numpy(a).to(device) for a in self.forced)
            old = logits_NV[row, token]
            logits_NV[row] = -math.inf
            logits_NV[row, token] = old


def best_tokens(
    logits_NV: Tensor,
    num: int,
    *,
    eos_id: int,
    banned: Sequence[int],
    edits: Edits | None = None,
    extra_NP: NDArray[np.int64] | None = None,
) -> BestTokens:
    """The `num` most probable tokens of each row that are not `banned`; overwrites `logits_NV`.

    The banned ones keep their share of the probability. A row that holds NaN or
    +inf, or nothing but -inf, has no candidates. With `edits` it is they that
    say which are the best. `extra_NP` adds tokens to the candidates of each row
    (-1: none), behind the others; they too must not be banned.
    """
    # On a CPU some rows at a time, so that their logits are still in the cache when they are read again.
    at_once = len(logits_NV)
    if logits_NV.device.type == "cpu":
        at_once = max(1, LOGITS_IN_CACHE // logits_NV.size(-1))
    extra = None if extra_NP is None else torch.from_numpy(extra_NP).to(logits_NV.device)
    extra_log_prob_NP = None if extra is None else logits_NV.gather(1, extra.clamp(min=0))
    num = min(num, logits_NV.size(-1))
    parts = torch.split(logits_NV, at_once)
    if edits is None:
        packed = torch.cat([torch.cat([_totals(part_NV, eos_id), _best(part_NV, num, banned)], 1) for part_NV in parts])
    else:
        totals_N2 = torch.cat([_totals(part_NV, eos_id) for part_NV in parts])
        own_NV = logits_NV.clone() if len(edits.penalised[0]) else logits_NV
        edits.apply(logits_NV)
        best = torch.cat([_best(part_NV, num, banned) for part_NV in parts])
        if own_NV is not logits_NV:
            own_NC = own_NV.gather(1, best[:, num:].long()).double()
            best[:, :num] = own_NC.where(best[:, :num] > -math.inf, -math.inf)
        packed = torch.cat([totals_N2, best], 1)
    array = packed.cpu().numpy()  # one array, because every transfer waits for the device
    num_candidates = (array.shape[1] - 2) // 2
    log_prob = array[:, 1 : num_candidates + 2] - array[:, :1]
    # Rounding may leave a hair above 0, and the bound on later scores needs that there is none.
    log_prob = np.where(np.isnan(log_prob), -np.inf, np.minimum(log_prob, 0.0))
    log_prob_NC, id_NC = log_prob[:, 1:], array[:, num_candidates + 2 :].astype(np.int64)
    order_NC = np.lexsort((id_NC, -log_prob_NC))
    log_prob_NC = np.take_along_axis(log_prob_NC, order_NC, axis=1)
    id_NC = np.take_along_axis(id_NC, order_NC, axis=1)
    if extra is not None and extra_NP is not None and extra_log_prob_NP is not None:
        # By now the logits are edited.
        extra_log_prob_NP = extra_log_prob_NP.where(logits_NV.gather(1, extra.clamp(min=0)) > -math.inf, -math.inf)
        more_NP = np.minimum(extra_log_prob_NP.double().cpu().numpy() - array[:, :1], 0.0)
        is_new_NP = (extra_NP >= 0) & ~(
            (extra_NP[:, :, None] == id_NC[:, None]) & (log_prob_NC[:, None] > -np.inf)
        ).any(2)
        log_prob_NC = np.concatenate([log_prob_NC, np.where(is_new_NP & ~np.isnan(more_NP), more_NP, -np.inf)], axis=1)
        id_NC = np.concatenate([id_NC, extra_NP], axis=1)
    return BestTokens(log_prob_NC=log_prob_NC, id_NC=id_NC, eos_log_prob_N=log_prob[:, 0])


def _totals(logits_NV: Tensor, eos_id: int) -> Tensor:
    """Columns: log of the sum of exponentials, logit of eos."""
    max_N1 = logits_NV.amax(-1, keepdim=True)
    log_total_N1 = (logits_NV - max_N1).exp_().sum(-1, keepdim=True).log_() + max_N1
    return torch.cat([log_total_N1, logits_NV[:, eos_id, None]], 1).double()


def _best(logits_NV: Tensor, num: int, banned: Sequence[int]) -> Tensor:
    """Columns: logits of the best, their ids (exact in float64)."""
    for token in banned:
        logits_NV[:, token] = -math.inf
    top_NC, id_NC = top(logits_NV, num)
    return torch.cat([top_NC.double(), id_NC.double()], 1)


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
