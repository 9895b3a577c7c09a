"""Options of `python -m headloom.export`."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from omegaconf import MISSING


class ExportFormat(Enum):
    safetensors = "safetensors"


@dataclass(kw_only=True)
class ExportConfig:
    """Options of python -m headloom.export, which writes the model of a checkpoint for another program to run, lets
    that program answer a sample of lines, and refuses to succeed where it does not answer as the checkpoint does."""

    checkpoint: Path = MISSING
    """The checkpoint, such as outputs/RUN/checkpoints/best.pt; its averaged weights where it has them."""
    format: ExportFormat = MISSING
    """What to write: safetensors (weights that load without running code)."""
    output: Path = MISSING
    """The folder to write. It appears when the export has passed, and must not be there yet."""
    sample: Path | None = None
    """Lines to answer in both programs, one a line. null: lines of the validation data of the training."""
