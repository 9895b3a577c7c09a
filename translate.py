"""Translate lines: python translate.py checkpoint=FILE [option=value ...]; --help shows what there is."""

import sys

from headloom.commands import translate

if __name__ == "__main__":
    sys.exit(translate())
