"""Options of the optimizer: what turns gradients into steps."""

from dataclasses import dataclass
from enum import Enum

from omegaconf import MISSING

from headloom.config import rules


class OptimizerKind(Enum):
    adam = "adam"
    adamw = "adamw"
    muon = "muon"


@dataclass(kw_only=True)
class OptimizerConfig:
    """What turns gradients into steps."""

    kind: OptimizerKind = MISSING
    """The optimizer; set by optimizer=."""
    lr: float | None = None
    """Peak learning rate. null: 0.001, or what schedule=noam computes."""
    beta1: float = 0.9
    """Decay of the running mean of gradients, in [0, 1)."""
    beta2: float = 0.98
    """Decay of the running mean of squared gradients, in [0, 1)."""
    epsilon: float = 1e-9
    """Added to the root of the second mean."""

    def __post_init__(self) -> None:
        rules.follows_group("optimizer", "kind", self)
        rules.above_zero("optimizer.lr", self.lr)
        rules.share("optimizer.beta1", self.beta1)
        rules.share("optimizer.beta2", self.beta2)
        rules.above_zero("optimizer.epsilon", self.epsilon)


@dataclass(kw_only=True)
class AdamConfig(OptimizerConfig):
    """Adam: Kingma and Ba (2015), without weight decay."""

    kind: OptimizerKind = OptimizerKind.adam
    """The optimizer; set by optimizer=."""


@dataclass(kw_only=True)
class AdamWConfig(OptimizerConfig):
    """Adam with decoupled weight decay: Loshchilov and Hutter (2019)."""

    kind: OptimizerKind = OptimizerKind.adamw
    """The optimizer; set by optimizer=."""
    weight_decay: float = 0.01
    """Share of a weight that decays each step, times the learning rate; matrices only, not biases or norms."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.at_least("optimizer.weight_decay", self.weight_decay, 0)


@dataclass(kw_only=True)
class MuonConfig(OptimizerConfig):
    """Orthogonalised momentum for the matrices inside the blocks, AdamW for the rest: Jordan et al. (2024). Learns more
    from each update than Adam; the update costs more."""

    kind: OptimizerKind = OptimizerKind.muon
    """The optimizer; set by optimizer=."""
    lr: float | None = None
    """Peak learning rate of the matrices inside the blocks. null: 0.02, or what schedule=noam computes."""
    momentum: float = 0.95
    """Decay of the running mean of gradients of those matrices, in [0, 1)."""
    adam_share: float = 0.1
    """Rate of everything else (embeddings, biases, norms), as a share of the matrices' rate."""
    weight_decay: float = 0.0
    """Share of a weight that decays each step, times its learning rate; matrices only, not biases or norms."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.share("optimizer.momentum", self.momentum)
        rules.above_zero("optimizer.adam_share", self.adam_share)
        rules.at_least("optimizer.weight_decay", self.weight_decay, 0)
