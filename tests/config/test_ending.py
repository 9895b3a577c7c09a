"""What a signal leaves behind, and the exit status."""

import contextlib
import signal
import subprocess
import sys

import pytest

from headloom.config.ending import status_of

WRITING = """
import sys, time
from pathlib import Path
from headloom.config.ending import status_of
from headloom.data.whole_files import folder_written_beside, written_beside

def act():
    with written_beside(Path("file")) as file, folder_written_beside(Path("folder"), complete=Path("folder")) as folder:
        file.write_text("half")
        (folder / "part").write_text("half")
        print("writing", flush=True)
        time.sleep(60)

sys.exit(status_of(act, "command"))
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_is_ended_leaves_nothing_half_written(number, status, tmp_path):
    command = [sys.executable, "-c", WRITING]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        assert len(list(tmp_path.iterdir())) == 2
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
    assert process.returncode == status
    assert said.split() == ["command:", "interrupted" if number == signal.SIGINT else "terminated"]
    assert list(tmp_path.iterdir()) == []


def test_a_command_leaves_the_handler_of_a_signal_as_it_was():
    for number in (signal.SIGINT, signal.SIGTERM):
        inside = []
        before = signal.getsignal(number)
        assert status_of(lambda: inside.append(signal.getsignal(number)), "command") == 0  # noqa: B023
        assert inside != [before]
        assert signal.getsignal(number) is before


def test_a_signal_that_a_package_swallowed_while_it_was_loaded_still_is_why_the_command_ended(capsys):
    def act():
        with contextlib.suppress(BaseException):  # as the import of NumPy does
            signal.raise_signal(signal.SIGINT)
        raise AttributeError("module has no attribute")

    assert status_of(act, "command") == 130
    assert capsys.readouterr().err == "command: interrupted\n"
