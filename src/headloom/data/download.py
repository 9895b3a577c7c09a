"""Fetching pinned files: nothing is kept whose SHA-256 is not the expected one.

A file is fetched beside its place and renamed, so it is whole or not there,
and two processes may fetch it at once. A bar of the bytes is drawn when stderr
is a terminal; a log line says what is fetched in any case.
"""

import contextlib
import hashlib
import http.client
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from tqdm import tqdm

from headloom.bar import progress_bar
from headloom.data.files import written_beside
from headloom.errors import DataError

logger = logging.getLogger(__name__)

_BLOCK = 1 << 20  # bytes read at a time
_TIMEOUT_SECONDS = 30.0  # without a byte
_POLL_SECONDS = 0.1


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def fetch_file(address: str, path: Path, *, sha256: str, size: int) -> Path:
    """The file at `address`, which has `size` bytes, kept as `path` and fetched when it is not there.

    Raises:
        DataError: it cannot be fetched, or the file fetched or found is not the expected one.
    """
    if _is_kept(path, sha256):
        return path
    with _writable(path.parent):
        logger.info("fetching %s (%.1f MB)", address, size / 1e6)
        digest = hashlib.sha256()
        try:
            with (
                written_beside(path) as partial,
                urllib.request.urlopen(address, timeout=_TIMEOUT_SECONDS) as answer,
                _byte_bar(path.name, size) as bar,
            ):
                with partial.open("wb") as out:
                    while block := answer.read(_BLOCK):
                        digest.update(block)
                        out.write(block)
                        bar.update(len(block))
                if digest.hexdigest() != sha256:
                    raise DataError(
                        f"{address} has SHA-256 {digest.hexdigest()} instead of {sha256}: it is not the file it was, "
                        "and is not kept; give a copy of the right one with data.path="
                    )
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            raise DataError(
                f"{address} cannot be fetched ({_reason(error)}); connect to the network and run again, "
                "or give a copy with data.path="
            ) from error
    return path


def fetch_wheel(project: str, version: str, *, folder: Path, sha256: str, size: int) -> Path:
    """The pure-Python wheel of `project`, of `size` bytes, kept in `folder` and fetched with pip when it is not there.

    pip, because it knows the user's index, proxy and certificates. Nothing is
    installed and nothing of the wheel is run.

    Raises:
        DataError: it cannot be fetched, or the file fetched or found is not the expected one.
    """
    path = folder / wheel_name(project, version)
    if _is_kept(path, sha256):
        return path
    with _writable(folder), tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as name:
        logger.info("fetching %s==%s with pip (%.1f MB)", project, version, size / 1e6)
        fetched = _pip_download(f"{project}=={version}", Path(name), wheel=path.name, sha256=sha256, size=size)
        fetched.replace(path)
    return path


def fetch_source_package(project: str, version: str, *, folder: Path, sha256: str, size: int) -> Path:
    """The source package PROJECT-VERSION.tar.gz of `size` bytes, kept in `folder` and fetched with pip when needed.

    pip cannot be asked for a source package without making its metadata, for
    which it would fetch build tools and run the package's own build. So it is
    stopped as soon as the file is whole: nothing is built, nothing of the
    package is run.

    Raises:
        DataError: it cannot be fetched, or the file fetched or found is not the expected one.
    """
    path = folder / f"{project}-{version}.tar.gz"
    if _is_kept(path, sha256):
        return path
    with _writable(folder), tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as name:
        logger.info("fetching the source of %s==%s with pip (%.1f MB)", project, version, size / 1e6)
        fetched = _pip_download(f"{project}=={version}", Path(name), source=path.name, sha256=sha256, size=size)
        fetched.replace(path)
    return path


def wheel_name(project: str, version: str) -> str:
    """File name of a pure-Python wheel."""
    return f"{project}-{version}-py3-none-any.whl"


def _pip_download(
    requirement: str, folder: Path, *, sha256: str, size: int, wheel: str | None = None, source: str | None = None
) -> Path:
    """The file that pip puts below `folder`: the wheel, or the source package, of that name."""
    requirements, output = folder / "requirements.txt", folder / "pip.log"
    requirements.write_text(f"{requirement} --hash=sha256:{sha256}\n", encoding="utf-8", newline="\n")
    form = ["--only-binary", ":all:"] if source is None else ["--no-binary", requirement.partition("==")[0]]
    # Requires-Python speaks of running the code; only data is read from the package.
    options = ["--no-deps", "--ignore-requires-python", *form, "--require-hashes"]
    quiet = ["--quiet", "--progress-bar", "off", "--disable-pip-version-check", "--no-input"]
    command = [sys.executable, "-m", "pip", "download", *options, *quiet, "-d", str(folder), "-r", str(requirements)]
    environment = {**os.environ, "TMPDIR": str(folder)}  # where the file grows, so that the bar sees it
    with output.open("wb") as log, _byte_bar(requirement, size) as bar:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that what pip starts ends with it
        )
        try:
            while process.poll() is None:
                bar.update(max(_largest_file(folder) - bar.n, 0))
                if source is not None and (whole := _whole_file(folder, source, sha256=sha256, size=size)):
                    return whole
                time.sleep(_POLL_SECONDS)
            bar.update(max(_largest_file(folder) - bar.n, 0))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # of no effect on a process that has ended
            process.wait()
    if process.returncode != 0:
        raise DataError(_pip_failure(requirement, output.read_text(encoding="utf-8", errors="replace")))
    name = wheel or source
    assert name is not None
    if not (folder / name).exists():
        raise DataError(f"pip fetched {requirement}, but not as {name}; give the file with data.path=")
    return folder / name


def _whole_file(folder: Path, name: str, *, sha256: str, size: int) -> Path | None:
    """A copy of the file `name` somewhere below `folder`, out of pip's way, once it is whole."""
    for path in folder.glob(f"*/{name}"):
        try:
            if path.stat().st_size == size:
                copy = folder / name
                shutil.copyfile(path, copy)
                if sha256_of(copy) == sha256:
                    return copy
        except OSError:
            continue  # pip has moved it
    return None


def _pip_failure(requirement: str, output: str) -> str:
    lines = [line.strip() for line in output.split("\n") if line.strip()]
    if any("DO NOT MATCH THE HASHES" in line for line in lines):
        return (
            f"{requirement}: the file of the package index has not the expected SHA-256 and is not kept; "
            "use another index, or give the right file with data.path="
        )
    if any("No module named pip" in line for line in lines):
        return f"{sys.executable} has no pip to fetch {requirement} with; install pip, or give the file with data.path="
    # A connection that fails is a WARNING, and the ERROR after it says only that no version was found.
    broken = [match[1] for line in lines if (match := re.search("connection broken by '(.*)'", line))]
    told = broken or [line for line in lines if line.startswith("ERROR: ")] or lines or ["pip says nothing"]
    reason = re.sub("<[^>]*>: |^ERROR: ", "", told[-1])  # without the address of an object in pip's memory
    return (
        f"{requirement} cannot be fetched ({reason}); connect to the network and run again, "
        "or give the file with data.path="
    )


def _is_kept(path: Path, sha256: str) -> bool:
    if not path.exists():
        return False
    found = sha256_of(path)
    if found != sha256:
        raise DataError(f"{path} has SHA-256 {found} instead of {sha256}: delete it to fetch it again")
    return True


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{folder} cannot be written to ({reason}); choose another data.folder") from error


def _byte_bar(description: str, size: int) -> "tqdm[NoReturn]":
    return progress_bar(total=size, desc=description, unit="B", unit_scale=True, unit_divisor=1000)


def _largest_file(folder: Path) -> int:
    """Bytes of the largest file below `folder`: pip moves what it fetches, so for a moment there are two."""
    largest = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, (Path(directory) / name).stat().st_size)
            except FileNotFoundError:
                continue  # moved since it was listed
    return largest


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return " ".join(str(reason or error or type(error).__name__).split())
