"""What a class of transformers can express, in our options."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from headloom.config import schema_parts, schema_position
from headloom.config.schema import TrainConfig
from headloom.config.schema_parts import FeedForwardKind, NormKind, NormPlacement
from headloom.config.schema_position import PositionKind, Scaling

PLAIN = (FeedForwardKind.relu, FeedForwardKind.gelu, FeedForwardKind.gelu_tanh, FeedForwardKind.relu2)
GATED = (FeedForwardKind.swiglu, FeedForwardKind.geglu)
TABLES = (PositionKind.none, PositionKind.sinusoidal, PositionKind.learned)
"""Positions that a table of vectors can hold, which a class adds to the embeddings."""
POST = (NormPlacement.post, NormPlacement.deepnorm)
ACTIVATIONS = {
    FeedForwardKind.relu: "relu",
    FeedForwardKind.gelu: "gelu",
    FeedForwardKind.gelu_tanh: "gelu_pytorch_tanh",
    FeedForwardKind.relu2: "relu2",
    FeedForwardKind.swiglu: "silu",
    FeedForwardKind.geglu: "gelu",
}
"""Names in transformers."""


def none(config: TrainConfig) -> list[str]:
    return []


@dataclass(frozen=True, kw_only=True)
class Limits:
    norms: Collection[NormPlacement]
    kind: NormKind
    positions: Collection[PositionKind]
    feed_forwards: Collection[FeedForwardKind]
    epsilon: float | None = None
    """The one that the class has; None: any."""
    query_key: bool = False
    windows: bool = False
    others: Callable[[TrainConfig], list[str]] = none
    """Further options that stand in the way: values of parts, such as a bias."""

    def obstacles(self, config: TrainConfig) -> list[str]:
        """Every option that the class cannot express, as the command line has it."""
        return self.parts(config) + self.details(config)

    def details(self, config: TrainConfig) -> list[str]:
        """Those that choose no part."""
        epsilon = config.norm.epsilon
        return ([] if self.epsilon in (None, epsilon) else [f"norm.epsilon={epsilon}"]) + self.others(config)

    def parts(self, config: TrainConfig) -> list[str]:
        """Those that choose a part."""
        norm, position, attention = config.norm, config.position, config.attention
        scaling = position.scaling if isinstance(position, schema_position.RopeConfig) else None
        is_window = isinstance(attention, schema_parts.WindowConfig)
        found = [
            (position.kind not in self.positions, f"position={position.kind.name}"),
            (scaling is Scaling.dynamic_ntk, "position.scaling=dynamic_ntk"),
            (norm.placement not in self.norms, f"norm={norm.placement.name}"),
            (norm.kind is not self.kind, f"norm.kind={norm.kind.name}"),
            (norm.query_key is not self.query_key, f"norm.query_key={str(norm.query_key).lower()}"),
            (config.feed_forward.kind not in self.feed_forwards, f"feed_forward={config.feed_forward.kind.name}"),
            (
                not (isinstance(attention, schema_parts.FullAttentionConfig) or (self.windows and is_window)),
                f"attention={attention.kind.name}",
            ),
            (attention.soft_cap is not None, f"attention.soft_cap={attention.soft_cap}"),
        ]
        return [option for is_there, option in found if is_there]


def biases(config: TrainConfig) -> list[str]:
    """Options that give linear layers of attention or feed-forward a bias."""
    return attention_biases(config) + feed_forward_biases(config)


def attention_biases(config: TrainConfig) -> list[str]:
    return _bias(config, config.attention.bias, "attention")


def feed_forward_biases(config: TrainConfig) -> list[str]:
    return _bias(config, config.feed_forward.bias, "feed_forward")


def _bias(config: TrainConfig, own: bool | None, group: str) -> list[str]:
    if own is None:
        return ["model.bias=true"] if config.model.bias else []
    return [f"{group}.bias=true"] if own else []
