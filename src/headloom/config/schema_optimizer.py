"""Options of the optimizer: what turns gradients into steps."""

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from omegaconf import MISSING

from headloom.config import rules


class OptimizerKind(Enum):
    adam = "adam"
    adamw = "adamw"
    adafactor = "adafactor"
    muon = "muon"
    sgd = "sgd"


@dataclass(kw_only=True)
class OptimizerConfig:
    """What turns gradients into steps."""

    kind: OptimizerKind = MISSING
    """The optimizer; set by optimizer=."""
    lr: float | None = None
    """Peak learning rate. null: 0.001, or what schedule=noam computes."""

    unset_lr: ClassVar[float] = 1e-3

    def __post_init__(self) -> None:
        rules.follows_group("optimizer", "kind", self)
        rules.above_zero("optimizer.lr", self.lr)


@dataclass(kw_only=True)
class MomentsConfig(OptimizerConfig):
    """What the optimizers with Adam's two running means have in common."""

    beta1: float = 0.9
    """Decay of the running mean of gradients, in [0, 1)."""
    beta2: float = 0.98
    """Decay of the running mean of squared gradients, in [0, 1)."""
    epsilon: float = 1e-9
    """Added to the root of the second mean."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.share("optimizer.beta1", self.beta1)
        rules.share("optimizer.beta2", self.beta2)
        rules.above_zero("optimizer.epsilon", self.epsilon)


@dataclass(kw_only=True)
class WeightDecayConfig(OptimizerConfig):
    """What the optimizers with weight decay have in common. Matrices inside layers always decay."""

    weight_decay: float = 0.0
    """Share of a weight that decays each step, times its learning rate."""
    decay_embeddings: bool = True
    """Whether tables of tokens decay, and an output matrix that is one with them."""
    decay_positions: bool = True
    """Whether learned tables of positions and distances decay."""
    decay_norms: bool = False
    """Whether the gains of norms decay, and other parameters of one row that are no biases."""
    decay_biases: bool = False
    """Whether biases decay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.at_least("optimizer.weight_decay", self.weight_decay, 0)


@dataclass(kw_only=True)
class AdamConfig(MomentsConfig):
    """Adam: Kingma and Ba (2015), without weight decay."""

    kind: OptimizerKind = OptimizerKind.adam
    """The optimizer; set by optimizer=."""


@dataclass(kw_only=True)
class AdamWConfig(WeightDecayConfig, MomentsConfig):
    """Adam with decoupled weight decay: Loshchilov and Hutter (2019)."""

    kind: OptimizerKind = OptimizerKind.adamw
    """The optimizer; set by optimizer=."""
    weight_decay: float = 0.01
    """Share of a weight that decays each step, times its learning rate."""


@dataclass(kw_only=True)
class AdafactorConfig(WeightDecayConfig):
    """The second mean of a matrix kept as one row and one column, and no first mean: Shazeer and Stern (2018). Its
    state is far smaller than the weights."""

    kind: OptimizerKind = OptimizerKind.adafactor
    """The optimizer; set by optimizer=."""
    lr: float | None = None
    """Peak learning rate, as a share of each tensor's root mean square; at update t at most 1 / sqrt(t). null: 0.01, or
    what schedule=noam computes."""
    unset_lr: ClassVar[float] = 1e-2
    beta2_exponent: float = 0.8
    """The running mean of squares takes in update t with weight t^-beta2_exponent; above 0."""
    clip_threshold: float = 1.0
    """Largest root mean square of a tensor's update before the rate; 1 or more."""
    epsilon: float = 1e-3
    """Least root mean square that a tensor is taken to have, so that one of zeros moves too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.above_zero("optimizer.beta2_exponent", self.beta2_exponent)
        rules.at_least("optimizer.clip_threshold", self.clip_threshold, 1)
        rules.above_zero("optimizer.epsilon", self.epsilon)


@dataclass(kw_only=True)
class MuonConfig(WeightDecayConfig, MomentsConfig):
    """Orthogonalised momentum for the matrices inside the blocks, AdamW for the rest: Jordan et al. (2024). Learns more
    from each update than Adam; the update costs more."""

    kind: OptimizerKind = OptimizerKind.muon
    """The optimizer; set by optimizer=."""
    lr: float | None = None
    """Peak learning rate of the matrices inside the blocks. null: 0.02, or what schedule=noam computes."""
    unset_lr: ClassVar[float] = 2e-2
    momentum: float = 0.95
    """Decay of the running mean of gradients of those matrices, in [0, 1)."""
    adam_share: float = 0.1
    """Rate of everything else (embeddings, biases, norms), as a share of the matrices' rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.share("optimizer.momentum", self.momentum)
        rules.above_zero("optimizer.adam_share", self.adam_share)


@dataclass(kw_only=True)
class SgdConfig(WeightDecayConfig):
    """Stochastic gradient descent, with momentum: Sutskever et al. (2013)."""

    kind: OptimizerKind = OptimizerKind.sgd
    """The optimizer; set by optimizer=."""
    lr: float | None = None
    """Peak learning rate. null: 0.1, or what schedule=noam computes."""
    unset_lr: ClassVar[float] = 1e-1
    momentum: float = 0.9
    """Decay of the running sum of gradients, in [0, 1). 0: none."""
    nesterov: bool = False
    """Whether the momentum looks one step ahead."""
    weight_decay: float = 0.0
    """Share of a weight that is added to its gradient, and so passes through the momentum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.share("optimizer.momentum", self.momentum)
        if self.nesterov and self.momentum == 0:
            raise rules.no_effect("optimizer.nesterov", "optimizer.momentum=0")
