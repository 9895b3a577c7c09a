"""Options of the groups `norm`, `feed_forward` and `attention`, and the rules between parts.

To add a choice to a group: a member of its enum, a dataclass here, a line in the
group's dictionary, a file under conf/, and an arm of the `match` in build_parts.py.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from omegaconf import MISSING

from headloom.config import rules
from headloom.errors import ConfigError


class NormPlacement(Enum):
    pre = "pre"  # x + f(norm(x)): Xiong et al. (2020), figure 1b
    post = "post"  # norm(x + f(x)): Vaswani et al. (2017), section 3.1
    deepnorm = "deepnorm"  # norm(alpha x + f(x)): Wang et al. (2022)
    sandwich = "sandwich"  # x + norm(f(norm(x))): Ding et al. (2021), section 2.4


class NormKind(Enum):
    layer = "layer"  # Ba et al. (2016)
    rms = "rms"  # Zhang and Sennrich (2019): no mean is subtracted, no bias is added


@dataclass(kw_only=True)
class NormConfig:
    """Where the residual stream is normalised, and how."""

    placement: NormPlacement = MISSING
    """Before each sublayer or after its addition; set by norm=."""
    kind: NormKind = NormKind.layer
    """layer (LayerNorm) or rms (RMSNorm)."""
    epsilon: float = 1e-5
    """Added to the variance before the root."""
    query_key: bool = False
    """Normalise the queries and keys of each attention head too: Dehghani et al. (2023), section 2."""

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
class DeepNormConfig(NormConfig):
    """norm(alpha x + f(x)), with alpha and smaller initial weights from the depth: Wang et al. (2022), figure 2. Trains
    deeper than post."""

    placement: NormPlacement = NormPlacement.deepnorm
    """Before each sublayer or after its addition; set by norm=."""


@dataclass(kw_only=True)
class SandwichNormConfig(NormConfig):
    """x + norm(f(norm(x))), with a last norm on top of each stack: Ding et al. (2021), section 2.4."""

    placement: NormPlacement = NormPlacement.sandwich
    """Before each sublayer or after its addition; set by norm=."""


NORMS: dict[str, type[Any]] = {
    "pre": PreNormConfig,
    "post": PostNormConfig,
    "deepnorm": DeepNormConfig,
    "sandwich": SandwichNormConfig,
}


class FeedForwardKind(Enum):
    relu = "relu"
    gelu = "gelu"
    gelu_tanh = "gelu_tanh"
    relu2 = "relu2"
    swiglu = "swiglu"
    geglu = "geglu"
    moe = "moe"


class Expert(Enum):
    relu = "relu"
    gelu = "gelu"
    gelu_tanh = "gelu_tanh"
    relu2 = "relu2"
    swiglu = "swiglu"
    geglu = "geglu"


@dataclass(kw_only=True)
class FeedForwardConfig:
    """The position-wise feed-forward of each layer."""

    kind: FeedForwardKind = MISSING
    """The activation; set by feed_forward=."""
    d_ff: int | None = None
    """Inner width, taken as it stands. null: from model.d_ff, so that each kind has as many parameters: two thirds of
    it with a gate, its share of it for each of several experts, rounded up to a multiple of 8."""
    bias: bool | None = None
    """Give the linear layers a bias. null: model.bias."""

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
class GeluTanhConfig(FeedForwardConfig):
    """gelu(xW) V with gelu by a hyperbolic tangent: Hendrycks and Gimpel (2016), section 2."""

    kind: FeedForwardKind = FeedForwardKind.gelu_tanh
    """The activation; set by feed_forward=."""


@dataclass(kw_only=True)
class Relu2Config(FeedForwardConfig):
    """max(0, xW)^2 V: So et al. (2021), section 3.1."""

    kind: FeedForwardKind = FeedForwardKind.relu2
    """The activation; set by feed_forward=."""


@dataclass(kw_only=True)
class SwigluConfig(FeedForwardConfig):
    """(silu(xW) * xU) V, a gated unit: Shazeer (2020), equation 6."""

    kind: FeedForwardKind = FeedForwardKind.swiglu
    """The activation; set by feed_forward=."""


@dataclass(kw_only=True)
class GegluConfig(FeedForwardConfig):
    """(gelu(xW) * xU) V, a gated unit: Shazeer (2020), equation 6."""

    kind: FeedForwardKind = FeedForwardKind.geglu
    """The activation; set by feed_forward=."""


@dataclass(kw_only=True)
class MoeConfig(FeedForwardConfig):
    """A mixture of experts: a router sends each token to a few of several feed-forwards. Shazeer et al. (2017),
    section 2. Its losses are counted by sequence and over real tokens, so that they do not depend on how an update is
    split, and shown as train/load_balance_loss (1 when all experts are used alike) and train/router_z_loss."""

    kind: FeedForwardKind = FeedForwardKind.moe
    """The activation; set by feed_forward=."""
    num_experts: int = 8
    """Feed-forwards to choose from in each layer."""
    num_chosen: int = 2
    """Experts that compute a token; at most num_experts."""
    expert: Expert = Expert.swiglu
    """What each expert is: relu, gelu, gelu_tanh, relu2, swiglu or geglu."""
    capacity_factor: float | None = None
    """In training an expert takes at most this many times its even share of a sequence's tokens; what comes later
    passes it by, and train/dropped_assignments shows the share. null: nothing is dropped, as always in evaluation."""
    load_balance_weight: float = 0.01
    """Weight in the training loss of Fedus et al. (2022), equation 4, averaged over layers. 0: none."""
    router_z_weight: float = 0.001
    """Weight in the training loss of the squared log-sum-exp of the router's logits (Zoph et al. 2022, equation 5),
    averaged over layers. 0: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.at_least("feed_forward.num_experts", self.num_experts, 2)
        rules.at_least("feed_forward.num_chosen", self.num_chosen, 1)
        rules.above_zero("feed_forward.capacity_factor", self.capacity_factor)
        rules.at_least("feed_forward.load_balance_weight", self.load_balance_weight, 0)
        rules.at_least("feed_forward.router_z_weight", self.router_z_weight, 0)
        if self.num_chosen > self.num_experts:
            raise ConfigError(
                f"feed_forward.num_chosen={self.num_chosen} passes feed_forward.num_experts={self.num_experts}: "
                "lower it or raise the experts"
            )


FEED_FORWARDS: dict[str, type[Any]] = {
    "relu": ReluConfig,
    "gelu": GeluConfig,
    "gelu_tanh": GeluTanhConfig,
    "relu2": Relu2Config,
    "swiglu": SwigluConfig,
    "geglu": GegluConfig,
    "moe": MoeConfig,
}


class AttentionKind(Enum):
    full = "full"
    window = "window"
    block_sparse = "block_sparse"


@dataclass(kw_only=True)
class AttentionConfig:
    """What self-attention reaches, and how its scores are bounded. Heads: model.num_heads and model.num_kv_heads;
    dropout: model.attention_dropout. Attention from decoder to encoder always reaches every token."""

    kind: AttentionKind = MISSING
    """The pattern; set by attention=."""
    bias: bool | None = None
    """Give the four linear layers a bias. null: model.bias."""
    soft_cap: float | None = None
    """A score s becomes soft_cap * tanh(s / soft_cap): Gemma Team (2024), section 2. null: unbounded. No fused kernel
    does so: it costs time and memory."""

    def __post_init__(self) -> None:
        rules.follows_group("attention", "kind", self)
        rules.above_zero("attention.soft_cap", self.soft_cap)


@dataclass(kw_only=True)
class FullAttentionConfig(AttentionConfig):
    """Every token reaches every other, or with a causal mask all before it."""

    kind: AttentionKind = AttentionKind.full
    """The pattern; set by attention=."""


@dataclass(kw_only=True)
class WindowConfig(AttentionConfig):
    """A token reaches its neighbours only: Beltagy et al. (2020), section 3.1."""

    kind: AttentionKind = AttentionKind.window
    """The pattern; set by attention=."""
    width: int = 128
    """A token reaches itself and the width - 1 tokens before it, in an encoder as many after it too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.at_least("attention.width", self.width, 1)


@dataclass(kw_only=True)
class BlockSparseConfig(AttentionConfig):
    """A token reaches the blocks around its own, and global ones at the start: the local and global part of Zaheer et
    al. (2020), section 2."""

    kind: AttentionKind = AttentionKind.block_sparse
    """The pattern; set by attention=."""
    block: int = 64
    """Tokens of a block."""
    num_local: int = 1
    """Blocks reached before the own one, in an encoder as many after it too."""
    num_global: int = 1
    """Blocks at the start that every token reaches, and whose tokens reach every token."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.at_least("attention.block", self.block, 1)
        rules.at_least("attention.num_local", self.num_local, 0)
        rules.at_least("attention.num_global", self.num_global, 0)


ATTENTIONS: dict[str, type[Any]] = {
    "full": FullAttentionConfig,
    "window": WindowConfig,
    "block_sparse": BlockSparseConfig,
}
