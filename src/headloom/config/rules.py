"""Rules that several options share; each refusal names the option, its value, the rule and what to set.

None passes every rule: an optional option that is not set cannot be wrong.
"""

import math

from headloom.errors import ConfigError


def at_least(option: str, value: float | None, least: float) -> None:
    """`value` is a finite number, `least` or more."""
    if value is not None and not (math.isfinite(value) and value >= least):
        raise ConfigError(f"{option}={value} is too small: set it to {least} or more")


def seed(option: str, value: int) -> None:
    """`value` is one that every random generator takes."""
    at_least(option, value, 0)
    if value >= 2**63:
        raise ConfigError(f"{option}={value} is too large: set it to less than {2**63}")


def above_zero(option: str, value: float | None) -> None:
    """`value` is a finite number above 0."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{option}={value} is out of range: set it to a finite number above 0")


def within(option: str, value: float, low: float, high: float) -> None:
    """`value` is a number from `low` to `high`, beyond which the arithmetic overflows."""
    if not low <= value <= high:  # also for nan
        raise ConfigError(f"{option}={value} is out of range: set it to {low:g} at least and {high:g} at most")


def share(option: str, value: float | None, *, with_zero: bool = True, with_one: bool = False) -> None:
    """`value` lies between 0 and 1; the two flags say which ends belong to the range."""
    if value is None:
        return
    above = value >= 0 if with_zero else value > 0
    below = value <= 1 if with_one else value < 1
    if not (above and below):  # also for nan
        low, high = "0 or more" if with_zero else "more than 0", "1 or less" if with_one else "less than 1"
        raise ConfigError(f"{option}={value} is out of range: set it to {low} and {high}")


def together(first: str, first_value: object, second: str, second_value: object) -> None:
    """Two options of which neither means anything alone."""
    for given, missing, value in ((first, second, second_value), (second, first, first_value)):
        if value is None and not (first_value is None and second_value is None):
            raise ConfigError(f"{given} needs {missing} beside it: set both, or neither")


def follows_group(group: str, option: str, config: object) -> None:
    """`option` records which choice of `group` the dataclass is; its class says which, so it is not set by itself."""
    value, choice = getattr(config, option), getattr(type(config), option)
    if value is not choice:
        raise ConfigError(
            f"{group}.{option}={value.name} contradicts {group}={choice.name}: choose {group}={value.name}"
        )


def no_effect(option: str, reason: str) -> ConfigError:
    return ConfigError(f"{option} has no effect with {reason}: remove it")
