"""The encoder-decoder.

Shapes: B batch, S source length, T target length, D model width, V vocabulary,
        N rows of a search (hypotheses of all sentences).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from headloom.models.stack import Embedding, Stack
from headloom.nn.blocks import DecoderBlock
from headloom.nn.cache import Cache
from headloom.nn.linear import Linear
from headloom.nn.residual import to_step_precision


class Decoder(nn.Module):
    def __init__(self, embedding: Embedding, blocks: Sequence[DecoderBlock], norm: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm

    def forward(
        self,
        token_BT: Tensor,
        memory_BSD: Tensor,
        memory_allowed_BS: Tensor | None,
        real_BT: Tensor | None = None,
    ) -> Tensor:
        x_BTD = self.embedding(token_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD, memory_BSD, memory_allowed_BS, real_BT)
        return to_step_precision(self.norm(x_BTD))


class Seq2Seq(nn.Module):
    """Encoder-decoder Transformer (Vaswani et al. 2017, figure 1).

    `output` projects to the target vocabulary and has no bias; tied, its weight
    is the decoder's table. `encoder` and `decoder` end in `norm` where the
    placement asks for it (pre-norm), else in nothing.
    """

    def __init__(self, encoder: Stack, decoder: Decoder, output: Linear) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.output = output
        self.routes_tokens = encoder.routes_tokens

    def forward(
        self,
        source_BS: Tensor,
        source_allowed_BS: Tensor | None,
        target_input_BT: Tensor,
        target_real_BT: Tensor | None = None,
    ) -> Tensor:
        """hidden_BTD that predicts, at each position, the token after it.

        Attention needs no mask against padding on the right of the target; only a
        mixture of experts (`routes_tokens`) asks which target tokens are real.
        """
        memory_BSD = self.encode(source_BS, source_allowed_BS)
        return self.decoder(target_input_BT, memory_BSD, source_allowed_BS, target_real_BT)

    def encode(self, source_BS: Tensor, source_allowed_BS: Tensor | None) -> Tensor:
        """memory_BSD. `source_allowed` is True on real tokens; None: all are."""
        return self.encoder(source_BS, source_allowed_BS)

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Scores of every target token, in float32."""
        return self.output(hidden_ND).float()

    @property
    def output_weight(self) -> Tensor:
        """weight_VD that turns hidden states into logits."""
        return self.output.weight

    @property
    def max_length(self) -> int | None:
        """Longest source or target in tokens, bos and eos included; None: any."""
        return self.encoder.embedding.positional.max_length

    def start(
        self, memory_BSD: Tensor, source_allowed_BS: Tensor | None, *, beam_size: int, max_length: int
    ) -> "DecoderState":
        """The step function of a search with `beam_size` rows a sentence and at most `max_length` steps."""
        blocks = [block for block in self.decoder.blocks if isinstance(block, DecoderBlock)]
        num_sentences, source_length, _ = memory_BSD.shape
        keys_values = [block.cross_attention.keys_values(memory_BSD) for block in blocks]
        memory, own = (
            Cache(
                num_layers=len(blocks),
                num_rows=num_rows,
                max_length=length,
                num_kv_heads=attention.num_kv_heads,
                head_width=attention.head_width,
                like=keys_values[0][0],
            )
            for attention, num_rows, length in (
                (blocks[0].cross_attention, num_sentences, source_length),
                (blocks[0].self_attention, num_sentences * beam_size, max_length),
            )
        )
        for layer, (key_BGSK, value_BGSK) in zip(memory.layers, keys_values, strict=True):
            layer.append(key_BGSK, value_BGSK)
        return DecoderState(self, own, memory, source_allowed_BS, beam_size)


@dataclass
class DecoderState:
    """The decoder between two steps of a search. Row b * beam_size + k is hypothesis k of sentence b."""

    model: Seq2Seq
    own: Cache
    memory: Cache
    source_allowed_BS: Tensor | None
    beam_size: int

    def step(self, token_N: Tensor) -> Tensor:
        """logits_NV, in float32, of what follows `token_N` in each row."""
        decoder = self.model.decoder
        x_ND = decoder.embedding(token_N[:, None], first=self.own.length)[:, 0]
        for block, own, memory in zip(decoder.blocks, self.own.layers, self.memory.layers, strict=True):
            assert isinstance(block, DecoderBlock)
            x_ND = block.next_step(x_ND, own, memory, self.source_allowed_BS)
        return self.model.logits(to_step_precision(decoder.norm(x_ND)))

    def reorder(self, index_N: Tensor) -> None:
        """Row i continues what row `index_N[i]` was. Rows stay with their sentence; whole sentences may leave."""
        if index_N.numel() < self.own.num_rows:
            sentence_B = index_N[:: self.beam_size] // self.beam_size
            self.memory.reorder(sentence_B)
            if self.source_allowed_BS is not None:
                self.source_allowed_BS = self.source_allowed_BS[sentence_B.to(self.source_allowed_BS.device)]
        self.own.reorder(index_N)
