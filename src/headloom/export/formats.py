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
        case ExportFormat.ctranslate2:
            require_ctranslate2("format=ctranslate2")
            from headloom.export.ctranslate2 import CTranslate2

            return CTranslate2(None if config.quantization is None else config.quantization.name)
        case ExportFormat.onnx:
            for package in ("onnx", "onnxscript", "onnxruntime"):
                _require("format=onnx", package, extra="onnx")
            from headloom.export.onnx import Onnx

            return Onnx(None if config.quantization is None else config.quantization.name)
        case ExportFormat.huggingface:
            _require("format=huggingface", "transformers", extra="huggingface")
            from headloom.export.huggingface.format import HuggingFace

            return HuggingFace()
        case _:
            assert_never(config.format)


def require_ctranslate2(option: str) -> None:
    """Raises:
    ConfigError: it is not installed.
    """
    _require(option, "ctranslate2")


def _require(option: str, package: str, *, extra: str | None = None) -> None:
    if importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"{option} needs the package {package}, which is not installed: pip install 'headloom[{extra or package}]'"
        )
