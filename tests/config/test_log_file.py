"""The log file of a run."""

import logging
from pathlib import Path

import pytest

from headloom.config.log_file import LogFile


def write_lines(log: str, num_lines: int) -> None:
    handler = LogFile(log, encoding="utf-8")
    logging.getLogger().addHandler(handler)
    try:
        for number in range(num_lines):
            logging.getLogger("headloom").warning("line %d", number)
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_log_on_a_full_disk_is_said_once_and_is_whole_elsewhere(caplog, capfd):
    """In one line, not in a traceback for each line that is lost."""
    write_lines("/dev/full", 3)
    full = "/dev/full cannot be written (No space left on device): lines of the log are lost there, training goes on"
    assert sorted(caplog.messages) == sorted([full, "line 0", "line 1", "line 2"])
    assert "Traceback" not in capfd.readouterr().err


def test_a_folder_in_place_of_a_log_is_said_once(tmp_path, caplog):
    """Hydra, which makes the handler, ended in its own traceback."""
    write_lines(str(tmp_path), 2)
    said = f"{tmp_path} cannot be written (Is a directory): lines of the log are lost there, training goes on"
    assert sorted(caplog.messages) == sorted([said, "line 0", "line 1"])
