"""The attention product itself: paths with one result.

`exact` is written out and can show its weights; `fused` is PyTorch's
`scaled_dot_product_attention`, which picks Flash or another kernel. `attend`
takes the one that `choose` says, which also gives its reason; gpu_kernels.py
has two more, for devices where they work. A row that may attend to nothing
gives zeros on all.

Shapes: B batch, T query length, S key length, H query heads, G key/value
        heads (G divides H), K head width.
"""

import math
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor
from torch.nn import functional as F

from headloom.nn import masks
from headloom.nn.dropout import dropout

HALF = (torch.float16, torch.bfloat16)
CPU_FUSED_MIN_KEYS = 192
"""On a CPU in bfloat16 the fused backward is slower than the written-out path for fewer keys than this."""


class Kernel(Enum):
    flash = "PyTorch's fused kernel without a mask, Flash where the device has it"
    masked = "PyTorch's fused kernel with a mask"
    written_out = "written out"
    packed = "variable-length Flash over the real keys alone"
    flex = "FlexAttention"


class Asked(Enum):
    """What a user asks for; `auto` is the fastest as measured."""

    auto = "auto"
    eager = "eager"
    sdpa = "sdpa"
    flex = "flex"
    varlen = "varlen"


@dataclass(frozen=True)
class Preference:
    """Which kernels an attention module may take. `working`: of flex and packed, those found right on the device."""

    asked: Asked = Asked.auto
    working: frozenset[Kernel] = frozenset()


NO_PREFERENCE = Preference()


@dataclass(frozen=True)
class Choice:
    """What computes an attention product, and why."""

    kernel: Kernel
    reason: str


ASKED = Choice(Kernel.written_out, "trainer.attention=eager")
ASKED_FLEX = Choice(Kernel.flex, "trainer.attention=flex")
PADDED = Choice(Kernel.packed, "keys of padding are left out")
CHANGED = Choice(Kernel.flex, "it changes scores inside the kernel, with no mask in memory")
CAPPED = Choice(Kernel.written_out, "no fused kernel caps the scores")
DROPS_ON_CPU = Choice(Kernel.written_out, "dropout turns PyTorch's fused CPU kernel off, and ours costs less")
LEARNT_ON_CPU = Choice(Kernel.written_out, "a score bias with a gradient turns PyTorch's fused CPU kernel off")
SHORT_ON_CPU = Choice(
    Kernel.written_out, f"faster than the fused backward on a CPU in bfloat16 below {CPU_FUSED_MIN_KEYS} keys"
)
BIASED = Choice(Kernel.masked, "the score bias enters as a mask, which Flash does not take")
HIDES = Choice(Kernel.masked, "not every key may be seen, and Flash takes no mask")
CAUSAL = Choice(Kernel.flash, "causality alone needs no mask")
OPEN = Choice(Kernel.flash, "every key may be seen")


def choose(
    *,
    device_type: str,
    dtype: torch.dtype,
    num_queries: int,
    num_keys: int,
    causal: bool,
    hides: bool,
    biased: bool = False,
    learns_bias: bool = False,
    capped: bool = False,
    dropout_probability: float,
    with_gradient: bool,
    is_padding: bool = False,
    preference: Preference = NO_PREFERENCE,
) -> Choice:
    """The kernel of an attention product.

    `hides`: a mask of keys or of positions beside causality. `is_padding`: it
    is of keys alone, and nothing else changes the scores.
    """
    asked = preference.asked
    if asked is Asked.eager:
        return ASKED
    if preference.working and dropout_probability == 0 and num_queries > 1:
        if is_padding and not causal and Kernel.packed in preference.working and dtype in HALF:
            return PADDED
        if Kernel.flex in preference.working:
            if asked is Asked.flex:
                return ASKED_FLEX
            # The gradient of a learnt bias is summed atomically there, which is slow and never twice the same.
            if (capped or biased or (hides and not is_padding)) and not (learns_bias and with_gradient):
                return CHANGED
    if capped:
        return CAPPED
    if device_type == "cpu":
        if learns_bias and with_gradient:
            return LEARNT_ON_CPU
        if asked is not Asked.auto:
            pass
        elif dropout_probability > 0:
            return DROPS_ON_CPU
        elif dtype is torch.bfloat16 and num_keys < CPU_FUSED_MIN_KEYS and with_gradient:
            return SHORT_ON_CPU
    if biased:
        return BIASED
    if hides or (causal and 1 < num_queries < num_keys):
        return HIDES
    return CAUSAL if causal and num_queries > 1 else OPEN


def attend(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    allowed: Tensor | None,
    *,
    causal: bool,
    dropout_probability: float,
    pattern_TS: Tensor | None = None,
    bias_1HTS: Tensor | None = None,
    soft_cap: float | None = None,
    preference: Preference = NO_PREFERENCE,
) -> Tensor:
    """Softmax attention (Vaswani et al. 2017, section 3.2.1) as out_BHTK.

    `allowed` is True where a key is real (allowed_BS) or where a query may attend
    to a key (allowed_BTS); None: everywhere. `pattern` is True where a position
    reaches another. With `causal` the last query stands at the last key.
    `dropout_probability` falls on the weights; pass 0 outside training.

    A score s becomes `soft_cap` * tanh(s / `soft_cap`) (Gemma Team 2024, section
    2), then `bias` is added, then what is not allowed is left out.
    """
    choice = choose(
        device_type=q_BHTK.device.type,
        dtype=q_BHTK.dtype,
        num_queries=q_BHTK.size(-2),
        num_keys=k_BGSK.size(-2),
        causal=causal,
        hides=allowed is not None or pattern_TS is not None,
        biased=bias_1HTS is not None,
        learns_bias=bias_1HTS is not None and bias_1HTS.requires_grad,
        capped=soft_cap is not None,
        dropout_probability=dropout_probability,
        with_gradient=torch.is_grad_enabled(),
        is_padding=allowed is not None
        and allowed.dim() == 2
        and pattern_TS is None
        and bias_1HTS is None
        and soft_cap is None,
        preference=preference,
    )
    if choice.kernel is Kernel.packed or choice.kernel is Kernel.flex:
        from headloom.nn import gpu_kernels

        if choice.kernel is Kernel.packed:
            assert allowed is not None
            return gpu_kernels.packed(q_BHTK, k_BGSK, v_BGSK, allowed)
        return gpu_kernels.flex(
            q_BHTK,
            k_BGSK,
            v_BGSK,
            allowed,
            causal=causal,
            pattern_TS=pattern_TS,
            bias_1HTS=bias_1HTS,
            soft_cap=soft_cap,
        )
    if choice.kernel is Kernel.written_out:
        return exact(
            q_BHTK,
            k_BGSK,
            v_BGSK,
            allowed,
            causal=causal,
            dropout_probability=dropout_probability,
            pattern_TS=pattern_TS,
            bias_1HTS=bias_1HTS,
            soft_cap=soft_cap,
        )[0]
    return fused(
        q_BHTK,
        k_BGSK,
        v_BGSK,
        allowed,
        causal=causal,
        dropout_probability=dropout_probability,
        pattern_TS=pattern_TS,
        bias_1HTS=bias_1HTS,
    )


def fused(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    allowed: Tensor | None,
    *,
    causal: bool,
    dropout_probability: float,
    pattern_TS: Tensor | None = None,
    bias_1HTS: Tensor | None = None,
) -> Tensor:
    """Attention through PyTorch's fused kernels.

    The Flash kernel takes no mask: a square causal product goes as `is_causal`
    and a batch without padding without any mask.
    """
    num_queries, num_keys = q_BHTK.size(-2), k_BGSK.size(-2)
    as_flag = causal and num_queries == num_keys and allowed is None and pattern_TS is None and bias_1HTS is None
    causal_TS = None
    if causal and num_queries > 1 and not as_flag:
        causal_TS = masks.causal(num_queries, num_keys, q_BHTK.device)
    mask = masks.combine(allowed, causal_TS, pattern_TS)
    if bias_1HTS is not None:
        # The kernel wants one mask, in its own precision. A row of nothing but -inf gives zeros, as one of False does.
        bias_1HTS = bias_1HTS.to(q_BHTK.dtype)
        mask = bias_1HTS if mask is None else bias_1HTS.masked_fill(~mask, float("-inf"))
    return F.scaled_dot_product_attention(
        q_BHTK,
        k_BGSK,
        v_BGSK,
        attn_mask=mask,
        dropout_p=dropout_probability,
        is_causal=as_flag,
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
    pattern_TS: Tensor | None = None,
    bias_1HTS: Tensor | None = None,
    soft_cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention written out: out_BHTK and the weights_BHTS that made it (before dropout)."""
    B, H, T, K = q_BHTK.shape
    G, S = k_BGSK.shape[1:3]
    # Query heads that share a key head are rows of one product.
    q_NTK = (q_BHTK * (1 / math.sqrt(K))).reshape(B * G, H // G * T, K)
    scores_BHTS = torch.bmm(q_NTK, k_BGSK.reshape(B * G, S, K).transpose(1, 2)).view(B, H, T, S)
    if soft_cap is not None:
        scores_BHTS = (scores_BHTS / soft_cap).tanh() * soft_cap
    if bias_1HTS is not None:
        scores_BHTS = scores_BHTS + bias_1HTS.to(scores_BHTS.dtype)
    causal_TS = masks.causal(T, S, q_BHTK.device) if causal and T > 1 else None
    allowed_B1TS = masks.combine(allowed, causal_TS, pattern_TS)
    if allowed_B1TS is not None:
        blocked = torch.zeros(allowed_B1TS.shape, dtype=scores_BHTS.dtype, device=scores_BHTS.device)
        # Finite, also after a score is added, so that a row with no allowed key is no NaN; it is zeroed below.
        blocked.masked_fill_(~allowed_B1TS, torch.finfo(scores_BHTS.dtype).min / 2)
        scores_BHTS = scores_BHTS + blocked
    weights_BHTS = scores_BHTS.softmax(dim=-1)
    if allowed_B1TS is not None:
        sees_any_B1T1 = allowed_B1TS.any(-1, keepdim=True)
        # Elsewhere than on a CPU the host would wait for the answer, and a graph, compiled or exported, cannot ask.
        asks = sees_any_B1T1.device.type == "cpu" and not torch.compiler.is_compiling()
        if not asks or not bool(sees_any_B1T1.all()):
            weights_BHTS = weights_BHTS * sees_any_B1T1
    dropped_NTS = dropout(weights_BHTS, dropout_probability).view(B * G, H // G * T, S)
    out_BHTK = torch.bmm(dropped_NTS, v_BGSK.reshape(B * G, S, K)).view(B, H, T, K)
    return out_BHTK, weights_BHTS
