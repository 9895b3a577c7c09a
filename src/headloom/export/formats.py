"""From the options of an export to its format."""

import importlib.util
from typing import assert_never

from headloom.config.schema_export import ExportConfig, ExportFormat
from headloom.errors import ConfigError
from headloom.export.base import Format


def format_of(config: ExportConfig) -> Format:
    """Raises:
    ConfigError: what the format needs is not installed.
    """
    match config.format:
        case ExportFormat.safetensors:
            _require("format=safetensors", "safetensors")
            from headloom.export.safetensors import Safetensors

            return Safetensors()
        case _:
            assert_never(config.format)


def _require(option: str, package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"{option} needs the package {package}, which is not installed: pip install 'headloom[{package}]'"
        )
