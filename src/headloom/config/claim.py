"""One process at a time writes to a run's folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headloom.errors import ConfigError


@contextmanager
def claimed(run_dir: Path) -> Iterator[None]:
    """While the block runs, no other process is in such a block for `run_dir`.

    Two runs would take turns in replacing each other's checkpoints and records, and both end well.
    The claim ends with the process, however that ends, and leaves no file. A file system that
    knows no such claims grants every one.

    Raises:
        ConfigError: another process is in such a block.
    """
    descriptor = os.open(run_dir, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not run_dir.exists() or not os.path.samestat(os.fstat(descriptor), run_dir.stat()):
                raise BlockingIOError  # a run that was refused has removed it in between
        except BlockingIOError:
            raise ConfigError(
                f"{run_dir} is written to by a run that is going on: wait for its end, or choose another folder"
            ) from None
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)
