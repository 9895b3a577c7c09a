import errno
import os
import pickle
import resource
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from headloom.errors import CheckpointError
from headloom.training.checkpoint import (
    FORMAT,
    copy_checkpoint,
    load_checkpoint,
    load_weights,
    save_checkpoint,
)
from headloom.training.checkpoint_folder import CheckpointFolder

CONTENTS = {"step": 3, "weights": {"a": torch.arange(6.0).view(2, 3)}, "name": "a", "model": b"\0\xff", "none": None}


def partial_files(folder: Path) -> list[Path]:
    return list(folder.glob("*.partial-*"))


def test_what_was_saved_is_what_is_loaded(tmp_path):
    path = tmp_path / "deep" / "last.pt"
    save_checkpoint(path, CONTENTS)
    loaded = load_checkpoint(path)
    assert torch.equal(loaded.pop("weights")["a"], CONTENTS["weights"]["a"])
    assert loaded == {"magic": "headloom", "format": FORMAT} | {k: v for k, v in CONTENTS.items() if k != "weights"}
    assert list(path.parent.iterdir()) == [path]


def test_a_checkpoint_that_runs_code_is_refused_and_its_code_not_run(tmp_path):
    """B62, B111: whether torch or pickle wrote it."""

    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "pwned.txt",)

    torch.save({"magic": "headloom", "format": 1, "model": Payload()}, tmp_path / "torch.pt")
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps(Payload()))
    with pytest.raises(CheckpointError, match=r"torch\.pt holds more than tensors .*: it was not opened"):
        load_checkpoint(tmp_path / "torch.pt")
    with pytest.raises(CheckpointError, match=r"pickle\.pt is not a checkpoint, or is damaged"):
        load_checkpoint(tmp_path / "pickle.pt")
    assert not (tmp_path / "pwned.txt").exists()


@pytest.mark.parametrize("value", [Path("a"), np.float64(1.0), np.arange(3)], ids=lambda value: type(value).__name__)
def test_what_could_not_be_read_safely_is_refused_when_read(tmp_path, value):
    """B62."""
    save_checkpoint(tmp_path / "last.pt", {"value": value})
    with pytest.raises(CheckpointError, match="holds more than tensors and plain values"):
        load_checkpoint(tmp_path / "last.pt")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is not a checkpoint, or is damaged"),
        (b"hello\n" * 100, "is not a checkpoint, or is damaged"),
        (b"PK\x03\x04" + bytes(200), "is not a checkpoint, or is damaged"),
        ("half", "is not a checkpoint, or is damaged"),
        ({"weights": torch.ones(2)}, "is not a checkpoint of Headloom"),
        ([1, 2], "is not a checkpoint of Headloom"),
        ({"magic": "headloom", "format": FORMAT + 1}, f"has checkpoint format {FORMAT + 1}; this version reads up to"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_named_with_the_reason(tmp_path, content, reason):
    path = tmp_path / "last.pt"
    if content == "half":
        save_checkpoint(path, CONTENTS)
        path.write_bytes(path.read_bytes()[:700])
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(CheckpointError, match=rf"{path} {reason}") as caught:
        load_checkpoint(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", ["weights", "table of contents"])
def test_a_checkpoint_with_a_flipped_bit_is_refused_and_not_computed_with(tmp_path, place):
    """torch itself reads on: a wrong weight is a number like any other."""
    weights = torch.full((64,), 0.2)
    save_checkpoint(tmp_path / "last.pt", {"weights": weights})
    content = bytearray((tmp_path / "last.pt").read_bytes())
    start = content.index(weights.numpy().tobytes() if place == "weights" else b"PK\x01\x02")
    content[start] ^= 1
    (tmp_path / "last.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"^{tmp_path}/last\.pt is damaged \(.*checksum\)") as caught:
        load_checkpoint(tmp_path / "last.pt")
    assert str(caught.value).count("damaged") == 1


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(CheckpointError, match=f"{tmp_path}/no.pt does not exist"):
        load_checkpoint(tmp_path / "no.pt")
    with pytest.raises(CheckpointError, match=f"{tmp_path} is a folder: name the file"):
        load_checkpoint(tmp_path)


DIES_WHILE_WRITING = """
import os, sys
from pathlib import Path
import torch
from headloom.training import checkpoint

class Dying:
    def __init__(self, file, room):
        self.file, self.room = file, room
    def write(self, data):
        self.file.write(bytes(data)[: self.room])
        self.room -= len(data)
        if self.room <= 0:
            self.file.flush()
            os._exit(9)
        return len(data)
    def __getattr__(self, name):
        return getattr(self.file, name)

def die(when):
    if when == "renaming":
        Path.replace = lambda *_: os._exit(9)
    elif when == "syncing":
        os.fsync = lambda *_: os._exit(9)
    else:
        save = torch.save
        torch.save = lambda contents, file: save(contents, Dying(file, int(when)))

for when in sys.argv[2:]:
    child = os.fork()
    if child == 0:
        die(when)
        checkpoint.save_checkpoint(Path(sys.argv[1], when, "last.pt"), {"step": 5, "weights": torch.ones(10_000)})
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9, when
"""


def test_a_writer_that_is_killed_leaves_the_file_that_was_there(tmp_path):
    """B52: at the first byte, half way, and between the last byte and the rename."""
    moments = ["1", "20000", "syncing", "renaming"]
    for when in moments:
        save_checkpoint(tmp_path / when / "last.pt", {"step": 4})
    subprocess.run([sys.executable, "-c", DIES_WHILE_WRITING, str(tmp_path), *moments], check=True)
    for when in moments:
        folder = CheckpointFolder(tmp_path / when, keep=3)
        assert partial_files(folder.folder)
        assert load_checkpoint(folder.last)["step"] == 4
        folder.remove_partial()
        assert list(folder.folder.iterdir()) == [folder.last]


@pytest.fixture
def file_size_limit():
    """Files may not grow over 20 kB: what a full disk looks like to one file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_leaves_the_file_that_was_there_and_says_what_to_do(tmp_path, file_size_limit):
    """B53: Python ignores SIGXFSZ, so a write over the limit fails as one to a full disk does."""
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"step": 4})
    with pytest.raises(
        CheckpointError, match=rf"{path} cannot be written \(File too large\); earlier checkpoints are untouched"
    ) as e:
        save_checkpoint(path, {"step": 5, "weights": torch.ones(10_000)})
    assert "\n" not in str(e.value)
    assert load_checkpoint(path)["step"] == 4
    assert not partial_files(tmp_path)


def test_a_full_disk_is_named_as_such(tmp_path, monkeypatch):
    """B53: on the device that is always full, with what it takes and what is there."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    path = tmp_path / "last.pt"

    def known(num_bytes: int) -> str:
        (tmp_path / f"last.pt.partial-{os.getpid()}-known").symlink_to("/dev/full")
        return "known"

    monkeypatch.setattr(secrets, "token_hex", known)
    full = rf"\({os.strerror(errno.ENOSPC)}: it takes 4\.0 MB, and [\d,.]+ MB are free\); earlier checkpoints"
    with pytest.raises(CheckpointError, match=full):
        save_checkpoint(path, {"weights": torch.ones(1_000_000)})
    assert not path.exists()
    small = [torch.ones(1) for _ in range(2000)]
    torch.save(small, tmp_path / "small")
    size = (tmp_path / "small").stat().st_size / 1e6
    assert size > 0.2
    with pytest.raises(CheckpointError, match=rf"it takes {size:.1f} MB"):
        save_checkpoint(path, {"weights": small})


def test_what_does_not_read_as_it_was_written_replaces_nothing(tmp_path, monkeypatch):
    """As on a faulty disk."""
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"step": 4})
    save = torch.save

    def save_with_a_flipped_bit(contents, file):
        save(contents, file)
        file.seek(200)
        byte = file.read(1) if file.readable() else b"\0"
        file.seek(200)
        file.write(bytes([byte[0] ^ 1]))

    monkeypatch.setattr(torch, "save", save_with_a_flipped_bit)
    with pytest.raises(CheckpointError, match=r"does not read as it was written.*earlier checkpoints are untouched"):
        save_checkpoint(path, {"step": 5, "weights": torch.ones(1000)})
    assert load_checkpoint(path)["step"] == 4
    assert not partial_files(tmp_path)


def test_a_folder_that_may_not_be_written_to_is_named(tmp_path, monkeypatch):
    """B53. Whoever runs this as root may write everywhere, so the system's answer is put in its place."""

    def refuse(*arguments, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CheckpointError, match=r"last\.pt cannot be written \(Permission denied\); earlier checkpoints"):
        save_checkpoint(tmp_path / "last.pt", CONTENTS)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    path = tmp_path / "file" / "last.pt"
    with pytest.raises(CheckpointError, match=rf"{path} cannot be written \(File exists\)"):
        save_checkpoint(path, CONTENTS)


def test_weights_that_do_not_fit_are_listed(tmp_path):
    """B60: missing, unknown, misshaped; the model is then as it was."""
    model, path = nn.Linear(3, 2), tmp_path / "last.pt"
    before = model.weight.detach().clone()
    weights = {"weight": torch.zeros(2, 4), "scale": torch.ones(2)}
    with pytest.raises(CheckpointError) as caught:
        load_weights(model, weights, path=path)
    assert str(caught.value) == (
        f"{path} does not fit the model: bias is missing; scale is unknown; weight has shape (2, 4), not (2, 3)"
    )
    assert torch.equal(model.weight, before)
    load_weights(model, {"weight": torch.ones(2, 3), "bias": torch.ones(2)}, path=path)
    assert model.weight.eq(1).all()


def test_of_many_weights_that_do_not_fit_some_are_listed(tmp_path):
    with pytest.raises(CheckpointError, match=r": a is unknown; b is unknown; bias is missing; \.\.\."):
        load_weights(nn.Linear(3, 2), {"a": torch.ones(1), "b": torch.ones(1)}, path=tmp_path)


def test_a_tied_matrix_is_stored_once(tmp_path):
    """B61."""
    model = nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 1000, bias=False))
    model[1].weight = model[0].weight
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"model": model.state_dict()})
    assert path.stat().st_size < 1.1 * model[0].weight.nbytes
    loaded = load_checkpoint(path)["model"]
    assert loaded["0.weight"].data_ptr() == loaded["1.weight"].data_ptr()


def test_a_second_name_stays_when_the_first_is_overwritten(tmp_path):
    """best.pt and step_N.pt are names of a file that last.pt leaves behind."""
    last, best = tmp_path / "last.pt", tmp_path / "best.pt"
    for step in (1, 2):
        save_checkpoint(last, {"step": step})
        copy_checkpoint(last, best)
    save_checkpoint(last, {"step": 3})
    assert load_checkpoint(best)["step"] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.pt", "last.pt"]


def test_a_second_name_is_a_copy_where_a_file_can_have_one_name_only(tmp_path):
    """As from one file system to another."""
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system here")
    source = other / f"headloom-{os.getpid()}.pt"
    save_checkpoint(source, CONTENTS)
    try:
        copy_checkpoint(source, tmp_path / "best.pt")
    finally:
        source.unlink()
    assert load_checkpoint(tmp_path / "best.pt")["step"] == 3
    assert not partial_files(tmp_path)
