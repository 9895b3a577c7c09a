"""A stack of self-attending blocks on an embedding: an encoder, or with causal blocks a decoder-only model.

Shapes: B batch, T length, D model width, N rows of a search.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headloom.nn.attention import MultiHeadAttention
from headloom.nn.blocks import EncoderBlock
from headloom.nn.cache import Cache
from headloom.nn.dropout import Dropout, dropout
from headloom.nn.positional import Positional
from headloom.nn.residual import to_step_precision


class Embedding(nn.Module):
    """Tokens as vectors: table, scale sqrt(D) (Vaswani et al. 2017, section 3.4), positions, dropout.

    `token_dropout` drops whole tokens, each with this probability, in training: Iyyer et al. (2015), section 2.3.
    A dropped token is zeros, its position stays; the others are scaled so that the expectation is kept.
    """

    def __init__(
        self, table: nn.Embedding, positional: Positional, *, scaled: bool, dropout: float, token_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.table = table
        self.positional = positional
        self.scale = math.sqrt(table.embedding_dim) if scaled else 1.0
        self.dropout = Dropout(dropout)
        self.token_dropout = token_dropout

    def vectors(self, token_BT: Tensor) -> Tensor:
        """x_BTD before positions are added."""
        x_BTD = self.table(token_BT) * self.scale
        if self.training and self.token_dropout:
            x_BTD = x_BTD * dropout(x_BTD.new_ones(*token_BT.shape, 1), self.token_dropout)
        return x_BTD

    def forward(self, token_BT: Tensor, *, first: int = 0, position_BT: Tensor | None = None) -> Tensor:
        """x_BTD. Positions count from `first`, or are those of `position`, where sequences share a row."""
        x_BTD = self.vectors(token_BT)
        if position_BT is None:
            return self.dropout(self.positional.embed(x_BTD, first=first))
        # What every scheme adds depends on the position alone, and positions are below the width of the row.
        added_TD = self.positional.embed(torch.zeros_like(x_BTD[:1]))[0]
        return self.dropout(x_BTD + added_TD[position_BT])


class Stack(nn.Module):
    """Embedding, blocks, and a last norm where the placement asks for one (pre-norm), else nothing."""

    def __init__(self, embedding: Embedding, blocks: Sequence[EncoderBlock], norm: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.routes_tokens = any(block.routes for block in blocks)

    def forward(
        self, token_BT: Tensor, allowed: Tensor | None, real_BT: Tensor | None = None, position_BT: Tensor | None = None
    ) -> Tensor:
        """hidden_BTD. `allowed`: see `MultiHeadAttention.forward`; causal blocks need none against right padding.

        `real` is True on real tokens, for a mixture of experts (`routes_tokens`); None: as `allowed` says.
        `position`: see `Embedding.forward`.
        """
        if real_BT is None and allowed is not None and allowed.dim() == 2:
            real_BT = allowed
        x_BTD = self.embedding(token_BT, position_BT=position_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD, allowed, real_BT)
        # Several layers may read it (every decoder block does): converted once.
        return to_step_precision(self.norm(x_BTD))

    def start(self, num_rows: int, max_length: int) -> Cache:
        """An empty cache of causal blocks: room for `max_length` tokens of each row, in the precision of the step."""
        attention = self.blocks[0].self_attention
        assert isinstance(attention, MultiHeadAttention)
        return Cache(
            num_layers=len(self.blocks),
            num_rows=num_rows,
            max_length=max_length,
            num_kv_heads=attention.num_kv_heads,
            head_width=attention.head_width,
            like=to_step_precision(self.embedding.table.weight.new_empty(0)),
        )

    def step(self, token_NT: Tensor, cache: Cache, allowed: Tensor | None = None) -> Tensor:
        """hidden_NTD of the next T tokens of each row, as `forward` has them at those places; causal blocks only.

        `allowed` as in `forward`, over all keys so far.
        """
        x_NTD = self.embedding(token_NT, first=cache.length)
        if token_NT.size(1) == 1 and allowed is None:
            x_ND = x_NTD[:, 0]
            for block, layer in zip(self.blocks, cache.layers, strict=True):
                assert isinstance(block, EncoderBlock)
                x_ND = block.next_step(x_ND, layer)
            return to_step_precision(self.norm(x_ND))[:, None]
        for block, layer in zip(self.blocks, cache.layers, strict=True):
            assert isinstance(block, EncoderBlock)
            x_NTD = block.step(x_NTD, layer, allowed)
        return to_step_precision(self.norm(x_NTD))
