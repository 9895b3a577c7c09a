"""Our models as graphs of ONNX: tensors in, tensors out.

The names of inputs and outputs, and what they hold, are described in
docs/export.md. The cache is one tensor, with axes batch, layer, key and value,
head, token, channel: a search reorders it along its first axis.

Shapes: B batch, T (target) length, S source or key length, D model width, G key/value heads, K head width,
        V vocabulary, L layers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headloom.export.onnx_parts import traceable
from headloom.models.classifier import Classifier
from headloom.models.embedder import Embedder
from headloom.models.lm import LanguageModel
from headloom.models.masked import MaskedLanguageModel
from headloom.models.seq2seq import DecoderState, Seq2Seq
from headloom.nn.attention import MultiHeadAttention
from headloom.nn.blocks import DecoderBlock
from headloom.nn.cache import Cache, KeyValues

ENCODER, DECODER = "encoder.onnx", "decoder.onnx"


class Grown(KeyValues):
    """Keys and values of which every append makes new tensors."""

    def __init__(self, key_NGSK: Tensor, value_NGSK: Tensor) -> None:
        self.key_NGSK, self.value_NGSK = key_NGSK, value_NGSK
        self.length = key_NGSK.size(2)

    def append(self, key_NGTK: Tensor, value_NGTK: Tensor) -> tuple[Tensor, Tensor]:
        self.key_NGSK = torch.cat([self.key_NGSK, key_NGTK], dim=2)
        self.value_NGSK = torch.cat([self.value_NGSK, value_NGTK], dim=2)
        return self.filled()

    def filled(self) -> tuple[Tensor, Tensor]:
        return self.key_NGSK, self.value_NGSK


class GrownCache(Cache):
    """The `layers` of a stack from and to one tensor, with axes batch, layer, key and value, head, token, channel."""

    def __init__(self, both_NL2GSK: Tensor) -> None:
        self.layers = [Grown(*both_N2GSK.unbind(1)) for both_N2GSK in both_NL2GSK.unbind(1)]

    def whole(self) -> Tensor:
        return torch.stack([torch.stack(layer.filled(), dim=1) for layer in self.layers], dim=1)


class SourceReader(nn.Module):
    """The encoder of an encoder-decoder, with the keys and values that every step of the decoder asks for."""

    def __init__(self, model: Seq2Seq, pad_id: int) -> None:
        super().__init__()
        self.model = model
        self.pad_id = pad_id

    def forward(self, source_BS: Tensor) -> tuple[Tensor, Tensor]:
        """memory_BL2GSK, and memory_allowed_BS, which is True on what is no padding."""
        allowed_BS = source_BS != self.pad_id
        memory_BSD = self.model.encode(source_BS, allowed_BS)
        blocks = [block for block in self.model.decoder.blocks if isinstance(block, DecoderBlock)]
        keys_values = [block.cross_attention.keys_values(memory_BSD) for block in blocks]
        return torch.stack([torch.stack(pair, dim=1) for pair in keys_values], dim=1), allowed_BS


class TargetWriter(nn.Module):
    """The decoder of an encoder-decoder, for one token of each row."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, token_B1: Tensor, memory_BL2GSK: Tensor, memory_allowed_BS: Tensor, past_BL2GTK: Tensor
    ) -> tuple[Tensor, Tensor]:
        """logits_BV of the next token, and `past` with this one."""
        own = GrownCache(past_BL2GTK)
        state = DecoderState(self.model, own, GrownCache(memory_BL2GSK), memory_allowed_BS, beam_size=1)
        return state.step(token_B1[:, 0]), own.whole()


class TextWriter(nn.Module):
    """A language model, for the next tokens of each row, of one number in all rows."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, token_BT: Tensor, past_BL2GSK: Tensor) -> tuple[Tensor, Tensor]:
        """logits_BV behind the last token, and `past` with all of them."""
        cache = GrownCache(past_BL2GSK)
        hidden_BTD = self.model.stack.step(token_BT, cache)
        return self.model.logits(hidden_BTD[:, -1]), cache.whole()


class TextReader(nn.Module):
    """What `base.Reader` gives of a batch: a classifier's or tagger's logits, a vector, or a masked model's logits."""

    def __init__(self, model: Classifier | Embedder | MaskedLanguageModel, pad_id: int) -> None:
        super().__init__()
        self.model = model
        self.pad_id = pad_id

    def forward(self, token_BS: Tensor) -> Tensor:
        out: Tensor = self.model(token_BS, token_BS != self.pad_id)
        if isinstance(self.model, MaskedLanguageModel):
            out = out @ self.model.output_weight.T
        return out


@dataclass(frozen=True)
class Graph:
    """A module to trace, its inputs by name (of any numbers), their axes that vary, and the names of its outputs."""

    module: nn.Module
    inputs: Mapping[str, Tensor]
    axes: Mapping[str, Mapping[int, str]]
    outputs: Sequence[str]


def graphs(model: nn.Module, *, pad_id: int, num_positions: int) -> dict[str, Graph]:
    """The graphs of a model by the names of their files.

    `pad_id`: of the tokens that an encoder reads. `num_positions`: rows of the tables of sinusoids and rotary angles.
    """
    model = traceable(model, num_positions)
    # No two sizes alike, none 0 or 1: what is alike in the example is taken to be always so.
    num_rows, num_tokens, num_before, num_read = 3, 4, 5, 7
    token_BS = torch.ones(num_rows, num_read, dtype=torch.int64)
    rows, reads, past = {0: "batch"}, {0: "batch", 1: "source_length"}, {0: "batch", 4: "length"}
    match model:
        case Seq2Seq():
            encoder = Graph(
                SourceReader(model, pad_id), {"source": token_BS}, {"source": reads}, ["memory", "memory_allowed"]
            )
            blocks = model.decoder.blocks
            decoder = Graph(
                TargetWriter(model),
                {
                    "token": token_BS[:, :1],
                    "memory": _cache(blocks, num_rows, num_read),
                    "memory_allowed": torch.ones(num_rows, num_read, dtype=torch.bool),
                    "past": _cache(blocks, num_rows, num_before),
                },
                {"token": rows, "memory": {0: "batch", 4: "source_length"}, "memory_allowed": reads, "past": past},
                ["logits", "present"],
            )
            return {ENCODER: encoder, DECODER: decoder}
        case LanguageModel():
            decoder = Graph(
                TextWriter(model),
                {"token": token_BS[:, :num_tokens], "past": _cache(model.stack.blocks, num_rows, num_before)},
                {"token": {0: "batch", 1: "num_tokens"}, "past": past},
                ["logits", "present"],
            )
            return {DECODER: decoder}
        case Classifier() | Embedder() | MaskedLanguageModel():
            return {ENCODER: Graph(TextReader(model, pad_id), {"source": token_BS}, {"source": reads}, ["output"])}
        case _:
            raise AssertionError(type(model))


def _cache(blocks: nn.ModuleList, num_rows: int, length: int) -> Tensor:
    attention = blocks[0].self_attention
    assert isinstance(attention, MultiHeadAttention)
    return torch.zeros(num_rows, len(blocks), 2, attention.num_kv_heads, length, attention.head_width)
