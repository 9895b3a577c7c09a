"""What the checkpoints of a run are called, and which of them stay."""

import shutil
from pathlib import Path

import pytest

from headloom.errors import CheckpointError
from headloom.training.checkpoint import load_checkpoint, save_checkpoint
from headloom.training.checkpoint_folder import CheckpointFolder
from headloom.training.interrupt import Interrupt


def save(folder: CheckpointFolder, step: int, *, numbered: bool = True, best: bool = False) -> None:
    save_checkpoint(folder.last, {"step": step})
    folder.name_last(step=step, numbered=numbered, best=best)


def partial_files(folder: Path) -> list[Path]:
    return list(folder.glob("*.partial-*"))


def numbers(folder: CheckpointFolder) -> list[int]:
    return sorted(int(path.stem[5:]) for path in folder.folder.glob("step_*.pt"))


def test_the_newest_numbers_are_kept_and_last_and_best_besides(tmp_path):
    """B59: step_9 is older than step_10; what is best stays though its number goes."""
    folder = CheckpointFolder(tmp_path, keep=2)
    assert folder.is_empty()
    for step in (8, 9, 10, 11):
        save(folder, step, best=step == 8)
    assert numbers(folder) == [10, 11]
    assert load_checkpoint(folder.best)["step"] == 8
    assert load_checkpoint(folder.last)["step"] == 11
    save(folder, 100)
    assert numbers(folder) == [11, 100]
    assert not folder.is_empty()
    assert not partial_files(tmp_path)


def test_a_run_killed_before_the_last_checkpoint_had_its_other_names_gives_them(make_loop, tmp_path):
    loop = make_loop(save_every=2, keep_best=1, headlines=iter([1.0]))
    loop.run(Interrupt())
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["best.pt", "best_6.pt", "last.pt", "step_2.pt", "step_4.pt", "step_6.pt"]
    for name in ("best.pt", "step_6.pt", "best_6.pt"):
        (tmp_path / name).unlink()
    shutil.copy(tmp_path / "step_2.pt", tmp_path / "best.pt")  # the best one before
    resumed = make_loop(save_every=2, keep_best=1).load_contents(load_checkpoint(tmp_path / "last.pt"))
    resumed.name_last()
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert load_checkpoint(tmp_path / "best.pt")["step"] == 6


def test_the_best_checkpoint_comes_along_to_the_folder_of_a_run_that_is_resumed_elsewhere(make_loop, tmp_path):
    """Or a run that finds none better would end without one."""
    make_loop(iter([1.0, 2.0, 2.0]), folder=tmp_path / "old", evaluate_every=2, save_every=2).run(Interrupt())
    for number, name in enumerate(("step_2.pt", "step_4.pt", "last.pt")):
        start = tmp_path / "old" / name
        loop = make_loop(folder=tmp_path / str(number)).load_contents(load_checkpoint(start))
        loop.take_best(start)
        assert load_checkpoint(tmp_path / str(number) / "best.pt")["step"] == 2


def test_a_run_that_goes_on_from_another_file_has_it_as_its_last_from_the_start(tmp_path):
    """What it rolls back to, or is resumed from if it is killed at once, is of no other course and is there."""
    folder = CheckpointFolder(tmp_path / "own", keep=3)
    folder.begin(None)
    assert folder.is_empty()
    for step in (1, 2):
        save(folder, step)
    folder.begin(folder.last)
    assert load_checkpoint(folder.last)["step"] == 2
    folder.begin(folder.folder / "step_1.pt")
    assert load_checkpoint(folder.last)["step"] == 1
    elsewhere = CheckpointFolder(tmp_path / "other", keep=3)
    elsewhere.begin(folder.folder / "step_2.pt")
    assert load_checkpoint(elsewhere.last)["step"] == 2
    assert not partial_files(folder.folder)


def test_a_folder_that_cannot_hold_checkpoints_is_named_before_there_is_work_to_lose(tmp_path):
    """B53: not hours later, at the first one."""
    (tmp_path / "checkpoints").write_bytes(b"a file")
    with pytest.raises(CheckpointError, match=r"checkpoints/last\.pt cannot be written \(File exists\)"):
        CheckpointFolder(tmp_path / "checkpoints", keep=3).begin(None)


def test_none_are_numbered_when_none_are_kept_and_strangers_are_left_alone(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=0)
    (tmp_path / "step_old.pt").write_bytes(b"")
    save(folder, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.pt", "step_old.pt"]
    save(CheckpointFolder(tmp_path, keep=1), 2)
    assert (tmp_path / "step_old.pt").exists()


def test_a_run_resumed_from_an_older_checkpoint_makes_its_later_ones_anew(make_loop, tmp_path, caplog):
    """Those of the course that it has left would push its own out of the rotation, and be averaged with them."""
    caplog.set_level("INFO")
    options = {"save_every": 1, "evaluate_every": 1, "keep_best": 9, "max_steps": 5}
    first = make_loop(iter([3.0, 2.0, 4.0, 1.0, 5.0]), **options)
    first.checkpoints.keep = 3
    first.run(Interrupt())
    start = tmp_path / "step_3.pt"
    again = make_loop(iter([6.0, 7.0]), **options).load_contents(load_checkpoint(start))
    again.checkpoints.keep = 3
    again.take_best(start)
    (tmp_path / "best_2.pt").unlink()
    assert load_checkpoint(tmp_path / "best.pt")["step"] == 2
    assert load_checkpoint(tmp_path / "best_left.pt")["step"] == 4
    again.run(Interrupt())
    assert numbers(again.checkpoints) == [3, 4, 5]
    assert {load_checkpoint(path)["ranking"][-1][0] for path in tmp_path.glob("step_[45].pt")} == {6.0, 7.0}
    assert load_checkpoint(tmp_path / "best.pt")["step"] == 2
    assert any("removed step_5.pt, best_5.pt: the run goes on from step 4" in message for message in caplog.messages)


def test_a_best_checkpoint_of_a_course_that_was_left_is_kept_aside_where_the_right_one_is_gone(make_loop, tmp_path):
    """And found again, where the run goes on as it was after all."""
    options = {"save_every": 1, "evaluate_every": 1, "max_steps": 4}
    first = make_loop(iter([1.0, 2.0, 2.0, 0.5]), **options)
    first.run(Interrupt())
    (tmp_path / "step_1.pt").unlink()
    for name, left in (("step_3.pt", True), ("last.pt", False)):
        loop = make_loop(**options).load_contents(load_checkpoint(tmp_path / name))
        for _ in range(2):
            loop.take_best(tmp_path / name)
            assert load_checkpoint(tmp_path / "best_left.pt")["step"] == 4
            assert (tmp_path / "best.pt").exists() is not left
    assert load_checkpoint(tmp_path / "best.pt")["step"] == 4
