"""The attention product itself: two paths with one result.

`exact` is written out and can show its weights; `fused` is PyTorch's
`scaled_dot_product_attention`, which picks Flash or another kernel. `attend`
chooses. A row that may attend to nothing gives zeros on both.

Shapes: B batch, T query length, S key length, H query heads, G key/value
        heads (G divides H), K head width.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from headloom.nn import masks
from headloom.nn.dropout import dropout

CPU_FUSED_MIN_KEYS = 192
"""On a CPU in bfloat16 the fused backward is slower than the written-out path for fewer keys than this."""


def attend(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    allowed: Tensor | None,
    *,
    causal: bool,
    dropout_probability: float,
) -> Tensor:
    """Softmax attention (Vaswani et al. 2017, section 3.2.1) as out_BHTK.

    `allowed` is True where a key is real (allowed_BS) or where a query may attend
    to a key (allowed_BTS); None: everywhere. With `causal` the last
    query stands at the last key. `dropout_probability` falls on the weights;
    pass 0 outside training.
    """
    if q_BHTK.device.type == "cpu" and (dropout_probability > 0 or _short_bfloat16(q_BHTK, k_BGSK)):
        # Dropout turns PyTorch's fused CPU kernel off, and its own costs more than ours.
        return exact(q_BHTK, k_BGSK, v_BGSK, allowed, causal=causal, dropout_probability=dropout_probability)[0]
    return fused(q_BHTK, k_BGSK, v_BGSK, allowed, causal=causal, dropout_probability=dropout_probability)


def fused(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    allowed: Tensor | None,
    *,
    causal: bool,
    dropout_probability: float,
) -> Tensor:
    """Attention through PyTorch's fused kernels.

    The Flash kernel takes no mask: a square causal product goes as `is_causal`
    and a batch without padding without any mask.
    """
    num_queries, num_keys = q_BHTK.size(-2), k_BGSK.size(-2)
    square_causal = causal and num_queries == num_keys and allowed is None
    causal_TS = masks.causal(num_queries, num_keys, q_BHTK.device) if causal and num_queries > 1 else None
    mask = None if square_causal else masks.combine(allowed, causal_TS)
    return F.scaled_dot_product_attention(
        q_BHTK,
        k_BGSK,
        v_BGSK,
        attn_mask=mask,
        dropout_p=dropout_probability,
        is_causal=square_causal,
        enable_gqa=q_BHTK.size(1) != k_BGSK.size(1),
    )


def exact(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    allowed: Tensor | None,
    *,
    causal: bool,
    dropout_probability: float,
) -> tuple[Tensor, Tensor]:
    """Attention written out: out_BHTK and the weights_BHTS that made it (before dropout)."""
    B, H, T, K = q_BHTK.shape
    G, S = k_BGSK.shape[1:3]
    # Query heads that share a key head are rows of one product.
    q_NTK = (q_BHTK * (1 / math.sqrt(K))).reshape(B * G, H // G * T, K)
    scores_BHTS = torch.bmm(q_NTK, k_BGSK.reshape(B * G, S, K).transpose(1, 2)).view(B, H, T, S)
    causal_TS = masks.causal(T, S, q_BHTK.device) if causal and T > 1 else None
    allowed_B1TS = masks.combine(allowed, causal_TS)
    if allowed_B1TS is not None:
        blocked = torch.zeros(allowed_B1TS.shape, dtype=scores_BHTS.dtype, device=scores_BHTS.device)
        # Finite, also after a score is added, so that a row with no allowed key is no NaN; it is zeroed below.
        blocked.masked_fill_(~allowed_B1TS, torch.finfo(scores_BHTS.dtype).min / 2)
        scores_BHTS = scores_BHTS + blocked
    weights_BHTS = scores_BHTS.softmax(dim=-1)
    if allowed_B1TS is not None:
        sees_any_B1T1 = allowed_B1TS.any(-1, keepdim=True)
        if not bool(sees_any_B1T1.all()):
            weights_BHTS = weights_BHTS * sees_any_B1T1
    dropped_NTS = dropout(weights_BHTS, dropout_probability).view(B * G, H // G * T, S)
    out_BHTK = torch.bmm(dropped_NTS, v_BGSK.reshape(B * G, S, K)).view(B, H, T, K)
    return out_BHTK, weights_BHTS


def _short_bfloat16(q_BHTK: Tensor, k_BGSK: Tensor) -> bool:
    return q_BHTK.dtype is torch.bfloat16 and k_BGSK.size(-2) < CPU_FUSED_MIN_KEYS and torch.is_grad_enabled()
