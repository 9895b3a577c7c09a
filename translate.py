"""Translate lines: python translate.py checkpoint=FILE [option=value ...]; --help shows what there is."""

import sys
from pathlib import Path

from headloom.config import launch
from headloom.config.schema_use import TranslateConfig


def translate(config: TranslateConfig) -> None:
    from headloom import run  # loads torch: only now that every option is known to be right

    run.translate(config)


if __name__ == "__main__":
    sys.exit(launch.run_once(translate, name="translate", conf=Path(__file__).parent / "conf"))
