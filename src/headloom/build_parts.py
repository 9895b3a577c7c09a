"""From configuration to the exchangeable parts of a model, the same for every family. The families: build_model.py."""

from collections.abc import Callable
from functools import partial
from typing import assert_never

from torch import nn
from torch.nn import functional as F

from headloom.config import schema_parts, schema_position
from headloom.config.schema import TrainConfig
from headloom.config.schema_model import Initialization, Seq2SeqConfig
from headloom.models.seq2seq import Decoder
from headloom.models.stack import Embedding, Stack
from headloom.nn import init, masks, rope_scaling
from headloom.nn.attention import MultiHeadAttention
from headloom.nn.blocks import DecoderBlock, EncoderBlock
from headloom.nn.feed_forward import FeedForward, GatedFeedForward, gelu_tanh, squared_relu
from headloom.nn.mixture import MixtureOfExperts
from headloom.nn.norm import LayerNorm, RMSNorm
from headloom.nn.positional import Learned, Positional, Rotary, Sinusoidal
from headloom.nn.relative import Alibi, RelativeBuckets
from headloom.nn.residual import Branch, DeepNorm, PostNorm, PreNorm, Residual, SandwichNorm

WIDTH_MULTIPLE = 8  # an inner width that is computed, not given, is rounded up to this

Residuals = Callable[[], Residual]


class Parts:
    """The exchangeable parts, as the configuration chooses them; each call makes new weights.

    A family asks for whole stacks (`encoder`, `causal_stack`, `decoder`), adds
    what it has of its own, and calls `initialise` on the whole.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.model = config.model
        self._pattern = self._attention_pattern()
        # One for all layers of all stacks: its tables are computed once.
        self._shared_position = self._without_weights()
        self._scaled: list[tuple[nn.Module, float]] = []

    def encoder(self, table: nn.Embedding, *, num_layers: int) -> Stack:
        """Blocks in which every token sees every other."""
        return self._stack(table, num_layers, causal=False)

    def causal_stack(self, table: nn.Embedding, *, num_layers: int) -> Stack:
        """Blocks in which a token sees itself and those before it: a decoder-only model."""
        return self._stack(table, num_layers, causal=True)

    def _stack(self, table: nn.Embedding, num_layers: int, *, causal: bool) -> Stack:
        position = self._self_position(causal=causal)
        alpha, beta = self._deepnorm(num_layers, is_decoder=False)
        built = Stack(
            self.embedding(table),
            [
                EncoderBlock(self._self_attention(position), self.feed_forward(), residual, causal=causal)
                for residual in self._residuals(num_layers, alpha)
            ],
            self.last_norm(),
        )
        self._scaled.append((built, beta))
        return built

    def decoder(self, table: nn.Embedding, *, num_layers: int) -> Decoder:
        """Causal blocks that also attend to an encoder's output."""
        position = self._self_position(causal=True)
        alpha, beta = self._deepnorm(num_layers, is_decoder=True)
        built = Decoder(
            self.embedding(table),
            [
                DecoderBlock(self._self_attention(position), self.cross_attention(), self.feed_forward(), residual)
                for residual in self._residuals(num_layers, alpha)
            ],
            self.last_norm(),
        )
        self._scaled.append((built, beta))
        return built

    def initialise(self, model: nn.Module, *, num_residuals: int) -> None:
        """Initial weights of the whole model; `num_residuals` is the number of sub-layers on its longest stack."""
        match self.model.initialization:
            case Initialization.xavier:
                init.xavier(model)
            case Initialization.normal:
                init.small_normal(model, num_residuals=num_residuals)
            case _:
                assert_never(self.model.initialization)
        for stack, beta in self._scaled:
            if beta != 1:
                init.scale_for_depth(stack, beta)
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
            token_dropout=self.model.token_dropout,
        )

    def _self_attention(self, position: Positional | None) -> MultiHeadAttention:
        return self._attention(position, self._pattern)

    def cross_attention(self) -> MultiHeadAttention:
        # Source and target positions have no common measure: nothing is turned, biased or out of reach.
        return self._attention(None, None)

    def _attention(self, position: Positional | None, pattern: masks.Pattern | None) -> MultiHeadAttention:
        config, model = self.config.attention, self.model
        head_width = model.d_model // model.num_heads
        return MultiHeadAttention(
            model.d_model,
            model.num_heads,
            num_kv_heads=model.num_kv_heads,
            bias=model.bias if config.bias is None else config.bias,
            dropout=self.dropout(model.attention_dropout),
            positional=position,
            pattern=pattern,
            soft_cap=config.soft_cap,
            query_norm=self.norm(head_width) if self.config.norm.query_key else None,
            key_norm=self.norm(head_width) if self.config.norm.query_key else None,
        )

    def feed_forward(self) -> nn.Module:
        config, model = self.config.feed_forward, self.model
        match config:
            case schema_parts.MoeConfig():
                kind = schema_parts.FeedForwardKind[config.expert.name]
                width = config.d_ff or _width(kind, model.d_ff, parts=config.num_experts)
                return MixtureOfExperts(
                    model.d_model,
                    [self._feed_forward(kind, width) for _ in range(config.num_experts)],
                    num_chosen=config.num_chosen,
                    capacity_factor=config.capacity_factor,
                    load_balance_weight=config.load_balance_weight,
                    router_z_weight=config.router_z_weight,
                )
            case _:
                return self._feed_forward(config.kind, config.d_ff or _width(config.kind, model.d_ff))

    def _feed_forward(self, kind: schema_parts.FeedForwardKind, width: int) -> nn.Module:
        config, model = self.config.feed_forward, self.model
        bias = model.bias if config.bias is None else config.bias
        dropout = self.dropout(model.activation_dropout)
        plain = partial(FeedForward, model.d_model, width, bias=bias, dropout=dropout)
        gated = partial(GatedFeedForward, model.d_model, width, bias=bias, dropout=dropout)
        match kind:
            case schema_parts.FeedForwardKind.relu:
                return plain(activation=F.relu)
            case schema_parts.FeedForwardKind.gelu:
                return plain(activation=F.gelu)
            case schema_parts.FeedForwardKind.gelu_tanh:
                return plain(activation=gelu_tanh)
            case schema_parts.FeedForwardKind.relu2:
                return plain(activation=squared_relu)
            case schema_parts.FeedForwardKind.swiglu:
                return gated(activation=F.silu)
            case schema_parts.FeedForwardKind.geglu:
                return gated(activation=F.gelu)
            case schema_parts.FeedForwardKind.moe:
                raise AssertionError("an expert is no mixture")
            case _:
                assert_never(kind)

    def _residuals(self, num_layers: int, alpha: float) -> list[Residuals]:
        """What makes the residual connections of each layer, from the first on."""
        return [partial(self.residual, depth=(layer + 1) / num_layers, alpha=alpha) for layer in range(num_layers)]

    def residual(self, *, depth: float = 1.0, alpha: float = 1.0) -> Residual:
        """`depth`: where in its stack, 1 at the last layer (Huang et al. 2016, equation 4). `alpha`: of DeepNorm."""
        model = self.model
        dropout = self.dropout(model.residual_dropout)
        drop_probability = model.stochastic_depth * depth
        branch = None
        if drop_probability > 0 or model.residual_scale != 1:
            branch = Branch(scale=model.residual_scale, drop_probability=drop_probability)
        norm = self.norm(model.d_model)
        match self.config.norm.placement:
            case schema_parts.NormPlacement.pre:
                return PreNorm(norm, dropout, branch=branch)
            case schema_parts.NormPlacement.post:
                return PostNorm(norm, dropout, branch=branch)
            case schema_parts.NormPlacement.deepnorm:
                return DeepNorm(norm, dropout, alpha=alpha, branch=branch)
            case schema_parts.NormPlacement.sandwich:
                return SandwichNorm(norm, self.norm(model.d_model), dropout, branch=branch)
            case _:
                assert_never(self.config.norm.placement)

    def last_norm(self) -> nn.Module:
        """Pre-norm and sandwich leave the stream itself unnormalised; the others end in a norm already."""
        match self.config.norm.placement:
            case schema_parts.NormPlacement.pre | schema_parts.NormPlacement.sandwich:
                return self.norm(self.model.d_model)
            case schema_parts.NormPlacement.post | schema_parts.NormPlacement.deepnorm:
                return nn.Identity()
            case _:
                assert_never(self.config.norm.placement)

    def norm(self, width: int) -> nn.Module:
        config = self.config.norm
        norm: Callable[..., nn.Module]
        match config.kind:
            case schema_parts.NormKind.layer:
                norm = LayerNorm
            case schema_parts.NormKind.rms:
                norm = RMSNorm
            case _:
                assert_never(config.kind)
        return norm(width, epsilon=config.epsilon)

    def _deepnorm(self, num_layers: int, *, is_decoder: bool) -> tuple[float, float]:
        """alpha of the residual stream and beta of the initial weights."""
        if self.config.norm.placement is not schema_parts.NormPlacement.deepnorm:
            return 1.0, 1.0
        if not isinstance(self.model, Seq2SeqConfig):
            return init.deepnorm_constants(num_layers)
        if is_decoder:
            return init.deepnorm_constants_of_decoder(self.model.decoder_layers)
        return init.deepnorm_constants_of_encoder(self.model.encoder_layers, self.model.decoder_layers)

    def _added_positions(self) -> Positional:
        """What is added to the embeddings, for one stack."""
        position = self.config.position
        match position:
            case schema_position.SinusoidalConfig():
                return Sinusoidal(self.model.d_model, base=position.base, scale=position.scale)
            case schema_position.LearnedConfig():
                return Learned(self.model.d_model, max_length=position.max_length)
            case _:
                return Positional()

    def _self_position(self, *, causal: bool) -> Positional | None:
        """What enters the self-attention of all layers of one stack."""
        position = self.config.position
        if isinstance(position, schema_position.T5Config):
            return RelativeBuckets(
                self.model.num_heads,
                num_buckets=position.num_buckets,
                max_distance=position.max_distance,
                causal=causal,
            )
        return self._shared_position

    def _without_weights(self) -> Positional | None:
        position, model = self.config.position, self.model
        match position:
            case schema_position.RopeConfig():
                return Rotary(
                    model.d_model // model.num_heads,
                    base=position.base,
                    share=position.share,
                    scaling=build_rope_scaling(position, max_length=self.config.data.max_length),
                )
            case schema_position.AlibiConfig():
                return Alibi(model.num_heads)
            case _:
                return None

    def _attention_pattern(self) -> masks.Pattern | None:
        config = self.config.attention
        match config:
            case schema_parts.WindowConfig():
                return masks.Window(config.width)
            case schema_parts.BlockSparseConfig():
                return masks.BlockSparse(config.block, num_local=config.num_local, num_global=config.num_global)
            case _:
                return None


def build_rope_scaling(position: schema_position.RopeConfig, *, max_length: int) -> rope_scaling.RopeScaling:
    """`max_length`: of a sequence in the training."""
    factor = 1.0 if position.factor is None else position.factor
    original_length = position.original_length or max_length
    match position.scaling:
        case schema_position.Scaling.none:
            return rope_scaling.Unscaled()
        case schema_position.Scaling.linear:
            return rope_scaling.Linear(factor)
        case schema_position.Scaling.ntk:
            return rope_scaling.Ntk(factor)
        case schema_position.Scaling.dynamic_ntk:
            return rope_scaling.DynamicNtk(factor, original_length)
        case schema_position.Scaling.yarn:
            return rope_scaling.Yarn(factor, original_length)
        case _:
            assert_never(position.scaling)


def _width(kind: schema_parts.FeedForwardKind, d_ff: int, *, parts: int = 1) -> int:
    """Inner width that gives `parts` feed-forwards of a kind the parameters of one with two matrices of `d_ff`."""
    gated = kind in (schema_parts.FeedForwardKind.swiglu, schema_parts.FeedForwardKind.geglu)
    if not gated and parts == 1:
        return d_ff
    shares = parts * 3 if gated else parts * 2
    return -(-d_ff * 2 // (shares * WIDTH_MULTIPLE)) * WIDTH_MULTIPLE
