"""The decoder-only language model.

Shapes: B batch, T length, D model width, V vocabulary, N rows of a search.
"""

import torch
from torch import Tensor, nn

from headloom.models.stack import Stack
from headloom.nn.linear import Linear


class LanguageModel(nn.Module):
    """Decoder-only Transformer (Liu et al. 2018, section 4.2.3; Radford et al. 2018, section 3.1).

    `stack` is causal. `output` projects to the vocabulary and has no bias;
    tied, its weight is the embedding's table (Press and Wolf 2017).
    """

    def __init__(self, stack: Stack, output: Linear) -> None:
        super().__init__()
        self.stack = stack
        self.output = output
        self.routes_tokens = stack.routes_tokens

    def forward(
        self,
        token_BT: Tensor,
        stretch_BT: Tensor | None = None,
        position_BT: Tensor | None = None,
        real_BT: Tensor | None = None,
    ) -> Tensor:
        """hidden_BTD that predicts, at each position, the token after it.

        Where several documents share a row, `stretch` numbers them: a token
        sees its own stretch only, and `position` is its place in it. That takes
        a mask, which PyTorch's Flash kernel does not; without stretches
        attention is causal and nothing else, and the kernel is eligible.
        Padding on the right needs no mask: what is real never sees it; only a
        mixture of experts (`routes_tokens`) asks which tokens are real.
        """
        allowed_BTT = None if stretch_BT is None else stretch_BT[:, :, None] == stretch_BT[:, None, :]
        return self.stack(token_BT, allowed_BTT, real_BT, position_BT)

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Scores of every token, in float32."""
        return self.output(hidden_ND).float()

    @property
    def output_weight(self) -> Tensor:
        """weight_VD that turns hidden states into logits."""
        return self.output.weight

    @property
    def max_length(self) -> int | None:
        """Longest text in tokens, bos included; None: any."""
        return self.stack.embedding.positional.max_length

    def start(self, prompt_NT: Tensor, *, max_length: int, context_length: int | None = None) -> "LanguageModelState":
        """The step function of a search whose rows have read `prompt`, which may have no column.

        `max_length`: tokens of a row at most, those of the prompt included.
        `context_length`: the longest text that the model is to see; None: any.
        """
        room = max_length if context_length is None else min(max_length, context_length)
        return LanguageModelState(self, prompt_NT[:, -room:], room)


class LanguageModelState:
    """The model between two steps of a search.

    When a text is longer than the `room` of the cache, the model goes on from
    the last half of it, read anew as if the text began there: the cost of a
    token stays bounded, and no position comes that a longer text would need.
    """

    def __init__(self, model: LanguageModel, prompt_NT: Tensor, room: int) -> None:
        self.model = model
        self.room = room
        self.read(prompt_NT)

    def read(self, token_NT: Tensor) -> Tensor:
        """Forget what was seen and read some tokens; hidden_NTD."""
        self.cache = self.model.stack.start(token_NT.size(0), self.room)
        self.seen_NT = token_NT  # what is in the cache
        if token_NT.size(1) == 0:
            return self.model.output_weight.new_empty(token_NT.size(0), 0, self.model.output_weight.size(1))
        return self.model.stack.step(token_NT, self.cache)

    def step(self, token_N: Tensor) -> Tensor:
        """logits_NV, in float32, of what follows `token_N` in each row."""
        if self.seen_NT.size(1) == self.room:
            kept_NT = self.seen_NT[:, self.seen_NT.size(1) - self.room // 2 :]
            hidden_N1D = self.read(torch.cat([kept_NT, token_N[:, None]], dim=1))[:, -1:]
        else:
            hidden_N1D = self.model.stack.step(token_N[:, None], self.cache)
            self.seen_NT = torch.cat([self.seen_NT, token_N[:, None]], dim=1)
        return self.model.logits(hidden_N1D[:, 0])

    def reorder(self, index_N: Tensor) -> None:
        """Row i continues what row `index_N[i]` was; there may be fewer rows than before."""
        self.seen_NT = self.seen_NT[index_N.to(self.seen_NT.device)]
        self.cache.reorder(index_N)
