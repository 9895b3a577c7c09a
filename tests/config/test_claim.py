"""Two processes and one folder."""

import subprocess
import sys
from pathlib import Path

import pytest

from headloom.config.claim import claimed
from headloom.errors import ConfigError

HOLDS = """
import sys
from pathlib import Path
from headloom.config.claim import claimed
with claimed(Path(sys.argv[1])):
    print("claimed", flush=True)
    sys.stdin.read()
"""


def test_a_folder_has_one_writer_until_its_process_ends_however_it_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "claimed\n"
        with pytest.raises(ConfigError, match=f"{tmp_path} is written to by a run that is going on"), claimed(tmp_path):
            pass
        other.kill()
    with claimed(tmp_path):
        pass
    with claimed(tmp_path):
        assert list(tmp_path.iterdir()) == []
