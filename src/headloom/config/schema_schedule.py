"""Options of the schedule: how the learning rate moves."""

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from omegaconf import MISSING

from headloom.config import rules
from headloom.errors import ConfigError


class ScheduleKind(Enum):
    noam = "noam"
    inverse_sqrt = "inverse_sqrt"
    cosine = "cosine"
    linear = "linear"
    wsd = "wsd"
    constant = "constant"
    plateau = "plateau"


@dataclass(kw_only=True)
class ScheduleConfig:
    """How the learning rate moves; every schedule rises in a straight line through its warm-up. A resumed run follows
    the schedule of the options it is resumed with: one with more steps has the rates that it would always have had."""

    kind: ScheduleKind = MISSING
    """The schedule; set by schedule=."""
    warmup_steps: int | None = None
    """Updates until the peak. null: 1000, or what warmup_share says."""
    warmup_share: float | None = None
    """Share of trainer.max_steps until the peak, in [0, 1], in place of warmup_steps."""

    unset_warmup_steps: ClassVar[int] = 1000

    def __post_init__(self) -> None:
        rules.follows_group("schedule", "kind", self)
        rules.at_least("schedule.warmup_steps", self.warmup_steps, 0)
        rules.share("schedule.warmup_share", self.warmup_share, with_one=True)
        if self.warmup_steps is not None and self.warmup_share is not None:
            raise ConfigError(
                f"schedule.warmup_share={self.warmup_share} has no effect with schedule.warmup_steps="
                f"{self.warmup_steps}: set one of them to null"
            )

    def num_warmup_steps(self, max_steps: int) -> int:
        """Updates until the peak in a run of `max_steps`."""
        if self.warmup_share is not None:
            return round(self.warmup_share * max_steps)
        return self.unset_warmup_steps if self.warmup_steps is None else self.warmup_steps


@dataclass(kw_only=True)
class NoamConfig(ScheduleConfig):
    """factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5): Vaswani et al. (2017), equation 3."""

    kind: ScheduleKind = ScheduleKind.noam
    """The schedule; set by schedule=."""
    warmup_steps: int | None = None
    """Updates until the peak. null: 4000, or what warmup_share says."""
    factor: float = 1.0
    """Multiplies the whole schedule."""

    unset_warmup_steps: ClassVar[int] = 4000

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
    """What cosine, linear and wsd have in common: they end with trainer.max_steps."""

    final_share: float = 0.0
    """Share of the peak that is left at trainer.max_steps and from there on, in [0, 1]. No update has a rate of 0: the
    first one that would is the one after the last."""

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


class DecayShape(Enum):
    linear = "linear"
    cosine = "cosine"
    sqrt = "sqrt"  # 1 - sqrt(share of the decay that is done): Hägele et al. (2024), section 3
    exponential = "exponential"  # the same factor each update: Hu et al. (2024), section 4.2


@dataclass(kw_only=True)
class WsdConfig(DecayConfig):
    """Warm-up to optimizer.lr, which stays, and decays in the last part of the run: Hu et al. (2024), section 4.2. A
    checkpoint from before the decay can be resumed with a larger trainer.max_steps: nothing of it was planned for the
    shorter run."""

    kind: ScheduleKind = ScheduleKind.wsd
    """The schedule; set by schedule=."""
    decay_share: float = 0.1
    """Share of trainer.max_steps that the decay takes, the last ones, in (0, 1]; it never begins before the peak."""
    decay_shape: DecayShape = DecayShape.linear
    """How it falls: linear, cosine (half of one), sqrt (fast at first) or exponential (the same factor each update)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.share("schedule.decay_share", self.decay_share, with_zero=False, with_one=True)
        if self.decay_shape is DecayShape.exponential and self.final_share == 0:
            raise ConfigError(
                "schedule.decay_shape=exponential never reaches schedule.final_share=0: set final_share, to 0.01 say, "
                "or another decay_shape"
            )


@dataclass(kw_only=True)
class ConstantConfig(ScheduleConfig):
    """Warm-up to optimizer.lr, which then stays."""

    kind: ScheduleKind = ScheduleKind.constant
    """The schedule; set by schedule=."""


@dataclass(kw_only=True)
class PlateauConfig(ScheduleConfig):
    """Warm-up to optimizer.lr, which is lowered whenever validations stop getting better."""

    kind: ScheduleKind = ScheduleKind.plateau
    """The schedule; set by schedule=."""
    factor: float = 0.5
    """Multiplies the rate each time, in (0, 1)."""
    patience: int = 2
    """Validations in a row without a better headline metric before the rate is lowered; counted after the warm-up, and
    anew after each time."""
    final_share: float = 0.0
    """Share of the peak below which the rate never falls, in [0, 1)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.share("schedule.factor", self.factor, with_zero=False)
        rules.at_least("schedule.patience", self.patience, 1)
        rules.share("schedule.final_share", self.final_share)
