"""Train a model: python train.py [group=choice ...] [option=value ...]; --help shows what there is."""

import sys

from headloom.commands import train

if __name__ == "__main__":
    sys.exit(train())
