"""Transformer blocks: where the residual stream (residual.py) and the sub-layers meet.

Shapes: B batch, T query length, S key length, D model width.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from headloom.nn.attention import MultiHeadAttention
from headloom.nn.cache import KeyValues
from headloom.nn.mixture import MixtureOfExperts
from headloom.nn.residual import Residual


class EncoderBlock(nn.Module):
    """Self-attention and feed-forward: Vaswani et al. (2017), section 3.1. `causal`: of a decoder-only model."""

    def __init__(
        self,
        self_attention: MultiHeadAttention,
        feed_forward: nn.Module,
        residual: Callable[[], Residual],
        *,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.self_attention = self_attention
        self.self_residual = residual()
        self.feed_forward = feed_forward
        self.feed_forward_residual = residual()
        self.routes = isinstance(feed_forward, MixtureOfExperts)

    def forward(self, x_BTD: Tensor, allowed: Tensor | None, real_BT: Tensor | None = None) -> Tensor:
        """`allowed`: see `MultiHeadAttention.forward`. `real`: see `MixtureOfExperts.forward`; others do not ask."""
        x_BTD = self.self_residual(x_BTD, lambda x: self.self_attention(x, x, allowed, causal=self.causal))
        feed_forward = partial(self.feed_forward, real_BT=real_BT) if self.routes else self.feed_forward
        return self.feed_forward_residual(x_BTD, feed_forward)

    def step(self, x_NTD: Tensor, cache: KeyValues, allowed: Tensor | None = None) -> Tensor:
        """A causal block for the next T tokens of every row: equals the last T positions of `forward`."""
        assert self.causal
        x_NTD = self.self_residual.step(x_NTD, lambda x: self.self_attention.step(x, cache, allowed))
        return self.feed_forward_residual.step(x_NTD, self.feed_forward.forward)

    def next_step(self, x_ND: Tensor, cache: KeyValues) -> Tensor:
        """`step` for one token of every row."""
        assert self.causal
        x_ND = self.self_residual.step(x_ND, lambda x: self.self_attention.next_step(x, cache))
        return self.feed_forward_residual.step(x_ND, self.feed_forward.forward)


class DecoderBlock(nn.Module):
    """Masked self-attention, attention to the encoder's output, feed-forward: Vaswani et al. (2017), section 3.1."""

    def __init__(
        self,
        self_attention: MultiHeadAttention,
        cross_attention: MultiHeadAttention,
        feed_forward: nn.Module,
        residual: Callable[[], Residual],
    ) -> None:
        super().__init__()
        self.self_attention = self_attention
        self.self_residual = residual()
        self.cross_attention = cross_attention
        self.cross_residual = residual()
        self.feed_forward = feed_forward
        self.feed_forward_residual = residual()
        self.routes = isinstance(feed_forward, MixtureOfExperts)

    def forward(
        self,
        x_BTD: Tensor,
        memory_BSD: Tensor,
        memory_allowed_BS: Tensor | None,
        real_BT: Tensor | None = None,
    ) -> Tensor:
        x_BTD = self.self_residual(x_BTD, lambda x: self.self_attention(x, x, None, causal=True))
        x_BTD = self.cross_residual(
            x_BTD, lambda x: self.cross_attention(x, memory_BSD, memory_allowed_BS, causal=False)
        )
        feed_forward = partial(self.feed_forward, real_BT=real_BT) if self.routes else self.feed_forward
        return self.feed_forward_residual(x_BTD, feed_forward)

    def next_step(self, x_ND: Tensor, own: KeyValues, memory: KeyValues, memory_allowed_BS: Tensor | None) -> Tensor:
        """The block for the next token of every hypothesis: equals the last position of `forward`.

        `memory` holds what `cross_attention.keys_values` makes of the encoder's
        output, once a sentence: its hypotheses are neighbouring rows of `x`.
        """
        x_ND = self.self_residual.step(x_ND, lambda x: self.self_attention.next_step(x, own))
        x_ND = self.cross_residual.step(
            x_ND, lambda x: self.cross_attention.next_step_across(x, memory, memory_allowed_BS)
        )
        return self.feed_forward_residual.step(x_ND, self.feed_forward.forward)
