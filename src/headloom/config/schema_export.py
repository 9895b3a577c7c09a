"""Options of `python -m headloom.export`."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from omegaconf import MISSING

from headloom.config import rules
from headloom.errors import ConfigError


class ExportFormat(Enum):
    safetensors = "safetensors"
    ctranslate2 = "ctranslate2"
    onnx = "onnx"
    huggingface = "huggingface"


class Quantization(Enum):
    int8 = "int8"
    int8_float32 = "int8_float32"
    int8_float16 = "int8_float16"
    int8_bfloat16 = "int8_bfloat16"
    int16 = "int16"
    float16 = "float16"
    bfloat16 = "bfloat16"


@dataclass(kw_only=True)
class ExportConfig:
    """Options of python -m headloom.export, which writes the model of a checkpoint for another program to run, lets
    that program answer a sample of lines, and refuses to succeed where it does not answer as the checkpoint does."""

    checkpoint: Path = MISSING
    """The checkpoint, such as outputs/RUN/checkpoints/best.pt; its averaged weights where it has them."""
    format: ExportFormat = MISSING
    """What to write: safetensors (weights that load without running code), ctranslate2 (CTranslate2, the fastest on
    CPUs), onnx (graphs for ONNX Runtime, which is everywhere) or huggingface (transformers of Hugging Face)."""
    output: Path = MISSING
    """The folder to write. It appears when the export has passed, and must not be there yet."""
    quantization: Quantization | None = None
    """Type of the matrices: with format=ctranslate2 by its names for them, with int8_TYPE all else is of TYPE; with
    format=onnx int8. The translations may cost 1 BLEU then, where the sample has references. null: float32, and the
    same tokens."""
    sample: Path | None = None
    """Lines to answer in both programs, one a line. null: lines of the validation data of the training."""

    def __post_init__(self) -> None:
        if self.quantization is None or self.format is ExportFormat.ctranslate2:
            return
        if self.format is not ExportFormat.onnx:
            raise rules.no_effect(f"quantization={self.quantization.name}", f"format={self.format.name}")
        if self.quantization is not Quantization.int8:
            raise ConfigError(
                f"quantization={self.quantization.name} is not to be had with format=onnx: set quantization=int8, or "
                "remove it"
            )
