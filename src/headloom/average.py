"""`python -m headloom.average`: one checkpoint out of several, the mean of their weights."""

import logging
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headloom.config.module_command import run_module
from headloom.config.schema_average import AverageConfig
from headloom.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from headloom.training.checkpoint_folder import CheckpointFolder

logger = logging.getLogger(__name__)

NAMES_OF_A_RUN = re.compile(r"(last|best|(step|best)_\d+)\.pt")

USAGE = """\
Average checkpoints: python -m headloom.average [option=value ...]

  python -m headloom.average run=outputs/RUN last=10                  writes outputs/RUN/checkpoints/average.pt
  python -m headloom.average run=outputs/RUN best=5 output=best5.pt
  python -m headloom.average checkpoints=[a.pt,b.pt] output=ab.pt

The result is a checkpoint for evaluate.py and translate.py; no run goes on from it."""


def average(config: AverageConfig) -> Path:
    """Write the mean of the checkpoints that `config` names; the file written.

    Raises:
        ConfigError: the run has not as many, or the result would replace a file that is anything but this result.
        CheckpointError: a checkpoint cannot be read, they are not of one model, or the result cannot be written.
    """
    from headloom.training.checkpoint import save_checkpoint  # loads torch: only now
    from headloom.training.checkpoint_average import average_checkpoints
    from headloom.training.checkpoint_folder import CheckpointFolder

    if config.run is None:
        paths, output = list(config.checkpoints), config.output
    else:
        folder = CheckpointFolder(config.run / "checkpoints", keep=0)
        paths, output = _of_run(folder, config), config.output or folder.average
    assert output is not None
    for path in paths:
        if output.exists() and path.exists() and output.samefile(path):
            raise ConfigError(f"output={output} is one of the checkpoints to average: name another file")
    if output.exists() and NAMES_OF_A_RUN.fullmatch(output.name):
        raise ConfigError(f"output={output} is a checkpoint of a run, which goes on from it: name another file")
    contents = average_checkpoints(paths)
    if output.exists() and not _holds(output, contents):
        raise ConfigError(f"output={output} is there already and is not this average: remove it, or name another file")
    save_checkpoint(output, contents, then="average again")
    logger.info("%s: the mean of %d checkpoints", output, len(paths))
    for path in paths:
        logger.info("  %s", path)
    return output


def _holds(path: Path, contents: Mapping[str, Any]) -> bool:
    """Whether a file is a checkpoint of the same steps and weights."""
    import torch

    from headloom.training.checkpoint import load_checkpoint

    try:
        found = load_checkpoint(path)
    except CheckpointError:
        return False
    model, other = contents["model"], found["model"]
    is_average = found.get("averaged_steps") == contents["averaged_steps"] and model.keys() == other.keys()
    return is_average and all(torch.equal(value, other[name]) for name, value in model.items())


def _of_run(folder: "CheckpointFolder", config: AverageConfig) -> list[Path]:
    """The checkpoints of a run that are asked for."""
    if not folder.last.exists():
        raise CheckpointError(f"{folder.folder} holds no last.pt: name the folder of a run, such as run=outputs/RUN")
    if config.last is not None:
        paths, asked, option = folder.newest(config.last), config.last, "last"
    else:
        assert config.best is not None
        paths, asked, option = folder.best_ones(config.best), config.best, "best"
    if len(paths) < asked:
        kept = "keep_checkpoints" if option == "last" else "keep_best_checkpoints"
        raise ConfigError(
            f"{option}={asked} asks for more checkpoints than the {len(paths)} in {folder.folder}: lower it, or train "
            f"with a larger trainer.{kept}"
        )
    return paths


if __name__ == "__main__":
    sys.exit(run_module(average, sys.argv[1:], schema=AverageConfig, module="headloom.average", usage=USAGE))
