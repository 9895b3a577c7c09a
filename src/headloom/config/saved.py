"""Configurations as plain values, for checkpoints and config.yaml: no class names, no code."""

from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from headloom.config.schema import CHOICES, DISCRIMINATORS, YOUNGER_GROUPS, TrainConfig
from headloom.config.strict import explain
from headloom.errors import CheckpointError, ConfigError


def to_plain(config: Any) -> dict[str, Any]:
    """Dictionaries, text, numbers, truth values and None; enums by name, paths as text."""
    return {field.name: _plain(getattr(config, field.name)) for field in fields(config)}


def _plain(value: Any) -> Any:
    match value:
        case Enum():
            return value.name
        case Path():
            return str(value)
        case list():
            return [_plain(item) for item in value]
        case _ if is_dataclass(value):
            return to_plain(value)
        case _:
            return value


def from_plain(plain: dict[str, Any]) -> TrainConfig:
    """The configuration that `to_plain` saved.

    An option added since then takes its default, which must be the behaviour that the model was
    trained with; an option or a choice removed since then is an error. Files it names are not looked for: they may
    be on another machine.

    Raises:
        CheckpointError: `plain` holds an option or a choice that this version does not have, or a value it refuses.
    """
    config = OmegaConf.structured(TrainConfig)
    try:
        for group, discriminator in DISCRIMINATORS.items():
            choice = plain.get(group, {}).get(discriminator, YOUNGER_GROUPS.get(group))
            if choice not in CHOICES[group]:
                known = ", ".join(CHOICES[group])
                raise CheckpointError(f"the saved configuration has {group}={choice}; this version knows {known}")
            config[group] = OmegaConf.structured(CHOICES[group][choice])
        _refuse_unknown(plain, config, "")
        restored = OmegaConf.to_object(OmegaConf.merge(config, plain))
    except (OmegaConfBaseException, ConfigError) as error:
        reason = explain(error) if isinstance(error, OmegaConfBaseException) else str(error)
        raise CheckpointError(f"the saved configuration does not suit this version: {reason}") from error
    assert isinstance(restored, TrainConfig)
    return restored


def to_yaml(config: Any) -> str:
    """Text that any YAML reader takes: floats as 1.0e-04, since YAML 1.1 reads 1e-4 as text."""
    text: str = yaml.safe_dump(to_plain(config), sort_keys=False, allow_unicode=True)
    return text


def _refuse_unknown(plain: dict[str, Any], node: DictConfig, prefix: str) -> None:
    for key, value in plain.items():
        if key not in list(node):  # `in` alone is False for an option without a default
            raise CheckpointError(f"the saved configuration sets {prefix}{key}, which this version does not have")
        if isinstance(value, dict):
            _refuse_unknown(value, node[key], f"{prefix}{key}.")
