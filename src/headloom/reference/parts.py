"""The parts of a Transformer as equations in NumPy, each with its derivative written by hand.

A part returns its value and a function `backward`. Given the gradient of some
scalar for the value, `backward` returns the gradient for each array argument,
in the order of the arguments. `dx` is the gradient for `x`; "rows" are all
axes but the last, over which a weight is shared and its gradient summed.

Shapes: B batch, T query/target length, S key/source length, D model width,
        H query heads, G key/value heads (G divides H), K head width, F inner
        width, V vocabulary, E any width, N rows.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Backward = Callable[[Any], tuple[Any, ...]]
Result = tuple[Any, Backward]

IGNORE = -100  # a target of this value takes no part in the loss


def linear(x_BTD: Array, w_DE: Array, b_E: Array | None = None) -> Result:
    """y = x W + b, on the last axis."""
    x_ND = _rows(x_BTD)
    y_NE = x_ND @ w_DE
    if b_E is not None:
        y_NE += b_E

    def backward(dy_BTE: Array) -> tuple[Array, Array, Array | None]:
        dy_NE = _rows(dy_BTE)
        dx_ND = dy_NE @ w_DE.T
        dw_DE = x_ND.T @ dy_NE
        return dx_ND.reshape(x_BTD.shape), dw_DE, None if b_E is None else dy_NE.sum(0)

    return y_NE.reshape(*x_BTD.shape[:-1], -1), backward


def embed(token_BT: Array, table_VD: Array, *, scale: float) -> Result:
    """The tokens' rows of the table, times sqrt(D) in Vaswani et al. (2017), section 3.4."""

    def backward(dx_BTD: Array) -> tuple[Array]:
        dtable_VD = np.zeros_like(table_VD)
        np.add.at(dtable_VD, token_BT, dx_BTD * scale)  # adds again where a token comes again
        return (dtable_VD,)

    return table_VD[token_BT] * scale, backward


def rms_norm(x_BTD: Array, gain_D: Array, *, epsilon: float) -> Result:
    """Unit mean square on the last axis, then gain: Zhang and Sennrich (2019), equation 4."""
    inverse_BT1 = 1 / np.sqrt((x_BTD * x_BTD).mean(-1, keepdims=True) + epsilon)
    unit_BTD = x_BTD * inverse_BT1

    def backward(dy_BTD: Array) -> tuple[Array, Array]:
        dunit_BTD = dy_BTD * gain_D
        # Moving x along itself moves nothing: that direction is taken out of the gradient.
        along_BT1 = (dunit_BTD * unit_BTD).mean(-1, keepdims=True)
        return inverse_BT1 * (dunit_BTD - along_BT1 * unit_BTD), _rows(dy_BTD * unit_BTD).sum(0)

    return unit_BTD * gain_D, backward


def layer_norm(x_BTD: Array, gain_D: Array, bias_D: Array, *, epsilon: float) -> Result:
    """Zero mean and unit variance on the last axis, then gain and bias: Ba et al. (2016), equations 3 and 4."""
    y_BTD, rms_backward = rms_norm(x_BTD - x_BTD.mean(-1, keepdims=True), gain_D, epsilon=epsilon)

    def backward(dy_BTD: Array) -> tuple[Array, Array, Array]:
        dcentred_BTD, dgain_D = rms_backward(dy_BTD)
        return dcentred_BTD - dcentred_BTD.mean(-1, keepdims=True), dgain_D, _rows(dy_BTD).sum(0)

    return y_BTD + bias_D, backward


def relu(x_BTF: Array) -> Result:
    """max(0, x): inside Vaswani et al. (2017), equation 2."""
    return np.maximum(x_BTF, 0), lambda dy_BTF: (dy_BTF * (x_BTF > 0),)


def gelu(x_BTF: Array) -> Result:
    """x Φ(x) with the normal distribution's Φ: Hendrycks and Gimpel (2016), section 2. Φ' is the bell curve."""
    below_BTF = 0.5 * (1 + np.asarray(_erf(x_BTF / math.sqrt(2)), x_BTF.dtype))
    bell_BTF = np.exp(-0.5 * x_BTF**2) / math.sqrt(2 * math.pi)
    return x_BTF * below_BTF, lambda dy_BTF: (dy_BTF * (below_BTF + x_BTF * bell_BTF),)


def swiglu(x_BTE: Array) -> Result:
    """silu(gate) * up, the two halves of E = 2 F channels: inside Shazeer (2020), equation 6.

    silu(x) = x σ(x): Ramachandran et al. (2017), section 4; σ' = σ (1 - σ).
    """
    gate_BTF, up_BTF = np.split(x_BTE, 2, axis=-1)
    sigma_BTF = 0.5 * (1 + np.tanh(0.5 * gate_BTF))  # no exponential that overflows

    def backward(dy_BTF: Array) -> tuple[Array]:
        dsilu_BTF = sigma_BTF * (1 + gate_BTF * (1 - sigma_BTF))
        return (np.concatenate([dy_BTF * up_BTF * dsilu_BTF, dy_BTF * gate_BTF * sigma_BTF], axis=-1),)

    return gate_BTF * sigma_BTF * up_BTF, backward


_erf = np.frompyfunc(math.erf, 1, 1)  # NumPy has none


def sinusoids(position_BT: Array, width: int) -> Array:
    """sin(t / 10000^(2i/D)) in channel 2i, cos in 2i + 1, of each position t: Vaswani et al. (2017), section 3.5."""
    angle_BTK = _angles(position_BT, width, 10_000.0)
    return np.stack([np.sin(angle_BTK), np.cos(angle_BTK)], axis=-1).reshape(*position_BT.shape, -1)[..., :width]


def rotate(x_BHTK: Array, position_BT: Array, *, base: float) -> Result:
    """Channels k and k + K/2 of a token at position t, as a point of the plane, turned by t / base^(2k/K).

    Su et al. (2021), equation 15. The paper pairs neighbours instead, which is
    this with the channels of queries and keys in another order.
    """
    angle_B1TK = _angles(position_BT, x_BHTK.shape[-1], base)[:, None]
    cos_B1TK, sin_B1TK = np.cos(angle_B1TK).astype(x_BHTK.dtype), np.sin(angle_B1TK).astype(x_BHTK.dtype)

    def turn(x_BHTK: Array, sin_B1TK: Array) -> Array:
        a_BHTK, b_BHTK = np.split(x_BHTK, 2, axis=-1)
        return np.concatenate([a_BHTK * cos_B1TK - b_BHTK * sin_B1TK, a_BHTK * sin_B1TK + b_BHTK * cos_B1TK], axis=-1)

    # A rotation's transpose turns back.
    return turn(x_BHTK, sin_B1TK), lambda dy_BHTK: (turn(dy_BHTK, -sin_B1TK),)


def alibi(num_heads: int, num_queries: int, num_keys: int) -> Array:
    """bias_HTS = -slope_H |t - s|: Press et al. (2022), section 3.

    The slopes of n = 2^m heads are 2^(-8/n), 2^(-16/n), ...; for another number
    of heads, those of the next lower power of two and then every other one of
    twice as many, as in the authors' code. The paper is causal: keys at s > t,
    which only an encoder sees, get the same distance.
    """
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * i / power) for i in range(1, power + 1)]
    slopes += [2.0 ** (-4 * i / power) for i in range(1, 2 * power, 2)]
    distance_TS = np.abs(np.arange(num_queries)[:, None] - np.arange(num_keys))
    return -np.array(slopes[:num_heads])[:, None, None] * distance_TS


def _angles(position_BT: Array, width: int, base: float) -> Array:
    """angle_BTK: t / base^(2i / width) of each position t and i < width / 2."""
    return position_BT[..., None] / base ** (np.arange(0, width, 2) / width)


def causal(length: int) -> Array:
    """allowed_TT: True where query t may attend to key s, that is s <= t: Vaswani et al. (2017), section 3.2.3."""
    return np.tri(length, dtype=bool)


def split_heads(x_BTE: Array, num_heads: int) -> Array:
    """x_BHTK: E = H K channels as H heads."""
    return x_BTE.reshape(*x_BTE.shape[:2], num_heads, -1).swapaxes(1, 2)


def merge_heads(x_BHTK: Array) -> Array:
    """The inverse of `split_heads`, and so its gradient."""
    B, H, T, K = x_BHTK.shape
    return x_BHTK.swapaxes(1, 2).reshape(B, T, H * K)


def attention(
    q_BHTK: Array, k_BGSK: Array, v_BGSK: Array, allowed_B1TS: Array | None, bias_HTS: Array | None
) -> tuple[Array, Array, Backward]:
    """out_BHTK = softmax(q kᵀ / sqrt(K) + bias) v, the weights of the sum, and backward.

    Vaswani et al. (2017), equation 1. H/G neighbouring query heads share a
    key/value head: Ainslie et al. (2023), section 2.2. `allowed` is True where
    a query may attend; a query that may attend to nothing gets zeros.
    """
    B, G, S, K = k_BGSK.shape
    H = q_BHTK.shape[1]
    k_BHSK, v_BHSK = k_BGSK.repeat(H // G, axis=1), v_BGSK.repeat(H // G, axis=1)
    scale = 1 / math.sqrt(K)
    scores_BHTS = (q_BHTK @ k_BHSK.swapaxes(-1, -2)) * scale
    if bias_HTS is not None:
        scores_BHTS += bias_HTS
    weights_BHTS = softmax(scores_BHTS if allowed_B1TS is None else np.where(allowed_B1TS, scores_BHTS, -np.inf))

    def backward(dout_BHTK: Array) -> tuple[Array, Array, Array]:
        dweights_BHTS = dout_BHTK @ v_BHSK.swapaxes(-1, -2)
        dv_BHSK = weights_BHTS.swapaxes(-1, -2) @ dout_BHTK
        # The weights of a row add to 1: only differences between their gradients count.
        mean_BHT1 = (weights_BHTS * dweights_BHTS).sum(-1, keepdims=True)
        dscores_BHTS = weights_BHTS * (dweights_BHTS - mean_BHT1)
        dq_BHTK = dscores_BHTS @ k_BHSK * scale
        dk_BHSK = dscores_BHTS.swapaxes(-1, -2) @ q_BHTK * scale
        dk_BGSK, dv_BGSK = (d_BHSK.reshape(B, G, H // G, S, K).sum(2) for d_BHSK in (dk_BHSK, dv_BHSK))
        return dq_BHTK, dk_BGSK, dv_BGSK

    return weights_BHTS @ v_BHSK, weights_BHTS, backward


def softmax(score_NE: Array) -> Array:
    """exp(score) / sum of exp(score), on the last axis; zeros where every score is minus infinity."""
    top_N1 = score_NE.max(-1, keepdims=True)
    exp_NE = np.exp(score_NE - np.where(np.isneginf(top_N1), 0, top_N1))
    sum_N1 = exp_NE.sum(-1, keepdims=True)
    return exp_NE / np.where(sum_N1 == 0, 1, sum_N1)


def cross_entropy(logits_BTV: Array, target_BT: Array, *, label_smoothing: float = 0.0) -> Result:
    """Sum over the targets of -Σ_v wanted_v log softmax(logits)_v, in nats.

    With smoothing e, `wanted` is 1 - e on the target plus e / V on every token:
    Szegedy et al. (2016), section 7; Vaswani et al. (2017), section 5.4.
    Targets that are IGNORE add nothing. The gradient is softmax - wanted.
    """
    row_N = np.flatnonzero(target_BT != IGNORE)
    logits_NV = _rows(logits_BTV)[row_N]
    N, V = logits_NV.shape
    wanted_NV = np.full_like(logits_NV, label_smoothing / V)
    wanted_NV[np.arange(N), target_BT.reshape(-1)[row_N]] += 1 - label_smoothing
    shifted_NV = logits_NV - logits_NV.max(-1, keepdims=True)
    log_p_NV = shifted_NV - np.log(np.exp(shifted_NV).sum(-1, keepdims=True))

    def backward(dloss: Any) -> tuple[Array]:
        dlogits_BTV = np.zeros_like(logits_BTV)
        _rows(dlogits_BTV)[row_N] = dloss * (np.exp(log_p_NV) - wanted_NV)
        return (dlogits_BTV,)

    return -(wanted_NV * log_p_NV).sum(), backward


def _rows(x_BTD: Array) -> Array:
    return x_BTD.reshape(-1, x_BTD.shape[-1])
