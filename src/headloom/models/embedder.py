"""The encoder that makes a vector of a sentence.

Shapes: B batch, S length of a row, D model width.
"""

import torch
from torch import Tensor, nn

from headloom.models.classifier import Pool
from headloom.models.stack import Stack


class Embedder(nn.Module):
    """Encoder Transformer and a pool: one vector a row, whose direction is what it says of the text."""

    def __init__(self, encoder: Stack, pool: Pool) -> None:
        super().__init__()
        self.encoder = encoder
        self.pool = pool

    def forward(self, token_BS: Tensor, allowed_BS: Tensor | None) -> Tensor:
        """vector_BD, in float32 (float64 of a float64 model). `allowed` is True on real tokens; None: all are."""
        hidden_BSD = self.encoder(token_BS, allowed_BS)
        with torch.autocast(token_BS.device.type, enabled=False):
            vector_BD: Tensor = self.pool(hidden_BSD, allowed_BS)
            return vector_BD

    @property
    def max_length(self) -> int | None:
        """Longest row in tokens, bos and eos included; None: any."""
        return self.encoder.embedding.positional.max_length
