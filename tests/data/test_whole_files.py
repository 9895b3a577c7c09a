"""What is written is whole or not there."""

import os
import time

import pytest

from headloom.data.whole_files import folder_written_beside, written_beside


def test_a_file_appears_whole_when_the_block_ends(tmp_path):
    path = tmp_path / "file"
    with written_beside(path) as partial:
        partial.write_bytes(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_what_was_there(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), written_beside(path) as partial:  # noqa: PT012
        partial.write_bytes(b"ne")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_first_whole_folder_stays(tmp_path):
    path = tmp_path / "store"
    with folder_written_beside(path, complete=path / "meta") as slow:
        with folder_written_beside(path, complete=path / "meta") as fast:
            (fast / "meta").write_bytes(b"fast")
        (slow / "meta").write_bytes(b"slow")
    assert (path / "meta").read_bytes() == b"fast"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_put_in_place_is_an_error(tmp_path):
    """Something without the file that makes it complete is in the way."""
    path = tmp_path / "store"
    path.mkdir()
    (path / "other").write_bytes(b"")
    with pytest.raises(OSError, match="not empty"), folder_written_beside(path, complete=path / "meta") as partial:
        (partial / "meta").write_bytes(b"")


def test_what_was_left_half_written_long_ago_is_removed_and_fresh_work_is_not(tmp_path):
    old_file, fresh_file = tmp_path / "a.partial-1-x", tmp_path / "b.partial-2-x"
    old_folder, growing_folder = tmp_path / "c.partial-3-x", tmp_path / "d.partial-4-x"
    for file in (old_file, fresh_file):
        file.write_bytes(b"")
    for folder in (old_folder, growing_folder):
        folder.mkdir()
        (folder / "ids").write_bytes(b"")
    long_ago = time.time() - 3 * 24 * 3600
    for path in (old_folder / "ids", old_folder, growing_folder, old_file):
        os.utime(path, (long_ago, long_ago))
    with written_beside(tmp_path / "new") as partial:
        partial.write_bytes(b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.partial-2-x", "d.partial-4-x", "new"]
