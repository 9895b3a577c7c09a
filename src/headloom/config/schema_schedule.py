"""Options of the schedule: how the learning rate moves."""

from dataclasses import dataclass
from enum import Enum

from omegaconf import MISSING

from headloom.config import rules


class ScheduleKind(Enum):
    noam = "noam"
    inverse_sqrt = "inverse_sqrt"
    cosine = "cosine"
    linear = "linear"
    constant = "constant"


@dataclass(kw_only=True)
class ScheduleConfig:
    """How the learning rate moves; every schedule rises in a straight line through its warm-up."""

    kind: ScheduleKind = MISSING
    """The schedule; set by schedule=."""
    warmup_steps: int = 1000
    """Steps until the peak."""

    def __post_init__(self) -> None:
        rules.follows_group("schedule", "kind", self)
        rules.at_least("schedule.warmup_steps", self.warmup_steps, 0)


@dataclass(kw_only=True)
class NoamConfig(ScheduleConfig):
    """factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5): Vaswani et al. (2017), equation 3."""

    kind: ScheduleKind = ScheduleKind.noam
    """The schedule; set by schedule=."""
    warmup_steps: int = 4000
    """Steps until the peak."""
    factor: float = 1.0
    """Multiplies the whole schedule."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.at_least("schedule.warmup_steps", self.warmup_steps, 1)
        rules.above_zero("schedule.factor", self.factor)


@dataclass(kw_only=True)
class InverseSqrtConfig(ScheduleConfig):
    """Warm-up to optimizer.lr, then decay as 1 / sqrt(step)."""

    kind: ScheduleKind = ScheduleKind.inverse_sqrt
    """The schedule; set by schedule=."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.at_least("schedule.warmup_steps", self.warmup_steps, 1)


@dataclass(kw_only=True)
class DecayConfig(ScheduleConfig):
    """What cosine and linear have in common: they end with trainer.max_steps."""

    final_share: float = 0.0
    """Share of the peak that is left at trainer.max_steps, in [0, 1]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.share("schedule.final_share", self.final_share, with_one=True)


@dataclass(kw_only=True)
class CosineConfig(DecayConfig):
    """Warm-up to optimizer.lr, then half a cosine down: Loshchilov and Hutter (2017), without restarts."""

    kind: ScheduleKind = ScheduleKind.cosine
    """The schedule; set by schedule=."""


@dataclass(kw_only=True)
class LinearConfig(DecayConfig):
    """Warm-up to optimizer.lr, then a straight line down."""

    kind: ScheduleKind = ScheduleKind.linear
    """The schedule; set by schedule=."""


@dataclass(kw_only=True)
class ConstantConfig(ScheduleConfig):
    """Warm-up to optimizer.lr, which then stays."""

    kind: ScheduleKind = ScheduleKind.constant
    """The schedule; set by schedule=."""
