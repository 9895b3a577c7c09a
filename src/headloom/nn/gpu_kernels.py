"""Attention kernels that not every machine has: FlexAttention and Flash over packed tokens.

Neither drops weights, and neither is taken on trust: `works` compares it, with
its gradients, to the path that is written out, on the device and in the
precision at hand, before it is used.

Shapes: B batch, T query length, S key length, H query heads, G key/value heads
        (G divides H), K head width, N tokens of all rows.
"""

import logging
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from headloom.nn import kernels
from headloom.nn.kernels import Kernel

logger = logging.getLogger(__name__)


def packed(q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, allowed_BS: Tensor) -> Tensor:
    """out_BHTK by variable-length Flash: keys and values of padding are left out, and nothing is computed for them.

    The real ones are brought together in order, by a sort that the host need not wait for. What is behind them is
    zero in both directions, since the kernel leaves it undefined.
    """
    from torch.nn.attention.varlen import varlen_attn

    B, H, T, K = q_BHTK.shape
    G, S = k_BGSK.shape[1:3]
    order_N = (~allowed_BS).flatten().to(torch.uint8).argsort(stable=True)
    lengths_B = allowed_BS.sum(1, dtype=torch.int32)
    behind_N11 = (torch.arange(B * S, device=q_BHTK.device) >= lengths_B.sum())[:, None, None]

    def together(x_BGSK: Tensor) -> Tensor:
        return x_BGSK.transpose(1, 2).reshape(B * S, G, K)[order_N].masked_fill(behind_N11, 0.0)

    options: dict[str, Any] = {"enable_gqa": True} if G != H else {}  # PyTorch 2.10 does not know it
    out_NHK = varlen_attn(
        q_BHTK.transpose(1, 2).reshape(B * T, H, K),
        together(k_BGSK),
        together(v_BGSK),
        torch.arange(0, (B + 1) * T, T, dtype=torch.int32, device=q_BHTK.device),
        F.pad(lengths_B.cumsum(0, dtype=torch.int32), (1, 0)),
        T,
        S,
        **options,
    )
    assert isinstance(out_NHK, Tensor)
    return out_NHK.view(B, T, H, K).transpose(1, 2)


def flex(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    allowed: Tensor | None,
    *,
    causal: bool,
    pattern_TS: Tensor | None = None,
    bias_1HTS: Tensor | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """out_BHTK by FlexAttention (Dong et al. 2024): the score of a pair is changed inside the kernel.

    Arguments are those of `kernels.attend`.
    """
    ahead = k_BGSK.size(-2) - q_BHTK.size(-2)  # the last query stands at the last key

    def changed(score: Tensor, b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        if soft_cap is not None:
            score = torch.tanh(score / soft_cap) * soft_cap
        if bias_1HTS is not None:
            score = score + bias_1HTS[0, h, t, s]
        if allowed is not None:
            sees = allowed[b, s] if allowed.dim() == 2 else allowed[b, t, s]
            score = torch.where(sees, score, float("-inf"))
        if pattern_TS is not None:
            score = torch.where(pattern_TS[t, s], score, float("-inf"))
        if causal:
            score = torch.where(s <= t + ahead, score, float("-inf"))
        return score

    out_BHTK: Tensor = _flex(q_BHTK.device.type)(
        q_BHTK, k_BGSK, v_BGSK, score_mod=changed, enable_gqa=q_BHTK.size(1) != k_BGSK.size(1)
    )
    return out_BHTK


@cache
def _flex(device_type: str) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    if device_type != "cpu":
        return torch.compile(flex_attention, dynamic=True)

    def slowly(*arguments: Any, **options: Any) -> Any:
        with warnings.catch_warnings():  # of being slow: on a CPU the kernel has no backward pass to compile
            warnings.simplefilter("ignore")
            return flex_attention(*arguments, **options)

    return slowly


@cache
def works(kernel: Kernel, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `kernel` is there and right, forwards and backwards; the reason why not is logged, once."""
    try:
        difference = _difference(kernel, device, dtype)
    except Exception as error:  # whatever a missing compiler, an old GPU or another version of PyTorch may raise
        reason = f"{type(error).__name__}: {str(error).strip().split(chr(10), 1)[0] or 'no reason'}"
    else:
        if difference < 0.05:
            return True
        reason = f"its result is off by {difference:.2g}"
    logger.warning(
        "%s cannot be used on this %s (%s): PyTorch's own kernels are", kernel.value, device.type, reason[:200]
    )
    return False


def _difference(kernel: Kernel, device: torch.device, dtype: torch.dtype) -> float:
    """The largest difference of output and gradients to those of the path written out, as a share of the largest."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, 4, 24, 64, generator=generator).to(device, dtype).requires_grad_() for _ in range(3))
    allowed_BS = (torch.arange(24) < torch.tensor([24, 9, 0])[:, None]).to(device)
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        if kernel is Kernel.packed:
            out = packed(q, k, v, allowed_BS)
            right = kernels.exact(q, k, v, allowed_BS, causal=False, dropout_probability=0.0)[0]
        else:
            options: dict[str, Any] = {
                "causal": True,
                "pattern_TS": torch.ones(24, 24, dtype=torch.bool, device=device).triu(-5),
                "bias_1HTS": torch.linspace(-1, 1, 24, device=device).expand(1, 4, 24, 24),
            }
            out = flex(q, k, v, allowed_BS, **options)
            right = kernels.exact(q, k, v, allowed_BS, dropout_probability=0.0, **options)[0]
        results, expected = ([x, *torch.autograd.grad(x.float().sin().sum(), [q, k, v])] for x in (out, right))
    shares = [(a - b).abs().max() / b.abs().max() for a, b in zip(results, expected, strict=True)]
    worst = torch.stack(shares).max().item()
    return worst if worst == worst else float("inf")  # NaN is no small difference
