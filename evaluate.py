"""Score a checkpoint or translations: python evaluate.py checkpoint=FILE [option=value ...]; --help shows more."""

import sys

from headloom.commands import evaluate

if __name__ == "__main__":
    sys.exit(evaluate())
