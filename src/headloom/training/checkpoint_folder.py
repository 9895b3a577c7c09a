"""The checkpoints of a run by their names: the last, the best, the newest few, the best few."""

import logging
import tempfile
from collections.abc import Collection
from pathlib import Path

from headloom.data.whole_files import remove_abandoned
from headloom.errors import CheckpointError
from headloom.training.checkpoint import copy_checkpoint, load_checkpoint, saying_why

logger = logging.getLogger(__name__)


class CheckpointFolder:
    """`last.pt`, `best.pt`, the newest `keep` of `step_N.pt`, and `best_N.pt` of the best steps where those are kept.

    `last` and `best` are never removed by rotation. Names are compared as
    numbers: step_9 is older than step_10.
    """

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    @property
    def last(self) -> Path:
        return self.folder / "last.pt"

    @property
    def best(self) -> Path:
        return self.folder / "best.pt"

    @property
    def average(self) -> Path:
        """Where the mean of several checkpoints goes."""
        return self.folder / "average.pt"

    def is_empty(self) -> bool:
        return not any(self.folder.glob("*.pt"))

    def begin(self, resumed_from: Path | None) -> None:
        """See that checkpoints can be written here, before there is work to lose, and that `last.pt` is `resumed_from`.

        A run that goes on from another file would, until its first checkpoint, roll back to a `last.pt` of a course
        that it has left, or have none to roll back to and to be resumed from.

        Raises:
            CheckpointError: the disk is full or the folder cannot be written to.
        """
        with saying_why(self.last, num_bytes=lambda: 0):
            tempfile.TemporaryFile(dir=self.folder).close()
        if resumed_from is not None and not (self.last.exists() and self.last.samefile(resumed_from)):
            copy_checkpoint(resumed_from, self.last)

    def name_last(self, *, step: int, numbered: bool, best: bool, best_steps: Collection[int] = ()) -> None:
        """Give `last.pt`, which is of `step`, its other names: a number where `numbered`, `best.pt` where `best`.

        `best_steps` are those whose `best_N.pt` is kept. Names that it has stay, so that a run that is killed before it
        has given all, and resumed, can do so again.
        """
        self._remove_later(step)
        if best:
            self._also(self.best)
        if numbered and self.keep:
            self._also(self.folder / f"step_{step}.pt")
            for path in self.numbered()[: -self.keep]:
                path.unlink()
        if step in best_steps:
            self._also(self.folder / f"best_{step}.pt")
            for path in self._with_a_number("best"):
                if _number(path) not in best_steps:
                    path.unlink()

    def _remove_later(self, step: int) -> None:
        """A run that was resumed from an older checkpoint has left the course in which the later ones were made.

        They would stand in the way of rotation, which goes by number.
        """
        later = [path for prefix in ("step", "best") for path in self._with_a_number(prefix) if _number(path) > step]
        for path in later:
            path.unlink()
        if later:
            names = ", ".join(path.name for path in later)
            logger.info("removed %s: the run goes on from step %d, and makes its own", names, step)

    def take_best(self, resumed_from: Path, *, step: int) -> None:
        """Make `best.pt` that of `step`, if it lies here or where the run is resumed from: no later one may beat it.

        A `best.pt` that was made in a course which this run has left, or is damaged, is kept as `best_left.pt`.
        """
        if self.best.exists() and _is_of(self.best, step):
            return
        left = self.folder / "best_left.pt"
        names = (resumed_from.name, "best.pt", f"best_{step}.pt", f"step_{step}.pt")
        paths = [*(resumed_from.with_name(name) for name in names), left]
        found = next((path for path in paths if path.exists() and _is_of(path, step)), None)
        if self.best.exists() and found != left:
            logger.info("%s is not of step %d, the best one of this run: now %s", self.best, step, left.name)
            self.best.replace(left)
        if found is not None:
            copy_checkpoint(found, self.best)

    def _also(self, path: Path) -> None:
        if not (path.exists() and path.samefile(self.last)):
            copy_checkpoint(self.last, path)

    def remove_partial(self) -> None:
        """Remove what a killed run left half-written; no other process may be writing here."""
        remove_abandoned(self.folder, after_seconds=0)

    def numbered(self) -> list[Path]:
        """step_N.pt, from the oldest to the newest."""
        return self._with_a_number("step")

    def beside_last(self) -> Path | None:
        """The newest of `step_N.pt` that is another file than `last.pt`."""
        return next((path for path in reversed(self.numbered()) if not path.samefile(self.last)), None)

    def newest(self, count: int) -> list[Path]:
        """The newest checkpoints, or as many as there are; `last.pt` is one where it is newer than any number.

        Raises:
            CheckpointError: `last.pt` cannot be read.
        """
        paths = self.numbered()
        is_numbered = bool(paths) and self.last.exists() and self.last.samefile(paths[-1])
        if self.last.exists() and not is_numbered:
            step = _step(self.last)
            paths += [self.last] if not paths or step > _number(paths[-1]) else []
        return paths[-count:]

    def best_ones(self, count: int) -> list[Path]:
        """Checkpoints of the best validations, the best one first, or as many as were kept.

        Raises:
            CheckpointError: `last.pt`, which knows their order, cannot be read.
        """
        ranking = load_checkpoint(self.last, mapped=True).get("ranking", [])
        paths = [self.folder / f"best_{int(step)}.pt" for _, _, step in ranking]
        return [path for path in paths if path.exists()][:count]

    def _with_a_number(self, prefix: str) -> list[Path]:
        paths = self.folder.glob(f"{prefix}_*.pt")
        return sorted((path for path in paths if path.stem.removeprefix(f"{prefix}_").isdecimal()), key=_number)


def _number(path: Path) -> int:
    return int(path.stem.rpartition("_")[2])


def _is_of(path: Path, step: int) -> bool:
    try:
        return _step(path) == step
    except CheckpointError:
        return False  # last.pt was damaged with this name of it, and the run goes on from an earlier one


def _step(path: Path) -> int:
    return int(load_checkpoint(path, mapped=True)["step"])
