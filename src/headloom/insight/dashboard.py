"""What a run records: `metrics.jsonl`, TensorBoard, the log, and sample translations."""

import io
import json
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from PIL import Image

from headloom.errors import ConfigError
from headloom.insight.event_file import EventFile
from headloom.insight.records_file import RecordsFile
from headloom.insight.samples import NAMES, Sample, as_markdown, as_text

log = logging.getLogger(__name__)

LAYER_PREFIX = "gradient_norm/"  # one value a layer: recorded, but kept out of the log line


class Dashboard:
    """The records of one run, continued in the same files when the run is resumed.

    `first_step` is the number of updates done when the run starts or goes on: records of later steps were
    made by work that was lost, and are removed from `metrics.jsonl` and `samples/` and purged from
    TensorBoard. A run that starts at 0 keeps nothing of what an earlier attempt left in the folder.

    A record is one line of `metrics.jsonl`: a JSON object with `step` (updates done), `elapsed_seconds`
    (time spent on the run so far, work that was lost and the time between a kill and its resume not
    counted) and the values by their names, such as `train/loss`. A value that is not finite is null there,
    since JSON has no NaN; the log line and TensorBoard show it as it is. Every TensorBoard tag uses the
    same step. There is one TensorBoard run a folder: no `add_hparams`, no `add_scalars`.

    A write that fails later on (a full disk) costs its record and one warning a file; the run goes on.

    Raises:
        ConfigError: the folder cannot be written to.
    """

    def __init__(self, run_dir: Path, *, first_step: int) -> None:
        self.run_dir = run_dir
        self._has_warned_of_samples = False
        purge_from = first_step + 1 if first_step else 0
        metrics_path = run_dir / "metrics.jsonl"
        try:
            (run_dir / "samples").mkdir(parents=True, exist_ok=True)
            _remove_later_samples(run_dir / "samples", purge_from)
            elapsed_seconds = _remove_later_records(metrics_path, purge_from)
            self._metrics = RecordsFile(metrics_path)
            self._events = EventFile(run_dir / "tensorboard", purge_from=purge_from)
        except OSError as error:
            raise ConfigError(
                f"hydra.run.dir={run_dir}: {error.filename} cannot be written ({error.strerror}); "
                "free the space or choose another folder"
            ) from error
        self._clock_zero = time.monotonic() - elapsed_seconds

    def record(self, step: int, values: Mapping[str, float]) -> None:
        """Record `values` at `step` in metrics.jsonl, in TensorBoard and as one `key=value` log line."""
        numbers = {name: value if isinstance(value, int) else float(value) for name, value in values.items()}
        elapsed_seconds = round(time.monotonic() - self._clock_zero, 3)
        entry = {"step": step, "elapsed_seconds": elapsed_seconds, **{k: _json_number(v) for k, v in numbers.items()}}
        self._metrics.append(json.dumps(entry, allow_nan=False).encode() + b"\n")
        self._events.scalars(step, numbers)
        shown = {name: value for name, value in numbers.items() if not name.startswith(LAYER_PREFIX)}
        if shown:
            log.info("step=%d %s", step, " ".join(f"{name}={_short(value)}" for name, value in shown.items()))

    def text(self, step: int, tag: str, text: str) -> None:
        """Show `text` in TensorBoard as Markdown."""
        self._events.text(step, tag, text)

    def figure(self, step: int, tag: str, pixels_YXC: npt.NDArray[np.uint8]) -> None:
        """Show a picture in TensorBoard: rows Y, columns X, red, green and blue."""
        png = io.BytesIO()
        # Level 3 takes half the time of Pillow's default for a seventh more bytes.
        Image.fromarray(pixels_YXC).save(png, format="png", compress_level=3)
        height, width = pixels_YXC.shape[:2]
        self._events.image(step, tag, png.getvalue(), width=width, height=height)

    def samples(self, step: int, samples: Sequence[Sample], names: tuple[str, str, str] = NAMES) -> None:
        """Show samples, their three texts under `names`: a table in TensorBoard and the file `samples/step_N.txt`."""
        self._events.text(step, "samples", as_markdown(samples, names))
        path = self.run_dir / "samples" / f"step_{step}.txt"
        try:
            path.write_text(as_text(samples, names), encoding="utf-8", errors="replace", newline="\n")
        except OSError as error:
            if not self._has_warned_of_samples:
                log.warning("%s cannot be written (%s): samples are lost, training goes on", path, error.strerror)
                self._has_warned_of_samples = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files. Calling it again does nothing."""
        self._metrics.close()
        self._events.close()


class NoDashboard(Dashboard):
    """Takes what a dashboard takes, and keeps nothing: for a process that is not the one to write."""

    def __init__(self) -> None:
        pass

    def record(self, step: int, values: Mapping[str, float]) -> None:
        pass

    def text(self, step: int, tag: str, text: str) -> None:
        pass

    def figure(self, step: int, tag: str, pixels_YXC: npt.NDArray[np.uint8]) -> None:
        pass

    def samples(self, step: int, samples: Sequence[Sample], names: tuple[str, str, str] = NAMES) -> None:
        pass

    def close(self) -> None:
        pass


def _json_number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _short(value: float) -> str:
    """Five significant digits, whole numbers in full: 3.4127, 0.0003, 18000."""
    return str(round(value)) if math.isfinite(value) and abs(value) >= 1e4 else f"{value:.5g}"


def _remove_later_records(path: Path, purge_from: int) -> float:
    """Rewrite metrics.jsonl without records of step `purge_from` and later; the last kept elapsed_seconds.

    Lines that are no record, such as one torn by a kill, go too, with a warning. The file is replaced in
    one step, so a kill during the repair leaves the old one.
    """
    elapsed_seconds = 0.0
    if not path.exists():
        return elapsed_seconds
    temporary = path.with_name(path.name + ".partial")
    num_torn = 0
    with path.open("rb") as old, temporary.open("wb") as new:
        for line, entry in _entries(old):
            if entry is None:
                num_torn += 1
            elif entry["step"] < purge_from:
                new.write(line)
                elapsed_seconds = float(entry.get("elapsed_seconds") or 0.0)
        new.flush()
        os.fsync(new.fileno())
    temporary.replace(path)
    if num_torn:
        log.warning("%s: removed %d lines that are no whole record", path, num_torn)
    return elapsed_seconds


def _entries(lines: io.BufferedReader) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Each line with its record, None where it is not a whole one."""
    for line in lines:
        try:
            entry = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            entry = None
        is_record = isinstance(entry, dict) and isinstance(entry.get("step"), int)
        yield line, entry if is_record else None


def _remove_later_samples(folder: Path, purge_from: int) -> None:
    for path in folder.glob("step_*.txt"):
        number = path.stem.removeprefix("step_")
        if number.isdecimal() and int(number) >= purge_from:
            path.unlink()
