"""Options of the group `model`: the families. Their exchangeable parts: schema_parts.py and schema_position.py.

To add a family: a member of the enum, a dataclass here, a line in
`schema.CHOICES`, a file under conf/, and a function in build_model.py.
"""

from dataclasses import dataclass
from enum import Enum

from omegaconf import MISSING

from headloom.config import rules
from headloom.errors import ConfigError


class ModelKind(Enum):
    seq2seq = "seq2seq"  # encoder-decoder: Vaswani et al. (2017), section 3
    classifier = "classifier"  # encoder with a head: Devlin et al. (2019), figure 4
    lm = "lm"  # decoder only: Radford et al. (2018), section 3.1


class Tying(Enum):
    none = "none"  # three matrices: source embedding, target embedding, output
    decoder = "decoder"  # target embedding = output: Press and Wolf (2017)
    all = "all"  # one matrix for all three: Vaswani et al. (2017), section 3.4; needs a joint tokenizer


class Initialization(Enum):
    xavier = "xavier"  # uniform, by the width of both sides: Glorot and Bengio (2010)
    normal = "normal"  # standard deviation 0.02: Radford et al. (2018)


@dataclass(kw_only=True)
class ModelConfig:
    """What every model family has. `size=` sets the widths and depths together."""

    kind: ModelKind = MISSING
    """The family; set by model=."""
    d_model: int = 256
    """Width of the residual stream."""
    num_layers: int = 3
    """Layers of the stack, or of each stack."""
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
    token_dropout: float = 0.0
    """Probability that the whole embedding of a token is dropped in training, its position apart, in [0, 1):
    Iyyer et al. (2015), section 2.3. Against overfitting to single words of a small corpus."""
    attention_dropout: float | None = None
    """Dropout of the attention weights. null: model.dropout."""
    activation_dropout: float | None = None
    """Dropout of the feed-forward's inner activations. null: model.dropout."""
    residual_dropout: float | None = None
    """Dropout of what a sublayer adds to the residual stream. null: model.dropout."""
    stochastic_depth: float = 0.0
    """Probability that a row of a batch leaves out a sublayer of the last layer in training, in [0, 1); it falls in a
    straight line to the first layers. Huang et al. (2016), equation 4."""
    residual_scale: float = 1.0
    """What a sublayer's output is multiplied by before it is added to the residual stream."""
    scale_embedding: bool = True
    """Multiply the embeddings by sqrt(d_model), as Vaswani et al. (2017), section 3.4."""
    bias: bool = True
    """Give the linear layers of attention and feed-forward a bias; attention.bias and feed_forward.bias refine it."""
    initialization: Initialization = Initialization.xavier
    """How matrices start: xavier (uniform) or normal (standard deviation 0.02)."""

    def __post_init__(self) -> None:
        rules.follows_group("model", "kind", self)
        rules.at_least("model.d_model", self.d_model, 1)
        rules.at_least("model.num_layers", self.num_layers, 1)
        rules.at_least("model.num_heads", self.num_heads, 1)
        rules.at_least("model.num_kv_heads", self.num_kv_heads, 1)
        rules.at_least("model.d_ff", self.d_ff, 1)
        for place in ("dropout", "embedding_dropout", "attention_dropout", "activation_dropout", "residual_dropout"):
            rules.share(f"model.{place}", getattr(self, place))
        rules.share("model.token_dropout", self.token_dropout)
        rules.share("model.stochastic_depth", self.stochastic_depth)
        rules.above_zero("model.residual_scale", self.residual_scale)
        if self.d_model % self.num_heads:
            raise ConfigError(
                f"model.d_model={self.d_model} is not a multiple of model.num_heads={self.num_heads}: change one"
            )
        if self.num_kv_heads is not None and self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"model.num_kv_heads={self.num_kv_heads} does not divide model.num_heads={self.num_heads}: change one"
            )

    @property
    def drops(self) -> bool:
        """Whether two passes in training differ."""
        places = (self.embedding_dropout, self.attention_dropout, self.activation_dropout, self.residual_dropout)
        return self.stochastic_depth > 0 or any((self.dropout if place is None else place) > 0 for place in places)


@dataclass(kw_only=True)
class Seq2SeqConfig(ModelConfig):
    """Encoder-decoder: Vaswani et al. (2017), section 3."""

    kind: ModelKind = ModelKind.seq2seq
    """The family; set by model=."""
    num_encoder_layers: int | None = None
    """Layers of the encoder. null: model.num_layers."""
    num_decoder_layers: int | None = None
    """Layers of the decoder. null: model.num_layers."""
    tying: Tying = Tying.all
    """Which of source embedding, target embedding and output matrix are one: none, decoder (target and output) or
    all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.at_least("model.num_encoder_layers", self.num_encoder_layers, 1)
        rules.at_least("model.num_decoder_layers", self.num_decoder_layers, 1)

    @property
    def encoder_layers(self) -> int:
        """`num_encoder_layers` with its default."""
        return self.num_layers if self.num_encoder_layers is None else self.num_encoder_layers

    @property
    def decoder_layers(self) -> int:
        """`num_decoder_layers` with its default."""
        return self.num_layers if self.num_decoder_layers is None else self.num_decoder_layers
