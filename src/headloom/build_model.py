"""From configuration to a model. With build.py the only place that sees configuration and parts both."""

from collections.abc import Callable
from typing import assert_never

from torch import nn
from torch.nn import functional as F

from headloom.config import schema_model as schema
from headloom.config.schema import TrainConfig
from headloom.models.seq2seq import Decoder, Embedding, Encoder, Seq2Seq
from headloom.nn import init
from headloom.nn.attention import MultiHeadAttention
from headloom.nn.blocks import DecoderBlock, EncoderBlock, PostNorm, PreNorm
from headloom.nn.feed_forward import FeedForward, SwiGLU
from headloom.nn.norm import LayerNorm, RMSNorm
from headloom.nn.positional import Learned, Positional, Rotary, Sinusoidal

GATED_WIDTH_MULTIPLE = 8  # the two thirds of a gated feed-forward are rounded up to this


def build_model(config: TrainConfig, *, source_vocab_size: int, target_vocab_size: int) -> Seq2Seq:
    """A freshly initialised model; vocabulary sizes come from the tokenizers, never from a file.

    Raises:
        ValueError: `model.tying=all` with two vocabularies.
    """
    model = config.model
    assert isinstance(model, schema.Seq2SeqConfig)
    parts = _Parts(config)
    target_table = nn.Embedding(target_vocab_size, model.d_model)
    output = nn.Linear(model.d_model, target_vocab_size, bias=False)
    match model.tying:
        case schema.Tying.all:
            if source_vocab_size != target_vocab_size:
                raise ValueError(
                    f"model.tying=all needs one vocabulary, not {source_vocab_size} and {target_vocab_size}"
                )
            source_table = target_table
        case schema.Tying.decoder | schema.Tying.none:
            source_table = nn.Embedding(source_vocab_size, model.d_model)
        case _:
            assert_never(model.tying)
    built = Seq2Seq(
        Encoder(
            parts.embedding(source_table),
            [
                EncoderBlock(parts.attention(), parts.feed_forward(), parts.residual)
                for _ in range(model.num_encoder_layers)
            ],
            parts.last_norm(),
        ),
        Decoder(
            parts.embedding(target_table),
            [
                DecoderBlock(parts.attention(), parts.cross_attention(), parts.feed_forward(), parts.residual)
                for _ in range(model.num_decoder_layers)
            ],
            parts.last_norm(),
        ),
        output,
    )
    num_residuals = max(2 * model.num_encoder_layers, 3 * model.num_decoder_layers)
    _initialise(built, model, num_residuals=num_residuals)
    if model.tying is not schema.Tying.none:
        output.weight = target_table.weight
    return built


class _Parts:
    """The exchangeable parts, as the configuration chooses them; each call makes new weights."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.model = config.model
        # One for all layers of both stacks: its tables are computed once.
        self.rotary = self._rotary()

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


def _initialise(model: nn.Module, config: schema.ModelConfig, *, num_residuals: int) -> None:
    match config.initialization:
        case schema.Initialization.xavier:
            init.xavier(model)
        case schema.Initialization.normal:
            init.small_normal(model, num_residuals=num_residuals)
        case _:
            assert_never(config.initialization)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            init.embedding(module)
