"""Records: metrics.jsonl, TensorBoard, the log and the samples, in one piece after kills and full disks."""

import json
import logging
import math
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

from headloom.errors import ConfigError
from headloom.insight.dashboard import Dashboard
from headloom.insight.samples import Sample

SAMPLE = Sample("A cat", "Eine Katze", "Ein Kater")
PIXELS = np.zeros((2, 3, 3), np.uint8)


def metrics(run_dir: Path) -> list[dict]:
    lines = (run_dir / "metrics.jsonl").read_bytes().decode("utf-8").split("\n")
    assert lines.pop() == ""
    return [json.loads(line, parse_constant=pytest.fail) for line in lines]


def events(run_dir: Path) -> EventAccumulator:
    keep_all = {"scalars": 0, "images": 0, "tensors": 0}
    return EventAccumulator(str(run_dir / "tensorboard"), size_guidance=keep_all).Reload()


def train(run_dir: Path, first_step: int, last_step: int) -> None:
    """What a run records up to a kill; closing writes nothing, so that it is no gentler end than a kill."""
    with Dashboard(run_dir, first_step=first_step) as dashboard:
        for step in range(first_step + 1, last_step + 1):
            dashboard.record(step, {"train/loss": 1 / step, "train/learning_rate": 0.001})
            if step % 50 == 0:
                dashboard.record(step, {"valid/bleu": step / 10})
                dashboard.figure(step, "attention/encoder.0.self", PIXELS)
                dashboard.samples(step, [SAMPLE])


@contextmanager
def full_disk(num_bytes: int) -> Iterator[None]:
    """No file of this process grows past `num_bytes`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_run_that_was_killed_and_resumed_has_every_step_once(tmp_path):
    """B94: killed at 150, resumed from the checkpoint of 100, trained to 200; on every tag and in metrics.jsonl."""
    train(tmp_path, 0, 150)
    train(tmp_path, 100, 200)
    read = events(tmp_path)
    assert read.Tags()["scalars"] == ["train/loss", "train/learning_rate", "valid/bleu"]
    for tag in ("train/loss", "train/learning_rate"):
        assert [event.step for event in read.Scalars(tag)] == list(range(1, 201))
    assert [event.step for event in read.Scalars("valid/bleu")] == [50, 100, 150, 200]
    assert [event.step for event in read.Images("attention/encoder.0.self")] == [50, 100, 150, 200]
    assert [event.step for event in read.Tensors("samples")] == [50, 100, 150, 200]
    steps = [record["step"] for record in metrics(tmp_path) if "train/loss" in record]
    assert steps == list(range(1, 201))


def test_a_resume_keeps_the_records_of_the_step_it_starts_from(tmp_path):
    train(tmp_path, 0, 60)
    Dashboard(tmp_path, first_step=50).close()
    assert metrics(tmp_path)[-1]["valid/bleu"] == 5.0
    assert [event.step for event in events(tmp_path).Scalars("valid/bleu")] == [50]


def test_a_fresh_start_keeps_nothing_of_an_attempt_that_left_no_checkpoint(tmp_path):
    with Dashboard(tmp_path, first_step=0) as first:
        first.record(0, {"valid/loss": 9.0})
        first.record(1, {"train/loss": 9.0})
        first.samples(0, [SAMPLE])
    with Dashboard(tmp_path, first_step=0) as second:
        second.record(1, {"train/loss": 3.0})
    assert [record["train/loss"] for record in metrics(tmp_path)] == [3.0]
    assert [event.value for event in events(tmp_path).Scalars("train/loss")] == [3.0]
    assert events(tmp_path).Tags()["scalars"] == ["train/loss"]
    assert list((tmp_path / "samples").iterdir()) == []


def test_samples_of_lost_steps_are_removed(tmp_path):
    train(tmp_path, 0, 150)
    Dashboard(tmp_path, first_step=100).close()
    assert sorted(path.name for path in (tmp_path / "samples").iterdir()) == ["step_100.txt", "step_50.txt"]


@pytest.mark.parametrize("torn", [b'{"step": 3, "train/lo', b'{"step": 3}', b"\0\0\0\n", b"[3]\n", b'{"loss": 3}\n'])
def test_a_line_torn_by_a_kill_is_removed_on_resume(tmp_path, caplog, torn):
    train(tmp_path, 0, 3)
    whole = (tmp_path / "metrics.jsonl").read_bytes()
    (tmp_path / "metrics.jsonl").write_bytes(whole + torn)
    train(tmp_path, 3, 4)
    assert [record["step"] for record in metrics(tmp_path)] == [1, 2, 3, 4]
    assert (tmp_path / "metrics.jsonl").read_bytes().startswith(whole)
    assert f"{tmp_path / 'metrics.jsonl'}: removed 1 lines that are no whole record" in caplog.messages


@pytest.mark.parametrize("tear", [lambda whole: whole[:-5], lambda whole: whole[:-60] + bytes(60)])
def test_a_torn_event_file_hides_nothing_that_comes_after_the_resume(tmp_path, tear):
    train(tmp_path, 0, 3)
    (torn,) = (tmp_path / "tensorboard").iterdir()
    torn.write_bytes(tear(torn.read_bytes()))
    train(tmp_path, 2, 4)
    assert [event.step for event in events(tmp_path).Scalars("train/loss")] == [1, 2, 3, 4]


def test_many_resumes_within_one_second_are_read_in_their_order(tmp_path):
    for step in range(12):
        with Dashboard(tmp_path, first_step=step) as dashboard:
            dashboard.record(step + 1, {"train/loss": step})
    assert [event.value for event in events(tmp_path).Scalars("train/loss")] == list(range(12))


def test_a_run_folder_is_one_tensorboard_run_also_after_a_resume(tmp_path):
    """B96: and a text made of lists, None and nested values is text."""
    train(tmp_path / "run", 0, 3)
    with Dashboard(tmp_path / "run", first_step=2) as dashboard:
        dashboard.text(2, "config", f"{ {'betas': [0.9, None], 'nested': {'a': {'b': ()}}} }")
    runs = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload().Runs()
    assert list(runs) == ["run/tensorboard"]


def test_records_whose_file_was_removed_are_said_to_be_lost(tmp_path, caplog):
    """They would go where nobody can read them."""
    with Dashboard(tmp_path, first_step=0) as dashboard:
        (tmp_path / "metrics.jsonl").unlink()
        for step in (1, 2):
            dashboard.record(step, {"train/loss": 1.0})
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        f"{tmp_path / 'metrics.jsonl'} cannot be written (it was removed): records are lost, training goes on"
    ]


def test_a_full_disk_costs_records_and_one_warning_a_file_but_not_the_run(tmp_path, caplog):
    """B95: the records that fit stay readable, and recording goes on when there is room again."""
    train(tmp_path, 0, 20)
    largest = max(path.stat().st_size for path in [tmp_path / "metrics.jsonl", *(tmp_path / "tensorboard").iterdir()])
    with Dashboard(tmp_path, first_step=20) as dashboard:
        dashboard.record(21, {"train/loss": 1.0})
        with full_disk(largest + 150):
            for step in range(22, 60):
                dashboard.record(step, {"train/loss": 1.0, "train/learning_rate": 0.1})
                dashboard.figure(step, "attention/encoder.0.self", np.zeros((400, 400, 3), np.uint8))
                dashboard.samples(step, [SAMPLE] * 100)
        dashboard.record(60, {"train/loss": 0.5})
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 3
    assert all("cannot be written (File too large)" in warning for warning in warnings)
    steps = [record["step"] for record in metrics(tmp_path)]
    assert steps[:21] == list(range(1, 22))
    assert steps[-1] == 60
    assert len(steps) < 60
    in_tensorboard = [event.step for event in events(tmp_path).Scalars("train/loss")]
    assert in_tensorboard[:21] == list(range(1, 22))
    assert in_tensorboard[-1] == 60


def test_a_record_is_on_disk_when_the_call_returns(tmp_path):
    with Dashboard(tmp_path, first_step=0) as dashboard:
        dashboard.record(1, {"train/loss": 2.5})
        assert metrics(tmp_path)[0]["train/loss"] == 2.5
        assert events(tmp_path).Scalars("train/loss")[0].value == 2.5


def test_what_is_not_finite_is_null_in_json_and_itself_in_tensorboard_and_the_log(tmp_path, caplog):
    """JSON has no NaN: strict readers refuse it, and pandas reads null as NaN."""
    caplog.set_level(logging.INFO, logger="headloom")
    with Dashboard(tmp_path, first_step=0) as dashboard:
        dashboard.record(1, {"train/loss": math.nan, "train/perplexity": math.inf, "train/gradient_norm": -math.inf})
    (record,) = metrics(tmp_path)
    assert record["train/loss"] is record["train/perplexity"] is record["train/gradient_norm"] is None
    assert math.isnan(events(tmp_path).Scalars("train/loss")[0].value)
    assert events(tmp_path).Scalars("train/perplexity")[0].value == math.inf
    assert caplog.messages == ["step=1 train/loss=nan train/perplexity=inf train/gradient_norm=-inf"]


def test_a_record_is_one_line_of_keys_and_values_in_the_log(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="headloom")
    values = {"train/loss": 3.4127182, "train/learning_rate": 0.0003, "train/tokens_per_second": 18000.4, "epoch": 2}
    with Dashboard(tmp_path, first_step=0) as dashboard:
        dashboard.record(100, values)
    assert caplog.messages == [
        "step=100 train/loss=3.4127 train/learning_rate=0.0003 train/tokens_per_second=18000 epoch=2"
    ]


def test_the_gradient_norms_of_layers_are_recorded_but_not_logged(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="headloom")
    with Dashboard(tmp_path, first_step=0) as dashboard:
        dashboard.record(1, {"gradient_norm/encoder.0": 0.5})
    assert metrics(tmp_path)[0]["gradient_norm/encoder.0"] == 0.5
    assert events(tmp_path).Tags()["scalars"] == ["gradient_norm/encoder.0"]
    assert caplog.messages == []


def test_numbers_of_numpy_are_recorded_as_numbers(tmp_path):
    with Dashboard(tmp_path, first_step=0) as dashboard:
        dashboard.record(1, {"a": np.float32(0.5), "b": np.int64(7)})
    assert {key: value for key, value in metrics(tmp_path)[0].items() if key in "ab"} == {"a": 0.5, "b": 7}


def test_elapsed_seconds_go_on_where_the_kept_records_end(tmp_path):
    lines = b'{"step": 10, "elapsed_seconds": 1000.0}\n{"step": 20, "elapsed_seconds": 2000.0}\n'
    (tmp_path / "metrics.jsonl").write_bytes(lines)
    with Dashboard(tmp_path, first_step=10) as dashboard:
        dashboard.record(11, {"train/loss": 1.0})
    assert 1000.0 <= metrics(tmp_path)[-1]["elapsed_seconds"] < 1500.0


def test_samples_are_a_file_that_a_person_can_read(tmp_path):
    with Dashboard(tmp_path, first_step=0) as dashboard:
        dashboard.samples(7, [SAMPLE, Sample("日本\udce9", "", "x")])
    text = (tmp_path / "samples" / "step_7.txt").read_bytes().decode("utf-8")
    assert text == (
        "source:      A cat\nreference:   Eine Katze\ntranslation: Ein Kater\n\n"
        "source:      日本?\nreference:   \ntranslation: x\n"
    )


def test_a_folder_that_cannot_be_written_to_is_refused_before_the_first_step(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"hydra.run.dir=.*file/run.*Not a directory"):
        Dashboard(tmp_path / "file" / "run", first_step=0)


def test_a_closed_dashboard_can_be_closed_again(tmp_path):
    dashboard = Dashboard(tmp_path, first_step=0)
    dashboard.record(1, {"train/loss": 1.0})
    dashboard.close()
    dashboard.close()
    assert len(metrics(tmp_path)) == 1
