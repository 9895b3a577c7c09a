"""From configuration to the exchangeable parts of a model, the same for every family. The families: build_model.py."""

from collections.abc import Callable
from typing import assert_never

from torch import nn
from torch.nn import functional as F

from headloom.config import schema_model as schema
from headloom.config.schema import TrainConfig
from headloom.models.seq2seq import Decoder
from headloom.models.stack import Embedding, Stack
from headloom.nn import init
from headloom.nn.attention import MultiHeadAttention
from headloom.nn.blocks import DecoderBlock, EncoderBlock, PostNorm, PreNorm
from headloom.nn.feed_forward import FeedForward, SwiGLU
from headloom.nn.norm import LayerNorm, RMSNorm
from headloom.nn.positional import Learned, Positional, Rotary, Sinusoidal

GATED_WIDTH_MULTIPLE = 8  # the two thirds of a gated feed-forward are rounded up to this


class Parts:
    """The exchangeable parts, as the configuration chooses them; each call makes new weights.

    A family asks for whole stacks (`encoder`, `causal_stack`, `decoder`), adds
    what it has of its own, and calls `initialise` on the whole.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.model = config.model
        # One for all layers of both stacks: its tables are computed once.
        self.rotary = self._rotary()

    def encoder(self, table: nn.Embedding, *, num_layers: int) -> Stack:
        """Blocks in which every token sees every other."""
        return self._stack(table, num_layers, causal=False)

    def causal_stack(self, table: nn.Embedding, *, num_layers: int) -> Stack:
        """Blocks in which a token sees itself and those before it: a decoder-only model."""
        return self._stack(table, num_layers, causal=True)

    def _stack(self, table: nn.Embedding, num_layers: int, *, causal: bool) -> Stack:
        return Stack(
            self.embedding(table),
            [
                EncoderBlock(self.attention(), self.feed_forward(), self.residual, causal=causal)
                for _ in range(num_layers)
            ],
            self.last_norm(),
        )

    def decoder(self, table: nn.Embedding, *, num_layers: int) -> Decoder:
        """Causal blocks that also attend to an encoder's output."""
        return Decoder(
            self.embedding(table),
            [
                DecoderBlock(self.attention(), self.cross_attention(), self.feed_forward(), self.residual)
                for _ in range(num_layers)
            ],
            self.last_norm(),
        )

    def initialise(self, model: nn.Module, *, num_residuals: int) -> None:
        """Initial weights of the whole model; `num_residuals` is the number of sub-layers on its longest stack."""
        match self.model.initialization:
            case schema.Initialization.xavier:
                init.xavier(model)
            case schema.Initialization.normal:
                init.small_normal(model, num_residuals=num_residuals)
            case _:
                assert_never(self.model.initialization)
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                init.embedding(module)

    def dropout(self, place: float | None) -> float:
        return self.model.dropout if place is None else place

    def embedding(self, table: nn.Embedding) -> Embedding:
        return Embedding(
            table,
            self._added_positions(),
            scaled=self.model.scale_embedding,
            dropout=self.dropout(self.model.embedding_dropout),
        )

    def attention(self) -> MultiHeadAttention:
        return self._attention(self.rotary)

    def cross_attention(self) -> MultiHeadAttention:
        # Source and target positions have no common measure: nothing is turned.
        return self._attention(None)

    def _attention(self, positional: Positional | None) -> MultiHeadAttention:
        return MultiHeadAttention(
            self.model.d_model,
            self.model.num_heads,
            num_kv_heads=self.model.num_kv_heads,
            bias=self.model.bias,
            dropout=self.dropout(self.model.attention_dropout),
            positional=positional,
        )

    def feed_forward(self) -> nn.Module:
        config, model = self.config.feed_forward, self.model
        dropout = self.dropout(model.activation_dropout)
        match config.kind:
            case schema.FeedForwardKind.relu | schema.FeedForwardKind.gelu:
                activation = F.relu if config.kind is schema.FeedForwardKind.relu else F.gelu
                return FeedForward(
                    model.d_model, config.d_ff or model.d_ff, activation=activation, bias=model.bias, dropout=dropout
                )
            case schema.FeedForwardKind.swiglu:
                return SwiGLU(model.d_model, config.d_ff or _gated_width(model.d_ff), bias=model.bias, dropout=dropout)
            case _:
                assert_never(config.kind)

    def residual(self) -> nn.Module:
        dropout = self.dropout(self.model.residual_dropout)
        match self.config.norm.placement:
            case schema.NormPlacement.pre:
                return PreNorm(self._norm(), dropout)
            case schema.NormPlacement.post:
                return PostNorm(self._norm(), dropout)
            case _:
                assert_never(self.config.norm.placement)

    def last_norm(self) -> nn.Module:
        """Pre-norm leaves the stream itself unnormalised; post-norm ends in a norm already."""
        return self._norm() if self.config.norm.placement is schema.NormPlacement.pre else nn.Identity()

    def _norm(self) -> nn.Module:
        config = self.config.norm
        norm: Callable[..., nn.Module]
        match config.kind:
            case schema.NormKind.layer:
                norm = LayerNorm
            case schema.NormKind.rms:
                norm = RMSNorm
            case _:
                assert_never(config.kind)
        return norm(self.model.d_model, epsilon=config.epsilon)

    def _added_positions(self) -> Positional:
        position = self.config.position
        match position:
            case schema.SinusoidalConfig():
                return Sinusoidal(self.model.d_model)
            case schema.LearnedConfig():
                return Learned(self.model.d_model, max_length=position.max_length)
            case _:
                return Positional()

    def _rotary(self) -> Positional | None:
        position = self.config.position
        if isinstance(position, schema.RopeConfig):
            return Rotary(self.model.d_model // self.model.num_heads, base=position.base)
        return None


def _gated_width(d_ff: int) -> int:
    """Two thirds, rounded up: three matrices of it have as many parameters as two of `d_ff`."""
    return -(-d_ff * 2 // (3 * GATED_WIDTH_MULTIPLE)) * GATED_WIDTH_MULTIPLE
