"""Options of what is computed: the model and its exchangeable parts.

To add a choice to a group: a member of its enum, a dataclass here, a line in
`schema.CHOICES`, a file under conf/, and an arm of the `match` in build.py.
"""

from dataclasses import dataclass
from enum import Enum

from omegaconf import MISSING

from headloom.config import rules
from headloom.errors import ConfigError


class ModelKind(Enum):
    seq2seq = "seq2seq"  # encoder-decoder: Vaswani et al. (2017), section 3


class Tying(Enum):
    none = "none"  # three matrices: source embedding, target embedding, output
    decoder = "decoder"  # target embedding = output: Press and Wolf (2017)
    all = "all"  # one matrix for all three: Vaswani et al. (2017), section 3.4; needs a joint tokenizer


class Initialization(Enum):
    xavier = "xavier"  # uniform, by the width of both sides: Glorot and Bengio (2010)
    normal = "normal"  # standard deviation 0.02: Radford et al. (2018)


class PositionKind(Enum):
    none = "none"
    sinusoidal = "sinusoidal"
    learned = "learned"
    rope = "rope"


class NormPlacement(Enum):
    pre = "pre"  # x + f(norm(x)): Xiong et al. (2020), figure 1b
    post = "post"  # norm(x + f(x)): Vaswani et al. (2017), section 3.1


class NormKind(Enum):
    layer = "layer"  # Ba et al. (2016)
    rms = "rms"  # Zhang and Sennrich (2019): no mean is subtracted, no bias is added


class FeedForwardKind(Enum):
    relu = "relu"
    gelu = "gelu"
    swiglu = "swiglu"


@dataclass(kw_only=True)
class ModelConfig:
    """What every model family has. `size=` sets the widths and depths together."""

    kind: ModelKind = MISSING
    """The family; set by model=."""
    d_model: int = 256
    """Width of the residual stream."""
    num_heads: int = 8
    """Query heads; must divide d_model."""
    num_kv_heads: int | None = None
    """Key/value heads; must divide num_heads. null: as many as num_heads."""
    d_ff: int = 1024
    """Inner width of a feed-forward without gate. A gated one is two thirds as wide, rounded up to a multiple of 8,
    so that it has as many parameters."""
    dropout: float = 0.1
    """Probability that a value is dropped in training, in [0, 1); the four options below refine it."""
    embedding_dropout: float | None = None
    """Dropout of the embeddings (positions added). null: model.dropout."""
    attention_dropout: float | None = None
    """Dropout of the attention weights. null: model.dropout."""
    activation_dropout: float | None = None
    """Dropout of the feed-forward's inner activations. null: model.dropout."""
    residual_dropout: float | None = None
    """Dropout of what a sublayer adds to the residual stream. null: model.dropout."""
    tying: Tying = Tying.all
    """Which of source embedding, target embedding and output matrix are one: none, decoder (target and output) or
    all."""
    scale_embedding: bool = True
    """Multiply the embeddings by sqrt(d_model), as Vaswani et al. (2017), section 3.4."""
    bias: bool = True
    """Give the linear layers of attention and feed-forward a bias."""
    initialization: Initialization = Initialization.xavier
    """How matrices start: xavier (uniform) or normal (standard deviation 0.02)."""

    def __post_init__(self) -> None:
        rules.follows_group("model", "kind", self)
        rules.at_least("model.d_model", self.d_model, 1)
        rules.at_least("model.num_heads", self.num_heads, 1)
        rules.at_least("model.num_kv_heads", self.num_kv_heads, 1)
        rules.at_least("model.d_ff", self.d_ff, 1)
        for place in ("dropout", "embedding_dropout", "attention_dropout", "activation_dropout", "residual_dropout"):
            rules.share(f"model.{place}", getattr(self, place))
        if self.d_model % self.num_heads:
            raise ConfigError(
                f"model.d_model={self.d_model} is not a multiple of model.num_heads={self.num_heads}: change one"
            )
        if self.num_kv_heads is not None and self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"model.num_kv_heads={self.num_kv_heads} does not divide model.num_heads={self.num_heads}: change one"
            )


@dataclass(kw_only=True)
class Seq2SeqConfig(ModelConfig):
    """Encoder-decoder: Vaswani et al. (2017), section 3."""

    kind: ModelKind = ModelKind.seq2seq
    """The family; set by model=."""
    num_encoder_layers: int = 3
    """Layers of the encoder."""
    num_decoder_layers: int = 3
    """Layers of the decoder."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.at_least("model.num_encoder_layers", self.num_encoder_layers, 1)
        rules.at_least("model.num_decoder_layers", self.num_decoder_layers, 1)


@dataclass(kw_only=True)
class PositionConfig:
    """How the order of tokens enters the model."""

    kind: PositionKind = MISSING
    """The scheme; set by position=."""

    def __post_init__(self) -> None:
        rules.follows_group("position", "kind", self)


@dataclass(kw_only=True)
class NoPositionConfig(PositionConfig):
    """Nothing is added: order is known only through the decoder's causal mask."""

    kind: PositionKind = PositionKind.none
    """The scheme; set by position=."""


@dataclass(kw_only=True)
class SinusoidalConfig(PositionConfig):
    """Sines and cosines added to the embeddings: Vaswani et al. (2017), section 3.5."""

    kind: PositionKind = PositionKind.sinusoidal
    """The scheme; set by position=."""


@dataclass(kw_only=True)
class LearnedConfig(PositionConfig):
    """A learned vector for each position, added to the embeddings: Gehring et al. (2017), section 3.1."""

    kind: PositionKind = PositionKind.learned
    """The scheme; set by position=."""
    max_length: int = 512
    """Positions in the table, in tokens; data.max_length and decoding.max_length may not pass it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.at_least("position.max_length", self.max_length, 1)


@dataclass(kw_only=True)
class RopeConfig(PositionConfig):
    """Queries and keys turned by an angle that grows with the position: Su et al. (2021), section 3.2.2."""

    kind: PositionKind = PositionKind.rope
    """The scheme; set by position=."""
    base: float = 10000.0
    """Base of the angles: channel pair i of a head K wide turns by base^(-2i/K) radians a position."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.above_zero("position.base", self.base)


@dataclass(kw_only=True)
class NormConfig:
    """Where the residual stream is normalised, and how."""

    placement: NormPlacement = MISSING
    """Before each sublayer or after its addition; set by norm=."""
    kind: NormKind = NormKind.layer
    """layer (LayerNorm) or rms (RMSNorm)."""
    epsilon: float = 1e-5
    """Added to the variance before the root."""

    def __post_init__(self) -> None:
        rules.follows_group("norm", "placement", self)
        rules.above_zero("norm.epsilon", self.epsilon)


@dataclass(kw_only=True)
class PreNormConfig(NormConfig):
    """x + f(norm(x)), with a last norm on top of each stack: Xiong et al. (2020), figure 1b."""

    placement: NormPlacement = NormPlacement.pre
    """Before each sublayer or after its addition; set by norm=."""


@dataclass(kw_only=True)
class PostNormConfig(NormConfig):
    """norm(x + f(x)): Vaswani et al. (2017), section 3.1. Wants a longer warm-up than pre."""

    placement: NormPlacement = NormPlacement.post
    """Before each sublayer or after its addition; set by norm=."""


@dataclass(kw_only=True)
class FeedForwardConfig:
    """The position-wise feed-forward of each layer."""

    kind: FeedForwardKind = MISSING
    """The activation; set by feed_forward=."""
    d_ff: int | None = None
    """Inner width, taken as it stands. null: from model.d_ff, two thirds of it with a gate."""

    def __post_init__(self) -> None:
        rules.follows_group("feed_forward", "kind", self)
        rules.at_least("feed_forward.d_ff", self.d_ff, 1)


@dataclass(kw_only=True)
class ReluConfig(FeedForwardConfig):
    """max(0, xW) V: Vaswani et al. (2017), section 3.3."""

    kind: FeedForwardKind = FeedForwardKind.relu
    """The activation; set by feed_forward=."""


@dataclass(kw_only=True)
class GeluConfig(FeedForwardConfig):
    """gelu(xW) V: Hendrycks and Gimpel (2016)."""

    kind: FeedForwardKind = FeedForwardKind.gelu
    """The activation; set by feed_forward=."""


@dataclass(kw_only=True)
class SwigluConfig(FeedForwardConfig):
    """(silu(xW) * xU) V, a gated unit: Shazeer (2020), equation 6."""

    kind: FeedForwardKind = FeedForwardKind.swiglu
    """The activation; set by feed_forward=."""
