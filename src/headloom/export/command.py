"""The work of `python -m headloom.export`."""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headloom import build_labelled
from headloom.config.schema_export import ExportConfig
from headloom.config.strict import EXPORT_NAME
from headloom.data.whole_files import folder_written_beside
from headloom.errors import ConfigError
from headloom.export import gate
from headloom.export.base import Format
from headloom.export.folder import sha256_of, write_description
from headloom.export.formats import format_of
from headloom.export.sample import Sample, sample_of
from headloom.work.base import Trained
from headloom.work.families import load_trained

logger = logging.getLogger(__name__)

_NUMBER_IN_RUST = re.compile(r"\(os error (\d+)\)")


def export(config: ExportConfig) -> None:
    """Write the model of a checkpoint for another program and let that program prove it.

    Raises:
        ConfigError: the format cannot hold the model, a package is missing, or the output is there already.
        CheckpointError: the checkpoint cannot be read, or the export does not answer as it does.
        DataError: there is no sample.
    """
    if config.output.exists() and any(config.output.iterdir()):
        raise ConfigError(f"output={config.output} holds files already: remove them, or name another folder")
    format = format_of(config)
    trained = load_trained(config.checkpoint, device="cpu", precision="float32")
    refuse_obstacle(format, trained, config.checkpoint)
    if (number := build_labelled.num_segmentations(trained.config)) > 1:
        logger.warning(
            "the export answers one segmentation of a text, where translate.py takes the mean over %d "
            "(task.num_segmentations): the answers of %s are the export's only where its caller averages too",
            number, config.checkpoint,
        )  # fmt: skip
    write_checked(format, trained, sample_of(trained, config.sample), config.checkpoint, config.output)


def refuse_obstacle(format: Format, trained: Trained, checkpoint: Path) -> None:
    obstacle = format.obstacle(trained.config)
    if obstacle is not None:
        raise ConfigError(
            f"format={format.name} cannot express {obstacle}, with which {checkpoint} was trained: docs/export.md says "
            "what each format holds"
        )


def write_checked(format: Format, trained: Trained, sample: Sample, checkpoint: Path, output: Path) -> None:
    """Write `output`, which appears when the export has passed the gate."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with folder_written_beside(output, complete=output / EXPORT_NAME) as partial:
        with _as_errors_of_python(partial):
            format.write(trained, partial)
        write_description(trained, partial, format=format.name, checkpoint=sha256_of(checkpoint))
        gate.check(trained, format.opened(trained, partial), sample, is_exact=format.is_exact)
    logger.info("%s: step %d of %s for %s", output, trained.step, checkpoint, format.name)


@contextmanager
def _as_errors_of_python(folder: Path) -> Iterator[None]:
    """Libraries written in Rust have exceptions of their own for a file that cannot be written to `folder`."""
    try:
        yield
    except Exception as error:
        if (number := _NUMBER_IN_RUST.search(str(error))) is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(folder)) from error
