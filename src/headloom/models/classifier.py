"""The encoder with a head: one answer a text, or one a token.

Shapes: B batch, S length of a row, D model width, C outputs (classes, tags, or 1 for a number).
"""

from enum import Enum
from typing import assert_never

import torch
from torch import Tensor, nn

from headloom.models.stack import Embedding, Stack
from headloom.nn.dropout import Dropout
from headloom.nn.positional import Positional


class Pooling(Enum):
    cls = "cls"  # the first position, bos: Devlin et al. (2019), section 3.2
    mean = "mean"  # the average of all positions
    max = "max"  # the largest value of each channel
    attention = "attention"  # an average weighted by what is learned: Lin et al. (2017), section 2.1, with one hop


class Pool(nn.Module):
    """x_BD from x_BSD: one vector for each row, of its real positions only.

    In float32, so that what is learned of it is an `nn.Linear`: ours may hold its
    weights packed in another type (nn/packing.py).
    """

    def __init__(self, pooling: Pooling, d_model: int) -> None:
        super().__init__()
        self.pooling = pooling
        self.score = nn.Linear(d_model, 1) if pooling is Pooling.attention else None

    def forward(self, x_BSD: Tensor, allowed_BS: Tensor | None) -> Tensor:
        """`allowed` is True on real positions; None: all are. A row has one at least: its bos."""
        x_BSD = _at_least_float32(x_BSD)
        match self.pooling:
            case Pooling.cls:
                return x_BSD[:, 0]
            case Pooling.mean:
                if allowed_BS is None:
                    return x_BSD.mean(1)
                return x_BSD.masked_fill(~allowed_BS[..., None], 0.0).sum(1) / allowed_BS.sum(1, keepdim=True)
            case Pooling.max:
                if allowed_BS is not None:
                    x_BSD = x_BSD.masked_fill(~allowed_BS[..., None], torch.finfo(x_BSD.dtype).min)
                return x_BSD.amax(1)
            case Pooling.attention:
                assert self.score is not None
                score_BS = self.score(x_BSD).squeeze(-1)
                if allowed_BS is not None:
                    score_BS = score_BS.masked_fill(~allowed_BS, torch.finfo(score_BS.dtype).min)
                    x_BSD = x_BSD.masked_fill(~allowed_BS[..., None], 0.0)
                return torch.einsum("bs,bsd->bd", score_BS.softmax(-1), x_BSD)
            case _:
                assert_never(self.pooling)


def _at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype is torch.float64 else x.float()


class SegmentEmbedding(Embedding):
    """Token embeddings of which those after the first separator get a vector of their own.

    So the second text of a pair is told from the first (Devlin et al. 2019,
    section 3.2, figure 2). The separator, eos, belongs to the text before it.
    """

    def __init__(
        self,
        table: nn.Embedding,
        positional: Positional,
        *,
        scaled: bool,
        dropout: float,
        separator: int,
        token_dropout: float = 0.0,
    ) -> None:
        super().__init__(table, positional, scaled=scaled, dropout=dropout, token_dropout=token_dropout)
        self.separator = separator
        self.second_D = nn.Parameter(torch.zeros(table.embedding_dim))

    def vectors(self, token_BT: Tensor) -> Tensor:
        is_end_BT = token_BT == self.separator
        is_second_BT = (is_end_BT.cumsum(-1) - is_end_BT.int()) > 0
        return super().vectors(token_BT) + is_second_BT[..., None] * self.second_D


class Classifier(nn.Module):
    """Encoder Transformer with a linear head (Devlin et al. 2019, section 4 and figure 4).

    `pool` makes one vector of a row, and the head one answer of it, an `nn.Linear`
    as in `Pool`; without it the head answers for every position.
    """

    def __init__(self, encoder: Stack, pool: Pool | None, head: nn.Linear, *, dropout: float) -> None:
        super().__init__()
        self.encoder = encoder
        self.pool = pool
        self.dropout = Dropout(dropout)
        self.head = head

    def forward(self, token_BS: Tensor, allowed_BS: Tensor | None) -> Tensor:
        """logits_BC, or logits_BSC without a pool, in float32 (float64 of a float64 model).

        `allowed` is True on real tokens; None: all are.
        """
        x_BSD = self.encoder(token_BS, allowed_BS)
        if self.pool is None:
            return _at_least_float32(self.head(self.dropout(x_BSD)))
        # The head is small: its product in float32 costs nothing and keeps close classes apart.
        with torch.autocast(token_BS.device.type, enabled=False):
            return self.head(self.dropout(self.pool(x_BSD, allowed_BS)))

    @property
    def max_length(self) -> int | None:
        """Longest row in tokens, bos and eos included; None: any."""
        return self.encoder.embedding.positional.max_length
