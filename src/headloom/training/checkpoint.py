"""One file that a run continues from and a translator starts from."""

import errno
import io
import os
import pickle
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from headloom.data.whole_files import written_beside
from headloom.errors import CheckpointError

FORMAT = 1
MAGIC = "headloom"
GO_ON = "go on with resume=auto"
NOT_AS_WRITTEN = "{} does not read as it was written: the disk or the memory may be faulty"


def save_checkpoint(path: Path, contents: Mapping[str, Any], *, then: str = GO_ON) -> None:
    """Write `contents` to `path`, or leave the file that was there untouched.

    `contents` holds tensors, bytes and plain Python values only, so that
    loading a stranger's checkpoint cannot run a stranger's code. The file is
    written beside its name, forced to the disk, read again, and renamed: a
    reader sees the old file or the new one, whenever the writer dies. `then`
    tells the user what to do once there is room for it.

    Raises:
        CheckpointError: the disk is full, the folder cannot be written to, or what was written does not read back.
    """
    with saying_why(path, num_bytes=lambda: _num_bytes(contents), then=then), written_beside(path) as partial:
        with _Noting(partial.open("wb", buffering=0)) as file:
            try:
                torch.save({"magic": MAGIC, "format": FORMAT, **contents}, file)
            except RuntimeError as error:
                raise file.failure or error from error
            file.flush()
            os.fsync(file.fileno())
        with partial.open("rb") as file:
            damaged = _damaged(file)
        if damaged is not None:
            raise OSError(errno.EIO, NOT_AS_WRITTEN.format(damaged))


def copy_checkpoint(source: Path, path: Path) -> None:
    """Give `source` a second name, replacing what had it, without a moment in which neither is there.

    Where the file system has no second names for a file, it is copied.

    Raises:
        CheckpointError: the disk is full or the folder cannot be written to.
    """
    with saying_why(path, num_bytes=lambda: source.stat().st_size), written_beside(path) as partial:
        try:
            partial.hardlink_to(source)
        except OSError:
            shutil.copyfile(source, partial)


class _Noting(io.BufferedWriter):
    """A file that remembers why a write failed: torch raises a RuntimeError of its own, which does not say."""

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.failure = error
            raise


@contextmanager
def saying_why(path: Path, *, num_bytes: Callable[[], int], then: str = GO_ON) -> Iterator[None]:
    """Inside, `path` is written with `written_beside`; it takes `num_bytes`, which is asked where the disk is full."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = error.strerror or "unknown reason"
        if error.errno == errno.ENOSPC:
            free = shutil.disk_usage(path.parent).free
            reason += f": it takes {num_bytes() / 1e6:,.1f} MB, and {free / 1e6:,.1f} MB are free"
        raise CheckpointError(
            f"{path} cannot be written ({reason}); earlier checkpoints are untouched: "
            f"free space or permissions in the folder, then {then}"
        ) from error


class _Counting(io.BytesIO):
    """A file that keeps nothing but how much was written to it."""

    num_bytes = 0

    def write(self, data: Any) -> int:
        num_bytes = memoryview(data).nbytes
        self.num_bytes += num_bytes
        return num_bytes


def _num_bytes(contents: Mapping[str, Any]) -> int:
    """Of the file: of many small tensors, more than theirs."""
    file = _Counting()
    torch.save(contents, file)
    return file.num_bytes


def load_checkpoint(path: Path, device: torch.device | str = "cpu", *, mapped: bool = False) -> dict[str, Any]:
    """Read what `save_checkpoint` wrote, with its tensors on `device`. No code of the file is run.

    With `mapped`, which is for the CPU, tensors are read when they are looked at: they take no memory of the process,
    and are not compared with their checksums. `check_sums` does that.

    Raises:
        CheckpointError: there is no such file, it is damaged or no checkpoint of ours, it would run code, or it was
            written by a newer version.
    """
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder: name the file, such as {path / 'checkpoints' / 'best.pt'}")
    try:
        with path.open("rb") as file:
            is_zip = zipfile.is_zipfile(file)
            if is_zip and not mapped:
                _check_sums(path, file)
        # Other formats that torch reads are older, and none of ours.
        contents = torch.load(path, map_location=device, weights_only=True, mmap=mapped) if is_zip else None
    except CheckpointError:
        raise  # it says why
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


def check_sums(path: Path) -> None:
    """Read all of a checkpoint, a piece at a time.

    Raises:
        CheckpointError: something does not match its checksum.
    """
    with path.open("rb") as file:
        _check_sums(path, file)


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


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0][:200]
