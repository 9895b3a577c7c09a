"""Folders, logs and exit statuses of runs and sweeps, through a small program in place of a training."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from headloom import commands
from headloom.config import launch
from headloom.config.claim import claimed

ROOT = Path(__file__).parents[2]
ONE_JOB = re.compile(r"outputs/\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d-[0-9a-f]{6}")

PROGRAM = f"""
import logging, os, sys
from pathlib import Path
from headloom.config import launch
from headloom.errors import CheckpointError, DataError

def work(config, run_dir):
    logging.getLogger("headloom.work").info("seed %s in %s", config.seed, os.getcwd())
    if config.seed == 2:
        raise DataError("a.en line 7:\\nnot UTF-8")
    if config.seed == 3:
        raise ZeroDivisionError("a mistake of ours")
    if config.seed == 4:
        raise KeyboardInterrupt
    if config.seed == 5:
        raise CheckpointError("last.pt is damaged")
    return 12.5

if __name__ == "__main__":
    sys.exit(launch.run_jobs(work, name="train", conf=Path({str(ROOT / "conf")!r})))
"""

ONCE = f"""
import sys
from pathlib import Path
from headloom.config import launch

def work(config, given):
    for number in range(100000):
        print(number)

if __name__ == "__main__":
    sys.exit(launch.run_once(work, name="translate", conf=Path({str(ROOT / "conf")!r})))
"""


def run(program: Path, arguments: Sequence[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(program), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


def never(*_: object) -> float:
    raise AssertionError("nothing is to run")


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["train", "evaluate", "translate"])
def test_an_entry_point_refuses_a_wrong_option_in_one_line_and_writes_nothing(name: str, tmp_path: Path) -> None:
    """B84."""
    done = run(ROOT / f"{name}.py", ["sede=1"], tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"{name}.py: 'sede' is not an option")
    assert done.stderr.count("\n") == 1
    assert files(tmp_path) == set()


@pytest.mark.parametrize("name", ["train", "evaluate", "translate"])
def test_a_command_that_pip_installed_calls_itself_by_its_own_name(name, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", [f"/usr/bin/headloom-{name}", "sede=1"])
    assert getattr(commands, name)() == 2
    assert capsys.readouterr().err.startswith(f"headloom-{name}: 'sede' is not an option")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed=1"], "unrecognized arguments: --seed=1; options are written option=value"),
        (["-m", "--cfg", "job"], "--multirun and --cfg are two different things to do"),
        (["--config-name", "x"], "make it an experiment= of --config-dir FOLDER"),
        (["--experimental-rerun", "x.pickle"], "a pickle may run code"),
        ([f"hydra.run.dir={300 * 'x'}"], "cannot be written (File name too long): choose another place"),
    ],
)
def test_a_wrong_flag_is_refused_in_one_line(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
    assert launch.run_jobs(never, name="train", conf=ROOT / "conf") == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert message in captured.err


@pytest.mark.parametrize("name", ["train", "evaluate", "translate"])
def test_the_options_can_be_shown_without_what_is_required(name: str, tmp_path: Path) -> None:
    """B110: `--cfg job` from any folder; the YAML it prints is plain."""
    done = run(ROOT / f"{name}.py", ["--cfg", "job"], tmp_path)
    assert done.returncode == 0
    assert yaml.safe_load(done.stdout)["decoding"]["kind"] == "beam"
    assert files(tmp_path) == set()


def test_a_run_has_a_folder_that_says_what_ran(program: Path, tmp_path: Path) -> None:
    """B85, B97: the log goes to stderr and into the folder; nothing on stdout."""
    done = run(program, ["optimizer.lr=1e-4"], tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    (folder,) = (tmp_path / "outputs").glob("*/*")
    assert ONE_JOB.fullmatch(str(folder.relative_to(tmp_path)))
    assert files(folder) == {"config.yaml", "overrides.yaml", "train.log"}
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    assert config["optimizer"]["lr"] == 1e-4
    assert config["data"]["folder"] == str(tmp_path / "data")
    assert yaml.safe_load((folder / "overrides.yaml").read_text(encoding="utf-8")) == ["optimizer.lr=1e-4"]
    assert "INFO seed 1 in" in (folder / "train.log").read_text(encoding="utf-8")
    assert "INFO seed 1 in" in done.stderr


def test_runs_of_one_second_have_folders_of_their_own(program: Path, tmp_path: Path) -> None:
    """B88."""
    running = [
        subprocess.Popen([sys.executable, str(program), f"seed={seed}"], cwd=tmp_path, stderr=subprocess.DEVNULL)
        for seed in (1, 6, 7)
    ]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    saved = [yaml.safe_load(p.read_text(encoding="utf-8")) for p in (tmp_path / "outputs").glob("*/*/config.yaml")]
    assert sorted(config["seed"] for config in saved) == [1, 6, 7]


def test_a_folder_with_checkpoints_is_not_written_to_unless_resume_says_so(program: Path, tmp_path: Path) -> None:
    """B88."""
    checkpoint = tmp_path / "mine" / "checkpoints" / "last.pt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    before = files(tmp_path / "mine")
    done = run(program, ["hydra.run.dir=mine"], tmp_path)
    assert done.returncode == 2
    assert (
        "mine already holds checkpoints: continue it with resume=auto, or choose another hydra.run.dir" in done.stderr
    )
    assert files(tmp_path / "mine") == before
    assert run(program, ["hydra.run.dir=mine", "resume=auto"], tmp_path).returncode == 0


def test_a_used_folder_of_a_sweep_is_refused_with_the_option_that_names_it(program: Path, tmp_path: Path) -> None:
    """hydra.run.dir is none that a sweep takes."""
    checkpoint = tmp_path / "mine" / "0" / "checkpoints" / "last.pt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    done = run(program, ["-m", "seed=1", "hydra.sweep.dir=mine"], tmp_path)
    assert done.returncode == 1
    assert "mine/0 already holds checkpoints" in done.stderr
    assert "or choose another hydra.sweep.dir or hydra.sweep.subdir" in done.stderr


def test_a_folder_in_which_a_run_has_just_started_is_left_alone(program: Path, tmp_path: Path) -> None:
    """It holds no more yet than what a refused run leaves."""
    folder = tmp_path / "mine"
    assert run(program, ["hydra.run.dir=mine"], tmp_path).returncode == 0
    with claimed(folder):
        done = run(program, ["hydra.run.dir=mine"], tmp_path)
    assert done.returncode == 2
    assert f"{folder} is written to by a run that is going on" in done.stderr
    assert files(folder) == {"config.yaml", "overrides.yaml", "train.log"}


def test_a_changed_working_directory_changes_no_path(program: Path, tmp_path: Path) -> None:
    """B87."""
    (tmp_path / "a.en").write_text("x\n", encoding="utf-8")
    (tmp_path / "a.de").write_text("x\n", encoding="utf-8")
    line = ["data=parallel", "data.source=a.en", "data.target=a.de", "hydra.run.dir=mine", "hydra.job.chdir=true"]
    done = run(program, line, tmp_path)
    assert done.returncode == 0
    assert f"in {tmp_path / 'mine'}" in done.stderr
    config = yaml.safe_load((tmp_path / "mine" / "config.yaml").read_text(encoding="utf-8"))
    assert config["data"]["source"] == str(tmp_path / "a.en")
    assert files(tmp_path / "mine") == {"config.yaml", "overrides.yaml", "train.log"}


@pytest.mark.parametrize(
    ("seed", "status", "lines"),
    [
        (2, 1, ["ERROR a.en line 7: not UTF-8"]),
        (3, 1, ["Traceback", "ZeroDivisionError: a mistake of ours"]),
        (4, 130, []),
    ],
)
def test_a_run_that_fails_says_why_in_its_log(
    seed: int, status: int, lines: list[str], program: Path, tmp_path: Path
) -> None:
    done = run(program, [f"seed={seed}", "hydra.run.dir=mine"], tmp_path)
    assert done.returncode == status
    assert ("Traceback" in done.stderr) == ("Traceback" in lines)
    log = (tmp_path / "mine" / "train.log").read_text(encoding="utf-8")
    assert all(line in log and line in done.stderr for line in lines)


def test_a_sweep_goes_on_after_a_failed_job_and_tells_of_it(program: Path, tmp_path: Path) -> None:
    """B89, B90: each job has its own folder and log; the table and the exit status name the failures."""
    done = run(program, ["seed=1,2,3,6", "-m", "size=tiny"], tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    (folder,) = (tmp_path / "multirun").glob("*/*")
    logs = [(folder / str(job) / "train.log").read_text(encoding="utf-8") for job in range(4)]
    assert [seed for seed, log in zip([1, 2, 3, 6], logs, strict=True) if f"seed {seed} in" in log] == [1, 2, 3, 6]
    assert "ERROR a.en line 7: not UTF-8" in logs[1]
    assert "ZeroDivisionError: a mistake of ours" in logs[2]
    table = [re.sub(r" +\(.*?s\) +", " | ", line.strip()) for line in done.stderr.split("\n")[-6:-1]]
    assert table == [
        "0  ok      bleu 12.5 | seed=1 size=tiny",
        "1  failed  DataError: a.en line 7: not UTF-8 | seed=2 size=tiny",
        "2  failed  ZeroDivisionError: a mistake of ours | seed=3 size=tiny",
        "3  ok      bleu 12.5 | seed=6 size=tiny",
        "2 of 4 jobs ok, 2 failed",
    ]
    assert yaml.safe_load((folder / "multirun.yaml").read_text(encoding="utf-8"))["data"]["folder"] == "data"


def test_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    """B81: `translate.py ... | head -1`."""
    program = tmp_path / "once.py"
    program.write_text(ONCE, encoding="utf-8")
    command = [sys.executable, "-W", "error", str(program), f"checkpoint={program}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "0\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 141
    assert files(tmp_path) == {"once.py"}


@pytest.mark.parametrize("option", ["input", "checkpoint"])
def test_a_translation_is_not_written_over_what_it_is_made_from(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text or the model would be gone once the translation is there."""
    monkeypatch.chdir(tmp_path)
    for name in ("input", "checkpoint"):
        Path(name).write_text(name, encoding="utf-8")
    Path("alias").symlink_to(option)
    monkeypatch.setattr(sys, "argv", ["translate.py", "checkpoint=checkpoint", "input=input", "output=alias"])
    assert launch.run_once(never, name="translate", conf=ROOT / "conf") == 2
    assert f"output={tmp_path / 'alias'} is {option} too, which it would replace" in capsys.readouterr().err


REFUSED_OR_TRAINED = f"""
import sys
from pathlib import Path
from headloom.config import launch
from headloom.errors import CheckpointError

def work(config, run_dir):
    if config.seed == 2:
        raise CheckpointError("refused")
    if config.seed == 4:
        return 0.0
    if config.seed == 5:
        (run_dir / "removed" / "file").write_bytes(b"")
    if config.seed == 6:
        Path("/dev/full").write_bytes(bytes(9999))
    (run_dir / "checkpoints").mkdir(exist_ok=True)
    (run_dir / "checkpoints" / "last.pt").write_bytes(b"")
    if config.seed == 3:
        raise CheckpointError("failed later")
    return 0.0

if __name__ == "__main__":
    sys.exit(launch.run_jobs(work, name="train", conf=Path({str(ROOT / "conf")!r})))
"""


def test_the_record_of_a_folder_is_of_its_checkpoints_and_not_of_a_run_that_was_refused(tmp_path: Path) -> None:
    """Or that had nothing left to do."""
    program = tmp_path / "program.py"
    program.write_text(REFUSED_OR_TRAINED, encoding="utf-8")
    recorded = []
    for seed in (1, 2, 4, 3):
        run(program, [f"seed={seed}", "hydra.run.dir=run", "resume=auto"], tmp_path)
        config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text(encoding="utf-8"))
        overrides = yaml.safe_load((tmp_path / "run" / "overrides.yaml").read_text(encoding="utf-8"))
        recorded.append(config["seed"])
        assert f"seed={config['seed']}" in overrides
    assert recorded == [1, 1, 1, 3]


@pytest.mark.parametrize(
    ("seed", "said"),
    [
        (5, "run/removed/file cannot be written (No such file or directory)"),
        (6, "run cannot be written (No space left"),
    ],
)
def test_a_run_whose_folder_cannot_be_written_to_any_more_says_so_in_one_line(
    seed: int, said: str, tmp_path: Path
) -> None:
    """B53: somebody has removed it, or the disk is full."""
    program = tmp_path / "program.py"
    program.write_text(REFUSED_OR_TRAINED, encoding="utf-8")
    done = run(program, [f"seed={seed}", "hydra.run.dir=run"], tmp_path)
    assert done.returncode == 1
    assert f"ERROR {tmp_path}/{said}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_run_that_is_refused_leaves_no_folder_behind(program: Path, tmp_path: Path) -> None:
    """But one that was there, with what it held, stays. The log, which goes with it, is not said to be lost."""
    other = tmp_path / "other.pt"
    other.write_bytes(b"")
    for folder in ("new", "used"):
        if folder == "used":
            (tmp_path / folder / "samples").mkdir(parents=True)
        done = run(program, ["seed=5", f"resume={other}", f"hydra.run.dir={folder}"], tmp_path)
        assert (done.returncode, done.stderr.count("last.pt is damaged")) == (1, 1)
        assert "lost" not in done.stderr
        assert (tmp_path / folder).exists() is (folder == "used")
