"""The encoder that predicts hidden tokens.

Shapes: B batch, S length of a row, D model width, V vocabulary.
"""

import torch
from torch import Tensor, nn

from headloom.models.stack import Embedding, Stack
from headloom.nn.positional import Positional


class MaskEmbedding(Embedding):
    """Token embeddings with a vector of its own for one more id: that of a hidden token.

    The table stays that of the tokenizer's ids, so that it has the shape of
    every other encoder's with the same tokenizer.
    """

    def __init__(
        self, table: nn.Embedding, positional: Positional, *, scaled: bool, dropout: float, mask_id: int
    ) -> None:
        super().__init__(table, positional, scaled=scaled, dropout=dropout)
        self.mask = nn.Embedding(1, table.embedding_dim)
        self.mask_id = mask_id

    def vectors(self, token_BT: Tensor) -> Tensor:
        is_mask_BT = token_BT == self.mask_id
        x_BTD = self.table(token_BT.masked_fill(is_mask_BT, 0))
        return torch.where(is_mask_BT[..., None], self.mask.weight[0], x_BTD) * self.scale


class MaskedLanguageModel(nn.Module):
    """Encoder Transformer whose output at a hidden token says what was there: Devlin et al. (2019), section 3.1.

    `output` projects to the vocabulary and has no bias; its weight is the
    table of the embedding (Press and Wolf 2017).
    """

    def __init__(self, encoder: Stack, output: nn.Linear) -> None:
        super().__init__()
        self.encoder = encoder
        self.output = output

    def forward(self, token_BS: Tensor, allowed_BS: Tensor | None) -> Tensor:
        """hidden_BSD. `allowed` is True on real tokens; None: all are."""
        hidden_BSD: Tensor = self.encoder(token_BS, allowed_BS)
        return hidden_BSD

    @property
    def output_weight(self) -> Tensor:
        """weight_VD that turns hidden states into logits."""
        return self.output.weight

    @property
    def max_length(self) -> int | None:
        """Longest row in tokens; None: any."""
        return self.encoder.embedding.positional.max_length
