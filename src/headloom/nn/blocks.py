"""Transformer blocks: where the residual stream (residual.py) and the sub-layers meet.

Shapes: B batch, T query length, S key length, D model width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from headloom.nn.attention import KeyValues, MultiHeadAttention
from headloom.nn.mixture import MixtureOfExperts


class EncoderBlock(nn.Module):
    """Self-attention and feed-forward: Vaswani et al. (2017), section 3.1. `causal`: of a decoder-only model."""

    def __init__(
        self,
        self_attention: MultiHeadAttention,
        feed_forward: nn.Module,
        residual: Callable[[], nn.Module],
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
        x_NTD = self.self_residual(x_NTD, lambda x: self.self_attention.step(x, cache, allowed))
        return self.feed_forward_residual(x_NTD, self.feed_forward)


@dataclass
class BlockCache:
    """What a decoder block keeps between steps: its own keys and values, and those of the encoder's output.

    The encoder's are held once a sentence; `beam_size` neighbouring rows share them.
    """

    own: KeyValues
    key_BGSK: Tensor
    value_BGSK: Tensor


class DecoderBlock(nn.Module):
    """Masked self-attention, attention to the encoder's output, feed-forward: Vaswani et al. (2017), section 3.1."""

    def __init__(
        self,
        self_attention: MultiHeadAttention,
        cross_attention: MultiHeadAttention,
        feed_forward: nn.Module,
        residual: Callable[[], nn.Module],
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

    def start_cache(self, memory_BSD: Tensor, *, beam_size: int, max_length: int) -> BlockCache:
        """An empty cache for `beam_size` hypotheses of each sentence."""
        key_BGSK, value_BGSK = self.cross_attention.keys_values(memory_BSD)
        num_rows = memory_BSD.size(0) * beam_size
        own = self.self_attention.start_cache(num_rows, max_length, like=key_BGSK)
        return BlockCache(own, key_BGSK.contiguous(), value_BGSK.contiguous())

    def step(self, x_N1D: Tensor, cache: BlockCache, memory_allowed_BS: Tensor | None) -> Tensor:
        """The block for the next token of every hypothesis: equals the last position of `forward`."""

        def cross(x_N1D: Tensor) -> Tensor:
            # The hypotheses of a sentence are queries of one product: keys are not copied for each.
            x_BTD = x_N1D.view(cache.key_BGSK.size(0), -1, x_N1D.size(-1))
            q_BHTK = self.cross_attention.queries(x_BTD)
            out_BTD = self.cross_attention.attend(
                q_BHTK, cache.key_BGSK, cache.value_BGSK, memory_allowed_BS, causal=False
            )
            return out_BTD.reshape(x_N1D.shape)

        x_N1D = self.self_residual(x_N1D, lambda x: self.self_attention.step(x, cache.own))
        x_N1D = self.cross_residual(x_N1D, cross)
        return self.feed_forward_residual(x_N1D, self.feed_forward)
