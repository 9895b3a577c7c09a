"""What the entry points and the tests call: train, evaluate, translate.

Modules that only one of them needs are imported inside it, so that a
translation starts fast.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from headloom.config.schema import EvaluateConfig, TrainConfig, TranslateConfig
from headloom.data.files import read_lines, written_beside
from headloom.decoding.arrival import as_they_arrive
from headloom.errors import DataError
from headloom.training.memory import keep_freed_memory
from headloom.work import families
from headloom.work.base import Trained
from headloom.work.families import load_trained


def train(config: TrainConfig, run_dir: Path) -> float:
    """Train as `config` says, with everything the run leaves in `run_dir`; the best headline metric reached.

    Raises:
        ConfigError, DataError, CheckpointError: the run cannot start or go on; the message says why.
        TrainingDiverged: see `Trainer.train_step`.
        SystemExit: it was interrupted, after `last.pt` was written; the status is 128 + the signal's number.
    """
    from headloom.training_run import TrainingRun

    keep_freed_memory()
    return TrainingRun(config, run_dir).run()


def evaluate(config: EvaluateConfig) -> dict[str, Any]:
    """Score a checkpoint; print the scores and write them, with the texts, to its `evaluation/` folder or `output`.

    Raises:
        ConfigError, DataError, CheckpointError: it cannot be scored; the message says why.
    """
    keep_freed_memory()
    trained = _load(config)
    output = config.output or _run_dir(config.checkpoint) / "evaluation" / config.data.name
    return families.evaluate(trained, config, output)


def translate(config: TranslateConfig) -> None:
    """What the checkpoint makes of each line of a stream or file: one line out for each line in, in order.

    Raises:
        ConfigError, DataError, CheckpointError: the message says why; a file named by `output` is then as it was.
    """
    keep_freed_memory()
    trained = _load(config)
    with _input(config.input) as lines, _output(config.output) as output:
        for line in families.predict(trained, config, lines):
            output.write(line + "\n")
            output.flush()


def _load(config: EvaluateConfig | TranslateConfig) -> Trained:
    return load_trained(
        config.checkpoint, device=config.device.name, precision=config.precision.name, position=config.position
    )


@contextmanager
def _input(path: Path) -> Iterator[Iterator[str | None]]:
    """Lines, with None where a person or a slow program has not written the next one yet."""
    if str(path) != "-":
        try:
            stream = path.open("rb")
        except OSError as error:
            raise DataError(f"input={path} cannot be read ({error.strerror})") from error
        with stream:
            yield iter(read_lines(stream, name=str(path)))
        return
    if sys.stdin.isatty():
        sys.stderr.write("Type a sentence and press Enter; Ctrl-D ends.\n")
    # Not sys.stdin: the reading thread may hold its lock when the interpreter ends.
    with open(0, "rb", closefd=False) as stream:
        yield as_they_arrive(read_lines(stream))


@contextmanager
def _output(path: Path) -> Iterator[TextIO]:
    """stdout, or a file that is whole or as it was."""
    if str(path) == "-":
        with open(1, "w", encoding="utf-8", newline="\n", closefd=False) as stream:
            yield stream
        return
    with written_beside(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as stream:
        yield stream


def _run_dir(checkpoint: Path) -> Path:
    """The run's folder of RUN/checkpoints/NAME.pt; the file's own folder where it lies elsewhere."""
    folder = checkpoint.resolve().parent
    return folder.parent if folder.name == "checkpoints" else folder
