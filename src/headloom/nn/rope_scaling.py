"""How rotary angles are scaled so that a model reads farther than it was trained to.

A scaling gives the angle of each position and channel pair, and a magnitude for
turned queries and keys. To add one, write its class here and give it a name in
the schema and an arm in `build_parts.py`.

Shapes: T positions, P channel pairs.
"""

import math
from typing import Protocol

import torch
from torch import Tensor


class RopeScaling(Protocol):
    @property
    def magnitude(self) -> float:
        """What turned queries and keys are multiplied by."""
        ...

    def angles(self, length: int, width: int, base: float) -> Tensor:
        """angle_TP of positions 0 to `length` - 1 and the width / 2 pairs of `width` channels, in float64."""
        ...


def rates(width: int, base: float) -> Tensor:
    """base^(-2i / width) for pair i, in float64: radians a position (Su et al. 2021, section 3.2.2)."""
    return torch.exp(-math.log(base) * torch.arange(0, width, 2, dtype=torch.float64) / width)


def _positions(length: int) -> Tensor:
    return torch.arange(length, dtype=torch.float64)[:, None]


class Unscaled:
    magnitude = 1.0

    def angles(self, length: int, width: int, base: float) -> Tensor:
        return _positions(length) * rates(width, base)


class Linear:
    """Positions divided by `factor`: position interpolation, Chen et al. (2023), equation 4."""

    magnitude = 1.0

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def angles(self, length: int, width: int, base: float) -> Tensor:
        return _positions(length) / self.factor * rates(width, base)


class Ntk:
    """A base times factor^(w / (w - 2)) for w channels: Peng et al. (2023), definition 1.

    The slowest pair then turns as with position interpolation, the fastest as
    if nothing were scaled.
    """

    magnitude = 1.0

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def angles(self, length: int, width: int, base: float) -> Tensor:
        return _positions(length) * rates(width, base * self.factor ** (width / (width - 2)))


class DynamicNtk:
    """`Ntk` whose factor grows with the length l: factor * l / original_length - (factor - 1), from 1 on.

    Peng et al. (2023), section 3.4 (with factor 1: l / original_length). A token
    at position t is turned by the base in force when it came, that of length
    t + 1, and keeps its angle: what a cached decoding computes. A base for the
    whole sequence would make a token depend on those after it, and on the
    padding of its batch.
    """

    magnitude = 1.0

    def __init__(self, factor: float, original_length: int) -> None:
        self.factor = factor
        self.original_length = original_length

    def angles(self, length: int, width: int, base: float) -> Tensor:
        position_T1 = _positions(length)
        factor_T1 = (self.factor * (position_T1 + 1) / self.original_length - (self.factor - 1)).clamp(min=1)
        pair_P = torch.arange(0, width, 2, dtype=torch.float64)
        # The new base is base * factor^(w / (w - 2)); its pair 2i turns by that to the power of -2i / w.
        return position_T1 * rates(width, base) * factor_T1 ** (-pair_P / (width - 2))


class Yarn:
    """Peng et al. (2023), section 3.3 and 3.4: slow pairs interpolated, fast ones left, with a temperature.

    A pair that makes r = original_length / wavelength turns is interpolated as
    in `Linear` by the share 1 - ramp(r), with ramp 0 up to `SLOW` turns, 1 from
    `FAST` on, straight between. Scores are divided by a temperature t with
    sqrt(1 / t) = 0.1 ln(factor) + 1, which multiplies queries and keys.
    """

    SLOW, FAST = 1.0, 32.0
    """alpha and beta of the paper, as it gives them for Llama."""

    def __init__(self, factor: float, original_length: int) -> None:
        self.factor = factor
        self.original_length = original_length
        self.magnitude = 0.1 * math.log(factor) + 1

    def angles(self, length: int, width: int, base: float) -> Tensor:
        rate_P = rates(width, base)
        turns_P = self.original_length * rate_P / (2 * math.pi)
        ramp_P = ((turns_P - self.SLOW) / (self.FAST - self.SLOW)).clamp(0, 1)
        return _positions(length) * rate_P * ((1 - ramp_P) / self.factor + ramp_P)
