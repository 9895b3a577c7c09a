"""How far two predictions of the same targets lie apart, as a sum over the targets.

Shapes: N targets, D model width, V vocabulary, C rows of a chunk.
"""

from typing import Any

import torch
from torch import Tensor

from headloom.nn import loss
from headloom.nn.products import product_for


def symmetric_divergence(hidden_ND: Tensor, other_ND: Tensor, weight_VD: Tensor) -> Tensor:
    """KL(p || q) + KL(q || p) of the distributions that `weight` makes of two hidden states, summed, in nats.

    Gradients reach both sides. As in `nn.loss`, logits exist for a chunk of rows at a time, and the gradient is formed
    together with the sum.
    """
    divergence: Tensor = _ProjectedDivergence.apply(hidden_ND, other_ND, weight_VD)  # type: ignore[no-untyped-call]
    return divergence


class _ProjectedDivergence(torch.autograd.Function):
    """With p = softmax(a), the gradient for a is p (log p - log q - KL(p || q)) + p - q; b's is its mirror image."""

    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, other_ND: Tensor, weight_VD: Tensor) -> Tensor:
        device_type = hidden_ND.device.type
        dtype = torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else hidden_ND.dtype
        wide = torch.promote_types(dtype, torch.float32)
        multiplied = product_for(dtype, weight_VD)
        with torch.autocast(device_type, enabled=False):
            w_VD = weight_VD.to(dtype)
            sides = hidden_ND.to(dtype), other_ND.to(dtype)
            # float16 would lose what is below 6e-8 before the loss scale reaches it.
            gradients = [torch.empty_like(h_ND, dtype=wide) for h_ND in sides]
            dw_VD = torch.zeros_like(weight_VD, dtype=wide)
            total = torch.zeros((), dtype=wide, device=hidden_ND.device)
            chunk = max(1, loss.CHUNK_LOGITS // weight_VD.size(0))
            for start in range(0, hidden_ND.size(0), chunk):
                part = slice(start, start + chunk)
                log_p_CV, log_q_CV = (multiplied(h_ND[part], w_VD.T).to(wide).log_softmax(-1) for h_ND in sides)
                p_CV, q_CV, ratio_CV = log_p_CV.exp(), log_q_CV.exp(), log_p_CV - log_q_CV
                forth_C1 = (p_CV * ratio_CV).sum(-1, keepdim=True)
                back_C1 = -(q_CV * ratio_CV).sum(-1, keepdim=True)
                total += forth_C1.sum() + back_C1.sum()
                difference_CV = p_CV - q_CV
                da_CV = p_CV.mul_(ratio_CV - forth_C1).add_(difference_CV).to(dtype)
                db_CV = q_CV.mul_(-ratio_CV - back_C1).sub_(difference_CV).to(dtype)
                for gradient_ND, d_CV, h_ND in zip(gradients, (da_CV, db_CV), sides, strict=True):
                    gradient_ND[part] = multiplied(d_CV, w_VD).to(wide)
                    dw_VD += multiplied(d_CV.T, h_ND[part])
        ctx.save_for_backward(*gradients, dw_VD)
        ctx.dtypes = hidden_ND.dtype, other_ND.dtype, weight_VD.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, ...]:
        return tuple(
            (gradient * upstream[0]).to(dtype) for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
