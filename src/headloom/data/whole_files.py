"""Files and folders that are whole or not there, whatever kills the process while they are written.

What is being written has `.partial-` in its name. A process that is killed
leaves it behind; it is removed once it is old.
"""

import errno
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MARK = ".partial-"
_ABANDONED_AFTER_SECONDS = 2 * 24 * 3600


@contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """A name to write a file to, renamed to `path` when the block ends well and removed when it does not.

    Of two processes that write `path` at once the last one wins, with a whole file.
    """
    remove_abandoned(path.parent)
    partial = _partial_name(path)
    try:
        with _naming(partial):
            yield partial
        _to_disk(partial)
        partial.replace(path)
        _to_disk(path.parent)  # or a power cut takes the new name
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def folder_written_beside(path: Path, *, complete: Path) -> Iterator[Path]:
    """A folder to write files to, renamed to `path` when the block ends well and removed when it does not.

    Of two processes that write `path` at once the first one wins; the other
    finds the file `complete` in the way and drops its own work.
    """
    remove_abandoned(path.parent)
    partial = _partial_name(path)
    partial.mkdir()
    try:
        with _naming(partial):
            yield partial
        for file in partial.iterdir():
            _to_disk(file)
        try:
            partial.rename(path)
            _to_disk(path.parent)
        except OSError:
            if not complete.exists():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _naming(partial: Path) -> Iterator[None]:
    """A write that finds no room does not say in which file: let it name `partial`."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            error.filename = str(partial)
        raise


def remove_abandoned(folder: Path, *, after_seconds: float = _ABANDONED_AFTER_SECONDS) -> None:
    """Remove what a process left half-written in `folder` and nobody has touched for so long: two days.

    Where no other process writes to `folder`, `after_seconds` may be 0.
    """
    for partial in folder.glob(f"*{MARK}*"):
        files = [partial, *partial.iterdir()] if partial.is_dir() else [partial]
        try:
            touched_at = max(file.stat().st_mtime for file in files)
        except FileNotFoundError:
            continue  # another process has finished it or removes it now
        if time.time() - touched_at > after_seconds or after_seconds == 0:
            if partial.is_dir():
                shutil.rmtree(partial, ignore_errors=True)
            else:
                partial.unlink(missing_ok=True)


def _partial_name(path: Path) -> Path:
    return path.with_name(f"{path.name}{MARK}{os.getpid()}-{secrets.token_hex(4)}")


def _to_disk(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on the disk.

    So a rename never survives a power cut that the content does not.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
