"""The sub-layers of a Transformer, put together from `parts` and from weights with names.

A sub-layer returns its value and a `backward` for its array arguments, as a
part does; the gradients of weights are added up in `gradients` on the way, so
that one used twice (a tied table) gets the sum.

Shapes: see parts.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from headloom.reference import parts
from headloom.reference.parts import Array, Result

Shapes = dict[str, tuple[int, ...]]
Watch = Callable[[str, Array, str], None]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the equations leave open."""

    d_model: int
    num_heads: int
    num_kv_heads: int
    d_ff: int
    num_layers: dict[str, int]  # of the "encoder" and the "decoder", where there is one
    vocab_size: dict[str, int]
    num_classes: int = 0
    pooling: Literal["cls", "mean"] = "cls"
    position: Literal["none", "sinusoidal", "learned", "rope", "alibi"] = "sinusoidal"
    max_length: int = 512  # of the learned positions
    rope_base: float = 10_000.0
    placement: Literal["pre", "post"] = "pre"
    norm: Literal["layer", "rms"] = "layer"
    epsilon: float = 1e-5
    activation: Literal["relu", "gelu", "swiglu"] = "relu"
    bias: bool = True
    tying: Literal["none", "decoder", "all"] = "none"  # which are one: none, target table and output, or all three
    scale_embedding: bool = True


class Layers:
    """Sub-layers over one dictionary of weights.

    A weight that is not in it is drawn from `rng`, a NumPy Generator, when it is
    first used: a new model starts from an empty dictionary. `watch` is told each
    array, with its name and equation, as it is computed.
    """

    def __init__(
        self, settings: Settings, weights: dict[str, Array], rng: Any = None, watch: Watch = lambda *_: None
    ) -> None:
        self.settings, self.weights, self.rng, self.watch = settings, weights, rng, watch
        self.gradients: dict[str, Array] = {}

    def residual(self, name: str, x_BTD: Array, sublayer: Callable[[Array], Result]) -> Result:
        """pre: x + f(norm(x)), Xiong et al. (2020), figure 1b. post: norm(x + f(x)), Vaswani et al. (2017), 3.1.

        Its backward returns dx_BTD and whatever else the sub-layer's does.
        """
        is_pre = self.settings.placement == "pre"
        y_BTD, before = self.norm(f"{name}.norm", x_BTD) if is_pre else (x_BTD, lambda dy_BTD: (dy_BTD,))
        f_BTD, sublayer_backward = sublayer(y_BTD)
        out_BTD, after = (x_BTD + f_BTD, lambda d: (d,)) if is_pre else self.norm(f"{name}.norm", x_BTD + f_BTD)

        def backward(dout_BTD: Array) -> tuple[Array, ...]:
            (dsum_BTD,) = after(dout_BTD)
            dy_BTD, *others = sublayer_backward(dsum_BTD)
            return dsum_BTD + before(dy_BTD)[0], *others

        return out_BTD, backward

    def attention(
        self, name: str, x_BTD: Array, memory_BSD: Array, allowed_B1TS: Array | None, *, position_BT: Array | None
    ) -> Result:
        """Multi-head attention: Vaswani et al. (2017), section 3.2.2. Its backward returns dx_BTD, dmemory_BSD."""
        D, H, G = self.settings.d_model, self.settings.num_heads, self.settings.num_kv_heads
        q_BTE, query_backward = self.linear(f"{name}.query", x_BTD, D)
        kv_BSE, key_value_backward = self.linear(f"{name}.key_value", memory_BSD, D // H * 2 * G)
        q_BHTK = parts.split_heads(q_BTE, H)
        k_BGSK, v_BGSK = np.split(parts.split_heads(kv_BSE, 2 * G), 2, axis=1)
        bias_HTS = None
        if self.settings.position == "rope" and position_BT is not None:
            q_BHTK, turn_q_back = parts.rotate(q_BHTK, position_BT, base=self.settings.rope_base)
            k_BGSK, turn_k_back = parts.rotate(k_BGSK, position_BT, base=self.settings.rope_base)
        elif self.settings.position == "alibi" and position_BT is not None:
            bias_HTS = parts.alibi(H, q_BHTK.shape[2], k_BGSK.shape[2])
        out_BHTK, weights_BHTS, product_backward = parts.attention(q_BHTK, k_BGSK, v_BGSK, allowed_B1TS, bias_HTS)
        out_BTD, output_backward = self.linear(f"{name}.output", parts.merge_heads(out_BHTK), D)
        for array_name, array in ("q_BHTK", q_BHTK), ("k_BGSK", k_BGSK), ("v_BGSK", v_BGSK):
            self.watch(f"{name}.{array_name}", array, f"x W^{array_name[0].upper()}: Vaswani et al. (2017), 3.2.2")
        self.watch(f"{name}.weights_BHTS", weights_BHTS, "softmax(q k^T / sqrt(K)): Vaswani et al. (2017), eq. 1")
        self.watch(f"{name}.out_BHTK", out_BHTK, "weights v: Vaswani et al. (2017), eq. 1")
        self.watch(f"{name}.out_BTD", out_BTD, "heads joined, times W^O: Vaswani et al. (2017), 3.2.2")

        def backward(dout_BTD: Array) -> tuple[Array, Array]:
            (dout_BTE,) = output_backward(dout_BTD)
            dq_BHTK, dk_BGSK, dv_BGSK = product_backward(parts.split_heads(dout_BTE, H))
            if self.settings.position == "rope" and position_BT is not None:
                dq_BHTK, dk_BGSK = turn_q_back(dq_BHTK)[0], turn_k_back(dk_BGSK)[0]
            dkv_BSE = parts.merge_heads(np.concatenate([dk_BGSK, dv_BGSK], axis=1))
            return *query_backward(parts.merge_heads(dq_BHTK)), *key_value_backward(dkv_BSE)

        return out_BTD, backward

    def feed_forward(self, name: str, x_BTD: Array) -> Result:
        """f(x W) V: Vaswani et al. (2017), section 3.3, equation 2. A gated f halves the width it gets."""
        activation = {"relu": parts.relu, "gelu": parts.gelu, "swiglu": parts.swiglu}[self.settings.activation]
        num_up = self.settings.d_ff * (2 if self.settings.activation == "swiglu" else 1)
        up_BTE, up_backward = self.linear(f"{name}.up", x_BTD, num_up)
        inner_BTF, activation_backward = activation(up_BTE)
        out_BTD, down_backward = self.linear(f"{name}.down", inner_BTF, self.settings.d_model)
        self.watch(f"{name}.inner_BTF", inner_BTF, "f(x W): Vaswani et al. (2017), eq. 2")
        self.watch(f"{name}.out_BTD", out_BTD, "f(x W) V: Vaswani et al. (2017), eq. 2")
        return out_BTD, lambda dout_BTD: up_backward(*activation_backward(*down_backward(dout_BTD)))

    def embed(self, stack: str, token_BT: Array, position_BT: Array) -> Result:
        """Rows of the table, scaled, plus positions: Vaswani et al. (2017), 3.4 and 3.5. Tokens have no gradient."""
        D = self.settings.d_model
        table, position = "decoder.table" if self.settings.tying == "all" else f"{stack}.table", f"{stack}.position"
        scale = D**0.5 if self.settings.scale_embedding else 1.0
        x_BTD, table_backward = parts.embed(
            token_BT, self.weight(table, self.settings.vocab_size[stack], D), scale=scale
        )
        if self.settings.position == "sinusoidal":
            x_BTD += parts.sinusoids(position_BT, D)
        elif self.settings.position == "learned":  # Gehring et al. (2017), section 3.1
            x_BTD += self.weight(position, self.settings.max_length, D)[position_BT]
        self.watch(f"{stack}.x_BTD", x_BTD, "embedding plus position: Vaswani et al. (2017), 3.4, 3.5")

        def backward(dx_BTD: Array) -> tuple[()]:
            self._add(table, *table_backward(dx_BTD))
            if self.settings.position == "learned":
                self._add(position, *parts.embed(position_BT, self.weights[position], scale=1)[1](dx_BTD))
            return ()

        return x_BTD, backward

    def norm(self, name: str, x_BTD: Array) -> Result:
        D, epsilon = self.settings.d_model, self.settings.epsilon
        if self.settings.norm == "rms":
            return self._learned(parts.rms_norm, x_BTD, {f"{name}.gain": (D,)}, epsilon=epsilon)
        return self._learned(parts.layer_norm, x_BTD, {f"{name}.gain": (D,), f"{name}.bias": (D,)}, epsilon=epsilon)

    def linear(self, name: str, x_BTD: Array, num_out: int) -> Result:
        shapes: Shapes = {f"{name}.weight": (x_BTD.shape[-1], num_out)}
        return self._learned(parts.linear, x_BTD, shapes | ({f"{name}.bias": (num_out,)} if self.settings.bias else {}))

    def output(self, hidden_BTD: Array) -> Result:
        """One logit a token of the vocabulary, h Wᵀ; tied, W is a table: Press and Wolf (2017), section 3."""
        name = "output.table" if self.settings.tying == "none" else "decoder.table"
        weight_VD = self.weight(name, self.settings.vocab_size["decoder"], self.settings.d_model)
        logits_BTV, linear_backward = parts.linear(hidden_BTD, weight_VD.T)
        self.watch("logits_BTV", logits_BTV, "linear map before the softmax: Vaswani et al. (2017), 3.4")

        def backward(dlogits_BTV: Array) -> tuple[Array]:
            dhidden_BTD, dweight_DV, _ = linear_backward(dlogits_BTV)
            self._add(name, dweight_DV.T)
            return (dhidden_BTD,)

        return logits_BTV, backward

    def weight(self, name: str, *shape: int) -> Array:
        """The weight of that name; drawn in float32 if there is none.

        Matrices are uniform with variance 2 / (fan in + fan out), Glorot and Bengio (2010), equation 16; tables
        normal with deviation 1 / sqrt(D); gains 1 and biases 0.
        """
        if name not in self.weights:
            assert self.rng is not None, f"{name} is not among the weights"
            if name.endswith(".weight"):
                weight = self.rng.uniform(-((6 / sum(shape)) ** 0.5), (6 / sum(shape)) ** 0.5, shape)
            elif name.endswith((".gain", ".bias")):
                weight = np.full(shape, float(name.endswith(".gain")))
            else:
                weight = self.rng.normal(0, shape[-1] ** -0.5, shape)
            self.weights[name] = weight.astype(np.float32)
        return self.weights[name]

    def _learned(self, part: Callable[..., Result], x_BTD: Array, shapes: Shapes, **options: Any) -> Result:
        """A part with the weights of those names; its backward keeps their gradients and returns dx_BTD."""
        y_BTD, part_backward = part(x_BTD, *(self.weight(name, *shape) for name, shape in shapes.items()), **options)

        def backward(dy_BTD: Array) -> tuple[Array]:
            dx_BTD, *dweights = part_backward(dy_BTD)
            for name, dweight in zip(shapes, dweights, strict=False):  # a linear map without bias returns None for it
                self._add(name, dweight)
            return (dx_BTD,)

        return y_BTD, backward

    def _add(self, name: str, gradient: Array) -> None:
        self.gradients[name] = self.gradients[name] + gradient if name in self.gradients else gradient
