"""`python -m headloom.export`: a checkpoint for other programs."""

import sys

from headloom.config.module_command import run_module
from headloom.config.schema_export import ExportConfig

USAGE = """\
Export a checkpoint: python -m headloom.export checkpoint=FILE format=FORMAT output=FOLDER [option=value ...]

  python -m headloom.export checkpoint=outputs/RUN/checkpoints/best.pt format=safetensors output=best
  python -m headloom.export checkpoint=... format=safetensors output=best sample=lines.en

The folder appears when the other program has answered a sample of lines as the checkpoint does (docs/export.md)."""


def _export(config: ExportConfig) -> None:
    from headloom.export.command import export  # loads torch: only now that every option is known to be right

    export(config)


if __name__ == "__main__":
    sys.exit(run_module(_export, sys.argv[1:], schema=ExportConfig, module="headloom.export", usage=USAGE))
