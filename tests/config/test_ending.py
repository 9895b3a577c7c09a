"""What a signal leaves behind, and the exit status."""

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

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


UNWRITABLE = """
import resource, sys
from pathlib import Path
from headloom.config.ending import status_of
from headloom.data.whole_files import folder_written_beside, written_beside
from headloom.decoding.filter import opened

def stdout():
    print("text")

def file():
    with written_beside(Path("file")) as file:
        file.write_bytes(bytes(9999))

def folder():
    with folder_written_beside(Path("folder"), complete=Path("folder")) as folder:
        (folder / "part").write_bytes(bytes(9999))

def place():
    with written_beside(Path("/proc/file")) as file:
        file.write_text("text")

def stdin():
    with opened(Path("-")) as (stream, _):
        stream.read()

def numbers():
    with open("file", "w") as file:
        print(file.fileno())

def fault():
    open("nothing")

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
sys.exit(status_of(globals()[sys.argv[1]], "command"))
"""


def ended(act: str, redirected: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, "-c", UNWRITABLE, act]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("act", "redirected", "said"),
    [
        ("stdout", ">/dev/full", "the output cannot be written (No space left on device): free space, or choose"),
        ("file", "", "file cannot be written (File too large): free space, or choose another place"),
        ("folder", "", "folder cannot be written (File too large): free space, or choose another place"),
        ("place", "", "/proc/file cannot be written ("),
        ("stdout", ">&-", "standard output is closed: send it to a file, or to /dev/null"),
        ("stdin", "<&-", "standard input is closed: set input=FILE, or pipe lines into it"),
    ],
)
def test_what_cannot_be_written_or_read_is_said_in_one_line(act, redirected, said, tmp_path):
    done = ended(act, redirected, tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"command: {said}")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_closed_stream_is_no_number_for_a_file(tmp_path):
    for closed in ("<&-", "2>&-", "<&- 2>&-"):
        done = ended("numbers", closed, tmp_path)
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) > 2


def test_a_file_that_a_program_misses_is_its_own_fault(tmp_path):
    assert "Traceback" in ended("fault", "", tmp_path).stderr


ENDED_WHILE_TORCH_IS_LOADED = """
import logging, sys
from headloom.config.ending import Terminated, status_of

class EndingWhereStatisticsAreKept:
    def find_spec(self, name, path, target=None):
        if hasattr(sys.modules.get("torch._subclasses.fake_tensor"), "dump_cache_stats"):
            raise Terminated

def act():
    logging.basicConfig(level=logging.INFO)
    sys.meta_path.insert(0, EndingWhereStatisticsAreKept())
    import torch

sys.exit(status_of(act, "command"))
"""


def test_a_command_that_is_ended_while_torch_is_loaded_says_no_more_than_that():
    command = [sys.executable, "-c", ENDED_WHILE_TORCH_IS_LOADED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (143, "command: terminated\n")


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
