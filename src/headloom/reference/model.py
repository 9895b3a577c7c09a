"""The three families of Transformer in NumPy.

A family returns logits and a `backward`: given the gradient for the logits, it
returns the gradients of all weights by name. `allowed` is True on real tokens,
which may be attended to; None: all are.

Shapes: see parts.py; C classes.
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from headloom.reference import parts
from headloom.reference.layers import Layers
from headloom.reference.parts import Array, Result

Gradients = Callable[[Array], dict[str, Array]]


class Transformer(Layers):
    def seq2seq(self, source_BS: Array, allowed_BS: Array | None, target_BT: Array) -> tuple[Array, Gradients]:
        """logits_BTV of the token after each of `target`: Vaswani et al. (2017), figure 1."""
        memory_BSD, encoder_backward = self.encoder(source_BS, allowed_BS)
        keys_B11S = None if allowed_BS is None else allowed_BS[:, None, None]
        hidden_BTD, decoder_backward = self.decoder(target_BT, None, None, memory_BSD, keys_B11S)
        logits_BTV, output_backward = self.output(hidden_BTD)
        return logits_BTV, self._gradients(output_backward, decoder_backward, encoder_backward)

    def language_model(
        self, token_BT: Array, allowed_BTT: Array | None = None, position_BT: Array | None = None
    ) -> tuple[Array, Gradients]:
        """logits_BTV of the token after each: a decoder without encoder, Radford et al. (2018), section 3.1.

        For documents that share a row, `allowed` narrows the causal mask and `position` counts within each.
        """
        hidden_BTD, decoder_backward = self.decoder(token_BT, allowed_BTT, position_BT)
        logits_BTV, output_backward = self.output(hidden_BTD)
        return logits_BTV, self._gradients(output_backward, decoder_backward)

    def classifier(self, token_BS: Array, allowed_BS: Array | None) -> tuple[Array, Gradients]:
        """logits_BC: an encoder, its first or mean vector, and a linear map, Devlin et al. (2019), section 4.1."""
        hidden_BSD, encoder_backward = self.encoder(token_BS, allowed_BS)
        counts_BS = np.ones(token_BS.shape) if allowed_BS is None else allowed_BS
        if self.settings.pooling == "cls":
            counts_BS = np.eye(1, token_BS.shape[1])
        share_BS1 = (counts_BS / counts_BS.sum(1, keepdims=True)).astype(hidden_BSD.dtype)[:, :, None]
        logits_BC, head_backward = self.linear("head", (share_BS1 * hidden_BSD).sum(1), self.settings.num_classes)

        def pool_backward(dpooled_BD: Array) -> tuple[Array]:
            return (share_BS1 * dpooled_BD[:, None],)

        return logits_BC, self._gradients(head_backward, pool_backward, encoder_backward)

    def encoder(self, token_BS: Array, allowed_BS: Array | None) -> Result:
        """memory_BSD: Vaswani et al. (2017), section 3.1."""
        return self._stack("encoder", token_BS, None if allowed_BS is None else allowed_BS[:, None, None], None)

    def decoder(self, token_BT: Array, allowed_BTT: Array | None, position_BT: Array | None, *memory: Any) -> Result:
        """hidden_BTD: Vaswani et al. (2017), section 3.1. `memory`: memory_BSD and allowed_B11S, or nothing."""
        allowed_BTT = parts.causal(token_BT.shape[1])[None] & (True if allowed_BTT is None else allowed_BTT)
        return self._stack("decoder", token_BT, allowed_BTT[:, None], position_BT, *memory)

    def _stack(
        self, stack: str, token_BT: Array, allowed_B1TT: Array | None, position_BT: Array | None, *memory: Any
    ) -> Result:
        """Layers of self-attention, attention to `memory` where there is one, feed-forward: Vaswani et al. (2017), 3.1.

        Its backward returns dmemory_BSD where there is a memory: tokens have no gradient.
        """
        if position_BT is None:
            position_BT = np.broadcast_to(np.arange(token_BT.shape[1]), token_BT.shape)

        def self_attention(name: str, y_BTD: Array) -> Result:
            out_BTD, backward = self.attention(name, y_BTD, y_BTD, allowed_B1TT, position_BT=position_BT)
            return out_BTD, lambda dout_BTD: (sum(backward(dout_BTD)),)

        def cross_attention(name: str, y_BTD: Array) -> Result:
            return self.attention(name, y_BTD, *memory, position_BT=None)  # the two have no common measure of order

        sublayers = {"self": self_attention, "cross": cross_attention, "feed_forward": self.feed_forward}
        x_BTD, embed_backward = self.embed(stack, token_BT, position_BT)
        backwards = []
        for layer, kind in product(range(self.settings.num_layers[stack]), sublayers):
            if kind != "cross" or memory:
                name = f"{stack}.{layer}.{kind}"
                x_BTD, residual_backward = self.residual(name, x_BTD, partial(sublayers[kind], name))
                backwards.append(residual_backward)
        if self.settings.placement == "pre":  # post-norm ends in a norm already
            x_BTD, norm_backward = self.norm(f"{stack}.norm", x_BTD)
            backwards.append(norm_backward)

        def backward(dx_BTD: Array) -> tuple[Any, ...]:
            dmemories: list[Array] = []
            for sublayer_backward in reversed(backwards):
                dx_BTD, *dmemory = sublayer_backward(dx_BTD)
                dmemories += dmemory
            embed_backward(dx_BTD)
            return (sum(dmemories),) if memory else ()

        return x_BTD, backward

    def _gradients(self, *backwards: Callable[..., tuple[Array, ...]]) -> Gradients:
        """One after the other, each given what the last returned."""

        def backward(dlogits: Array) -> dict[str, Array]:
            self.gradients = {}
            gradients: tuple[Array, ...] = (dlogits,)
            for part_backward in backwards:
                gradients = part_backward(*gradients)
            return self.gradients

        return backward
