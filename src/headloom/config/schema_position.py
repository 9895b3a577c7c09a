"""Options of the group `position`: how the order of tokens enters the model.

To add a choice: a member of the enum, a dataclass, a line in `POSITIONS`, a file
under conf/, and an arm of the `match` in build_parts.py.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from omegaconf import MISSING

from headloom.config import rules
from headloom.errors import ConfigError


class PositionKind(Enum):
    none = "none"
    sinusoidal = "sinusoidal"
    learned = "learned"
    rope = "rope"
    alibi = "alibi"
    t5 = "t5"


class Scaling(Enum):
    none = "none"
    linear = "linear"  # positions divided by the factor: Chen et al. (2023), equation 4
    ntk = "ntk"  # a larger base: Peng et al. (2023), definition 1
    dynamic_ntk = "dynamic_ntk"  # a base that grows with the position: Peng et al. (2023), section 3.4
    yarn = "yarn"  # by frequency, with a temperature: Peng et al. (2023), sections 3.3 and 3.4


@dataclass(kw_only=True)
class PositionConfig:
    """How the order of tokens enters the model."""

    kind: PositionKind = MISSING
    """The scheme; set by position=."""

    def __post_init__(self) -> None:
        rules.follows_group("position", "kind", self)


@dataclass(kw_only=True)
class NoPositionConfig(PositionConfig):
    """Nothing is added: order is known only through causal masks."""

    kind: PositionKind = PositionKind.none
    """The scheme; set by position=."""


@dataclass(kw_only=True)
class SinusoidalConfig(PositionConfig):
    """Sines and cosines added to the embeddings: Vaswani et al. (2017), section 3.5."""

    kind: PositionKind = PositionKind.sinusoidal
    """The scheme; set by position=."""
    base: float = 10000.0
    """Base of the wavelengths: channel pair i of D channels turns by base^(-2i/D) radians a position."""
    scale: float = 1.0
    """What the sines and cosines are multiplied by."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.above_zero("position.base", self.base)
        rules.above_zero("position.scale", self.scale)


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
    """Base of the angles: channel pair i of K channels that turn does so by base^(-2i/K) radians a position."""
    share: float = 1.0
    """Share of each head that turns, more than 0 and at most 1; rounded to whole channel pairs."""
    scaling: Scaling = Scaling.none
    """How positions are stretched, to read farther than was trained: none, linear, ntk, dynamic_ntk or yarn. May be
    changed on a trained checkpoint."""
    factor: float | None = None
    """How many times as far, 1 or more; needed by linear, ntk and yarn. With dynamic_ntk null is 1: the base grows with
    the length over original_length."""
    original_length: int | None = None
    """Longest sequence of the training, in tokens, for dynamic_ntk and yarn. null: data.max_length."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.above_zero("position.base", self.base)
        rules.share("position.share", self.share, with_zero=False, with_one=True)
        rules.at_least("position.factor", self.factor, 1)
        rules.at_least("position.original_length", self.original_length, 1)
        scaling = f"position.scaling={self.scaling.name}"
        if self.scaling is Scaling.none and self.factor is not None:
            raise rules.no_effect("position.factor", scaling)
        if self.scaling in (Scaling.linear, Scaling.ntk, Scaling.yarn) and self.factor is None:
            raise ConfigError(f"{scaling} needs position.factor beside it: set how many times as far, such as 4")
        if self.scaling not in (Scaling.dynamic_ntk, Scaling.yarn) and self.original_length is not None:
            raise rules.no_effect("position.original_length", scaling)


@dataclass(kw_only=True)
class AlibiConfig(PositionConfig):
    """A fixed penalty on attention scores that grows with the distance: Press et al. (2022), section 3. In an encoder
    the same on both sides."""

    kind: PositionKind = PositionKind.alibi
    """The scheme; set by position=."""


@dataclass(kw_only=True)
class T5Config(PositionConfig):
    """A learned bias on attention scores for each head and bucket of distances, one table for all layers of a stack:
    Raffel et al. (2020), section 2.1."""

    kind: PositionKind = PositionKind.t5
    """The scheme; set by position=."""
    num_buckets: int = 32
    """Buckets of distances; in an encoder half of them for later keys. Even, 4 or more."""
    max_distance: int = 128
    """Distance in tokens from which on all keys share a bucket; above half of num_buckets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.at_least("position.num_buckets", self.num_buckets, 4)
        if self.num_buckets % 2:
            raise ConfigError(f"position.num_buckets={self.num_buckets} is odd: set an even number, half for each side")
        if self.max_distance <= self.num_buckets // 2:
            raise ConfigError(
                f"position.max_distance={self.max_distance} is not above half of "
                f"position.num_buckets={self.num_buckets}: raise it, or lower the buckets"
            )


POSITIONS: dict[str, type[Any]] = {
    "none": NoPositionConfig,
    "sinusoidal": SinusoidalConfig,
    "learned": LearnedConfig,
    "rope": RopeConfig,
    "alibi": AlibiConfig,
    "t5": T5Config,
}


@dataclass(kw_only=True)
class StretchConfig:
    """Positions of a trained checkpoint, stretched to read farther than it was trained to: the only options of the
    architecture that can change."""

    scaling: Scaling | None = None
    """With position=rope: none, linear, ntk, dynamic_ntk or yarn. null: as trained."""
    factor: float | None = None
    """With position=rope: how many times as far; see position=rope under train.py. Sources may be so many times longer
    than data.max_length of the training."""
    original_length: int | None = None
    """With position=rope: longest sequence of the training, in tokens. null: data.max_length of the training."""
    max_length: int | None = None
    """With position=learned: positions of a longer table, interpolated from the trained one. null: as trained. Sources
    may be as long."""

    def applied(self, trained: PositionConfig) -> PositionConfig:
        """The positions of a checkpoint with these changes.

        Raises:
            ConfigError: the checkpoint's positions have no such option, or a value does not suit them.
        """
        changes = {name: value for name, value in vars(self).items() if value is not None}
        taken = {
            RopeConfig: ("scaling", "factor", "original_length"),
            LearnedConfig: ("max_length",),
        }.get(type(trained), ())
        for name, value in changes.items():
            if name not in taken:
                shown = value.name if isinstance(value, Enum) else value
                raise rules.no_effect(
                    f"position.{name}={shown}", f"a checkpoint that was trained with position={trained.kind.name}"
                )
        if isinstance(trained, LearnedConfig) and (self.max_length or trained.max_length) < trained.max_length:
            raise ConfigError(
                f"position.max_length={self.max_length} is below the {trained.max_length} of the checkpoint: "
                "its table can be stretched, not shortened"
            )
        if "scaling" in changes:  # what the trained scaling needed, the new one may not take
            changes = {"factor": None, "original_length": None} | changes
        return replace(trained, **changes)


def stretched_length(trained: PositionConfig, stretched: PositionConfig, max_length: int) -> int:
    """How long a sequence may be that could be `max_length` in the training, once its positions are stretched."""
    match trained, stretched:
        case LearnedConfig(), LearnedConfig() if stretched.max_length > trained.max_length:
            return max(max_length, stretched.max_length)
        case RopeConfig(), RopeConfig() if stretched.factor is not None:
            return int(max_length * max(1.0, stretched.factor / (trained.factor or 1.0)))
        case _:
            return max_length
