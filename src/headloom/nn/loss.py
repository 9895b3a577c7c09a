"""Training losses, as sums over target tokens.

A loss returns sums and the trainer divides once by the number of targets of
the whole update, so gradients do not depend on how an update is split.

Shapes: N targets that count, D model width, V vocabulary, C rows of a chunk.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headloom.nn.filled_rows import filled, with_rows
from headloom.nn.products import is_onednns, product_for

IGNORE = -100  # target value that takes no part in the loss (PyTorch's default)

CHUNK_LOGITS = 1 << 22
"""Logits that exist at a time on a CPU: 16 MiB of float32, so that a chunk stays in the cache."""
CHUNK_LOGITS_OF_GPU = 1 << 26
"""And on a GPU, whose matrix products want many rows: 256 MiB."""


@dataclass
class LossSum:
    """Sums over the targets that count, in nats and float32 (float64 of a float64 model).

    `loss` is what is minimised (smoothed) and carries the gradient; `nll` is
    the plain negative log-likelihood, `num_correct` how many targets have the
    highest logit. Both are detached. `num_choices`: how many values a target can
    have; 0 where it is no choice.
    """

    loss: Tensor
    nll: Tensor
    num_correct: Tensor
    num_targets: int
    num_choices: int = 0


def sequence_loss(
    hidden_BTD: Tensor,
    target_BT: Tensor,
    weight_VD: Tensor,
    *,
    label_smoothing: float,
    num_targets: int | None = None,
) -> LossSum:
    """Cross-entropy of hidden states projected by `weight`, summed over targets that are not IGNORE.

    With smoothing e the target distribution is (1 - e) on the target plus e / V
    on every token (Szegedy et al. 2016, section 7; Vaswani et al. 2017, 5.4).
    Padding is not projected, and logits exist for a chunk of rows at a time:
    the gradient is formed together with the loss, so nothing of size N x V is kept.
    Beside hidden states and weights it takes the gradients of both and three
    chunks (CHUNK_LOGITS).

    `num_targets`, where it is known, spares the host the wait for a device to
    count the targets.
    """
    target_N = target_BT.flatten()
    if num_targets is None or target_N.device.type == "cpu":
        row_N = (target_N != IGNORE).nonzero().squeeze(-1)
    else:
        row_N = (target_N == IGNORE).to(torch.uint8).argsort(stable=True)[:num_targets]
    hidden_ND = hidden_BTD.flatten(0, -2)
    if row_N.numel() < target_N.numel():
        hidden_ND, target_N = hidden_ND.index_select(0, row_N), target_N[row_N]
    loss, nll, num_correct = _ProjectedCrossEntropy.apply(hidden_ND, weight_VD, target_N, label_smoothing)  # type: ignore[no-untyped-call]
    return LossSum(loss, nll, num_correct, target_N.numel(), weight_VD.size(0))


class _ProjectedCrossEntropy(torch.autograd.Function):
    """loss, nll and number of correct targets from hidden_ND, weight_VD and target_N.

    With p = softmax(h W^T) the gradient for the logits is p - (1-e) onehot - e/V.
    Only p needs a V-wide pass: the other two terms are rows of W, and the sum
    of W's rows.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, target_N: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        device_type = hidden_ND.device.type
        dtype = torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else hidden_ND.dtype
        wide = torch.promote_types(dtype, torch.float32)
        N, V = target_N.numel(), weight_VD.size(0)
        chunk = max(1, (CHUNK_LOGITS if device_type == "cpu" else CHUNK_LOGITS_OF_GPU) // V)
        fills = is_onednns(dtype, weight_VD) and N > 0  # chunks of few sizes: see linear.py
        if fills:
            chunk = filled(-(-N // -(-N // chunk)))
        multiplied = product_for(dtype, weight_VD)
        with torch.autocast(device_type, enabled=False):
            h_ND, w_VD = hidden_ND.to(dtype), weight_VD.to(dtype)
            sum_D = w_VD.sum(0, dtype=wide)  # the row that smoothing pulls towards
            wants_gradient = any(ctx.needs_input_grad[:2])
            if wants_gradient:
                # float16 would lose what is below 6e-8 before the loss scale reaches it.
                dh_ND = torch.empty_like(h_ND, dtype=wide if dtype is torch.float16 else dtype)
                dw_VD = torch.zeros_like(weight_VD, dtype=wide)
            nll = torch.zeros((), dtype=wide, device=hidden_ND.device)
            uniform = torch.zeros((), dtype=wide, device=hidden_ND.device)
            num_correct = torch.zeros((), dtype=torch.int64, device=hidden_ND.device)
            for start in range(0, N, chunk):
                real_CD, target_C = h_ND[start : start + chunk], target_N[start : start + chunk]
                C = len(target_C)
                h_CD = with_rows(real_CD, chunk, dtype) if fills else real_CD
                logits_CV = multiplied(h_CD, w_VD.T).to(wide)
                own_C = logits_CV[:C].gather(-1, target_C[:, None]).squeeze(-1)
                best_C = logits_CV[:C].amax(-1)
                p_CV = torch.softmax(logits_CV, -1, out=logits_CV)
                # The likeliest token has p = exp(best - log z): one softmax serves the loss and its gradient.
                log_z_C = best_C - p_CV[:C].amax(-1).log()
                nll += (log_z_C - own_C).sum()
                num_correct += (own_C == best_C).sum()
                if smoothing > 0:
                    uniform += (log_z_C - (real_CD.to(wide) @ sum_D) / V).sum()
                if wants_gradient:
                    p_CV = p_CV.to(dtype)
                    dh_CD = multiplied(p_CV, w_VD)[:C].to(wide)
                    dh_CD -= (1 - smoothing) * w_VD[target_C].to(wide)
                    dh_CD -= (smoothing / V) * sum_D
                    dh_ND[start : start + chunk] = dh_CD
                    dw_VD += multiplied(p_CV.T, h_CD)  # what was added below is zeros in h
            if wants_gradient:
                dw_VD.index_add_(0, target_N, h_ND.to(wide), alpha=-(1 - smoothing))
                dw_VD -= (smoothing / V) * h_ND.sum(0, dtype=wide)
                ctx.save_for_backward(dh_ND, dw_VD)
                ctx.dtypes = hidden_ND.dtype, weight_VD.dtype
        loss = (1 - smoothing) * nll + smoothing * uniform
        ctx.mark_non_differentiable(nll, num_correct)
        return loss, nll, num_correct

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        dh_ND, dw_VD = ctx.saved_tensors
        hidden_dtype, weight_dtype = ctx.dtypes
        return (dh_ND * gradients[0]).to(hidden_dtype), (dw_VD * gradients[0]).to(weight_dtype), None, None
