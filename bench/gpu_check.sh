#!/usr/bin/env bash
# What only a GPU can show, in one table and in less than eight minutes: see gpu_check.py.
#
#   bench/gpu_check.sh [WHEELS] [--tiny]
#
# PyTorch is that of $PYTHON (python3). What else is needed and not there is installed from the folder WHEELS, without
# a network, into a place of its own. To fill it, for a machine with Python 3.12:
#
#   pip download --dest WHEELS --only-binary=:all: --python-version 3.12 \
#       hydra-core omegaconf sentencepiece sacrebleu tensorboard matplotlib pillow protobuf PyYAML tqdm numpy
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${PYTHON:-python3}"
if [[ $# -gt 0 && -d "$1" ]]; then
    packages="$(mktemp -d)"
    trap 'rm -rf "$packages"' EXIT
    "$python" -m pip install --quiet --no-index --find-links "$1" --target "$packages" --no-deps "$1"/*.whl
    export PYTHONPATH="$root/src:$packages${PYTHONPATH:+:$PYTHONPATH}"
    shift
else
    export PYTHONPATH="$root/src${PYTHONPATH:+:$PYTHONPATH}"
fi
export CUBLAS_WORKSPACE_CONFIG=:4096:8 # sums in a fixed order, for the resumed runs
"$python" "$root/bench/gpu_check.py" "$@"
