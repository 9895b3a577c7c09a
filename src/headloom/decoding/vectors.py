"""Vectors of lines as a file of NumPy's format."""

import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable

import numpy as np

from headloom.bar import progress_bar
from headloom.data.whole_files import written_beside
from headloom.decoding.filter import opened
from headloom.decoding.lines import Bad, Format, OnBadLine, Predictor, Read, read_items
from headloom.errors import ConfigError

logger = logging.getLogger(__name__)

VECTOR_SUFFIX = ".npy"
_HEADER_BYTES = 128
_MAGIC = b"\x93NUMPY\x01\x00"


@runtime_checkable
class VectorPredictor(Predictor[str], Protocol):
    """A checkpoint that answers with vectors, `width` numbers each."""

    width: int

    def vectors(self, texts: list[str]) -> np.ndarray:
        """A row of float32 for each text."""
        ...


def write_vectors(
    predictor: object,
    *,
    source: Path,
    target: Path,
    line_format: Format,
    on_bad_line: OnBadLine,
    buffer_lines: int,
) -> None:
    """A row of the array in `target` for each line of `source` (-: stdin), in order; the file appears when it is whole.

    A line that is skipped (`on_bad_line`) has a row of NaN. Only `buffer_lines` lines are in memory at a time.

    Raises:
        ConfigError: the checkpoint does not answer with vectors.
        DataError: a line cannot be used, or the file cannot be read.
    """
    if not isinstance(predictor, VectorPredictor):
        raise ConfigError(
            f"output={target} is for the vectors of a checkpoint of task=embedding: name a file without {VECTOR_SUFFIX}"
        )
    num_rows = num_bad = 0
    with opened(source) as (stream, name), written_beside(target) as partial, partial.open("wb") as output:
        output.write(bytes(_HEADER_BYTES))
        lines = read_items(stream, name, predictor, line_format, on_bad_line)
        with progress_bar(unit="line") as bar:
            while held := list(islice(lines, buffer_lines)):
                rows = np.full((len(held), predictor.width), np.nan, "<f4")
                good = [place for place, line in enumerate(held) if not isinstance(line, Bad)]
                rows[good] = predictor.vectors(list(_texts(held)))
                rows.tofile(output)
                num_rows += len(held)
                num_bad += len(held) - len(good)
                bar.update(len(held))
        _write_header(output, num_rows, predictor.width)
    if num_bad:
        logger.warning("%d lines were skipped; their rows are NaN", num_bad)
    logger.info("%d vectors of %d numbers in %s", num_rows, predictor.width, target)


def _texts(held: list[Read[str] | Bad]) -> Iterator[str]:
    return (line.item for line in held if not isinstance(line, Bad))


def _write_header(output: BinaryIO, num_rows: int, width: int) -> None:
    """Format 1.0 of NumPy, in the room that was left for it."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({num_rows}, {width}), }}"
    length = _HEADER_BYTES - len(_MAGIC) - 2
    output.seek(0)
    output.write(_MAGIC + length.to_bytes(2, "little") + text.ljust(length - 1).encode("ascii") + b"\n")
