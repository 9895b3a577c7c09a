"""One file that a run continues from and a translator starts from."""

import errno
import os
import pickle
import shutil
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from headloom.data.whole_files import remove_abandoned, written_beside
from headloom.errors import CheckpointError

FORMAT = 1
MAGIC = "headloom"


def save_checkpoint(path: Path, contents: Mapping[str, Any]) -> None:
    """Write `contents` to `path`, or leave the file that was there untouched.

    `contents` holds tensors, bytes and plain Python values only, so that
    loading a stranger's checkpoint cannot run a stranger's code. The file is
    written beside its name, forced to the disk, read again, and renamed: a
    reader sees the old file or the new one, whenever the writer dies.

    Raises:
        CheckpointError: the disk is full, the folder cannot be written to, or what was written does not read back.
    """
    with _saying_why(path), written_beside(path) as partial:
        with partial.open("wb") as file:
            torch.save({"magic": MAGIC, "format": FORMAT, **contents}, file)
            file.flush()
            os.fsync(file.fileno())
        with partial.open("rb") as file:
            damaged = _damaged(file)
        if damaged is not None:
            raise OSError(errno.EIO, f"{damaged} does not read as it was written: the disk or the memory may be faulty")


def copy_checkpoint(source: Path, path: Path) -> None:
    """Give `source` a second name, replacing what had it, without a moment in which neither is there.

    Where the file system has no second names for a file, it is copied.

    Raises:
        CheckpointError: the disk is full or the folder cannot be written to.
    """
    with _saying_why(path), written_beside(path) as partial:
        try:
            partial.hardlink_to(source)
        except OSError:
            shutil.copyfile(source, partial)


@contextmanager
def _saying_why(path: Path) -> Iterator[None]:
    """Inside, `path` is written with `written_beside`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except (OSError, RuntimeError) as error:
        # torch reports a short write of its zip file as a RuntimeError without the errno.
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CheckpointError(
            f"{path} cannot be written ({_first_line(reason)}); earlier checkpoints are untouched: "
            "free space or permissions in the folder, then go on with resume=auto"
        ) from error


def load_checkpoint(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read what `save_checkpoint` wrote, with its tensors on `device`. No code of the file is run.

    Raises:
        CheckpointError: there is no such file, it is damaged or no checkpoint of ours, it would run code, or it was
            written by a newer version.
    """
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder: name the file, such as {path / 'checkpoints' / 'best.pt'}")
    try:
        with path.open("rb") as file:
            is_zip = zipfile.is_zipfile(file)
            if is_zip:
                _check_sums(path, file)
        # Other formats that torch reads are older, and none of ours.
        contents = torch.load(path, map_location=device, weights_only=True) if is_zip else None
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} does not exist: name a checkpoint, such as RUN/checkpoints/best.pt") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror})") from error
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} holds more than tensors and plain values, which could run code when opened: it was not opened"
        ) from error
    except (RuntimeError, EOFError, KeyError, ValueError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is not a checkpoint, or is damaged ({_first_line(str(error))})") from error
    if not is_zip:
        raise CheckpointError(f"{path} is not a checkpoint, or is damaged")
    if not isinstance(contents, dict) or contents.get("magic") != MAGIC:
        raise CheckpointError(f"{path} is not a checkpoint of Headloom")
    if contents["format"] > FORMAT:
        raise CheckpointError(
            f"{path} has checkpoint format {contents['format']}; this version reads up to {FORMAT}: upgrade to read it"
        )
    return contents


def _check_sums(path: Path, file: BinaryIO) -> None:
    damaged = _damaged(file)
    if damaged is not None:
        raise CheckpointError(f"{path} is damaged ({damaged} does not match its checksum): copy or train it again")


def _damaged(file: BinaryIO) -> str | None:
    """What of a checkpoint does not match its checksum.

    torch reads a zip file without comparing them, so a flipped bit would be a silently wrong weight.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.testzip()
    except (zipfile.BadZipFile, NotImplementedError, zlib.error):
        return "its table of contents"


def load_weights(
    model: nn.Module,
    weights: Mapping[str, Any],
    *,
    path: Path,
    part: Callable[[Tensor, Tensor], Tensor] = lambda whole, like: whole,
) -> None:
    """Put `weights` into `model`; every name and shape must be there and no other.

    `part` gives what the model keeps of a weight, from that and from what it keeps now.

    Raises:
        CheckpointError: a name is missing, unknown, or has another shape; the message lists some.
    """
    own = model.state_dict()
    wrong = [f"{name} is missing" for name in own.keys() - weights.keys()]
    wrong += [f"{name} is unknown" for name in weights.keys() - own.keys()]
    wrong += [
        f"{name} has shape {tuple(weights[name].shape)}, not {tuple(own[name].shape)}"
        for name in own.keys() & weights.keys()
        if own[name].shape != weights[name].shape
    ]
    if wrong:
        shown = "; ".join(sorted(wrong)[:3])
        raise CheckpointError(f"{path} does not fit the model: {shown}" + ("; ..." if len(wrong) > 3 else ""))
    model.load_state_dict({name: part(weight, own[name]) for name, weight in weights.items()}, strict=True)


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

    def save(
        self,
        contents: Mapping[str, Any],
        *,
        step: int,
        numbered: bool,
        best: bool,
        best_steps: Collection[int] = (),
    ) -> None:
        """Write `last.pt`; under a number too where `numbered`; as the best one too where `best`.

        `best_steps` are those whose `best_N.pt` is kept; where this one is among
        them, it is written too.
        """
        save_checkpoint(self.last, contents)
        self.name_last(step=step, numbered=numbered, best=best, best_steps=best_steps)

    def name_last(self, *, step: int, numbered: bool, best: bool, best_steps: Collection[int] = ()) -> None:
        """Give `last.pt` its other names, as `save` does; those that it has stay.

        A run that is killed between the two, and resumed, would otherwise never have a best.pt of its best step.
        """
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

    def take_best(self, resumed_from: Path, *, step: int) -> None:
        """Where there is no `best.pt` yet: that of `step`, if a checkpoint of it lies where the run is resumed from."""
        names = (resumed_from.name, "best.pt", f"best_{step}.pt", f"step_{step}.pt")
        paths = [] if self.best.exists() else [resumed_from.with_name(name) for name in names]
        for path in paths:
            if path.exists() and load_checkpoint(path)["step"] == step:
                return copy_checkpoint(path, self.best)

    def _also(self, path: Path) -> None:
        if not (path.exists() and path.samefile(self.last)):
            copy_checkpoint(self.last, path)

    def remove_partial(self) -> None:
        """Remove what a killed run left half-written; no other process may be writing here."""
        remove_abandoned(self.folder, after_seconds=0)

    def numbered(self) -> list[Path]:
        """step_N.pt, from the oldest to the newest."""
        return self._with_a_number("step")

    def newest(self, count: int) -> list[Path]:
        """The newest checkpoints, or as many as there are; `last.pt` is one where it is newer than any number.

        Raises:
            CheckpointError: `last.pt` cannot be read.
        """
        paths = self.numbered()
        is_numbered = bool(paths) and self.last.exists() and self.last.samefile(paths[-1])
        if self.last.exists() and not is_numbered:
            step = int(load_checkpoint(self.last)["step"])
            paths += [self.last] if not paths or step > _number(paths[-1]) else []
        return paths[-count:]

    def best_ones(self, count: int) -> list[Path]:
        """Checkpoints of the best validations, the best one first, or as many as were kept.

        Raises:
            CheckpointError: `last.pt`, which knows their order, cannot be read.
        """
        ranking = load_checkpoint(self.last).get("ranking", [])
        paths = [self.folder / f"best_{int(step)}.pt" for _, _, step in ranking]
        return [path for path in paths if path.exists()][:count]

    def _with_a_number(self, prefix: str) -> list[Path]:
        paths = self.folder.glob(f"{prefix}_*.pt")
        return sorted((path for path in paths if path.stem.removeprefix(f"{prefix}_").isdecimal()), key=_number)


def _number(path: Path) -> int:
    return int(path.stem.rpartition("_")[2])


def _first_line(text: str | None) -> str:
    return (text or "unknown reason").strip().split("\n", 1)[0][:200]
