"""The mean of several checkpoints: its numbers, and what cannot be averaged."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from headloom.errors import CheckpointError
from headloom.training.averaging import WeightAverage
from headloom.training.checkpoint import load_checkpoint, save_checkpoint
from headloom.training.checkpoint_average import average_checkpoints


def model(seed: int) -> nn.Module:
    """With a tied matrix, and a buffer of integers."""
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5, bias=False))
    module[2].weight = module[0].weight
    module.register_buffer("count", torch.tensor(seed))
    return module


def save(path: Path, seed: int, *, module: nn.Module | None = None, **parts: Any) -> Path:
    contents = {
        "config": {"model": {"d_model": 4, "dropout": 0.1}, "seed": 1},
        "tokenizers": {"source": b"abc"},
        "model": (module or model(seed)).state_dict(),
        "average": None,
        "optimizer": {"state": {}},
        "step": seed,
    }
    save_checkpoint(path, contents | parts)
    return path


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_mean_of_copies_is_what_was_copied(tmp_path):
    """B69: bit for bit, with a tied matrix, for a number of copies that no float divides by exactly."""
    paths = [save(tmp_path / f"{i}.pt", 7) for i in range(3)]
    assert same(average_checkpoints(paths)["model"], load_checkpoint(paths[0])["model"])


def test_each_weight_is_the_mean_and_the_order_of_files_changes_nothing(tmp_path):
    """B69."""
    paths = [save(tmp_path / f"{seed}.pt", seed) for seed in (3, 1, 2)]
    models = [load_checkpoint(path)["model"] for path in paths]
    mean = average_checkpoints(paths)["model"]
    for name in ("0.weight", "1.weight", "1.bias", "2.weight"):
        expected = torch.stack([weights[name].double() for weights in models]).mean(0).float()
        torch.testing.assert_close(mean[name], expected, rtol=0, atol=0)
    assert same(mean, average_checkpoints(paths[::-1])["model"])


def test_a_tied_matrix_stays_one_and_is_stored_once(tmp_path):
    """B61, B69: not added twice."""
    contents = average_checkpoints([save(tmp_path / f"{seed}.pt", seed) for seed in (1, 2)])
    assert contents["model"]["0.weight"].data_ptr() == contents["model"]["2.weight"].data_ptr()
    save_checkpoint(tmp_path / "mean.pt", contents)
    loaded = load_checkpoint(tmp_path / "mean.pt")["model"]
    assert loaded["0.weight"].data_ptr() == loaded["2.weight"].data_ptr()


def test_integers_and_all_that_is_no_weight_are_those_of_the_newest(tmp_path):
    """B69; and nothing is there that a run would go on from."""
    contents = average_checkpoints([save(tmp_path / f"{seed}.pt", seed) for seed in (1, 3, 2)])
    assert contents["model"]["count"] == 3
    assert contents["model"]["count"].dtype is torch.int64
    assert contents["averaged_steps"] == [1, 2, 3]
    assert contents["step"] == 3
    assert contents["tokenizers"] == {"source": b"abc"}
    assert contents["average"] is None
    assert "optimizer" not in contents


def test_sums_are_not_those_of_a_small_type(tmp_path):
    """B69: a large weight does not swallow small ones."""
    paths = []
    for seed, value in enumerate((1e8, 1.0, 1.0, 1.0, -1e8)):
        module = model(0)
        nn.init.constant_(module[1].bias, value)
        paths.append(save(tmp_path / f"{seed}.pt", seed, module=module))
    assert average_checkpoints(paths)["model"]["1.bias"][0] == pytest.approx(0.6)


def test_of_a_checkpoint_with_averaged_weights_these_are_taken(tmp_path):
    """What it translates with."""
    paths, expected = [], []
    for seed in (1, 2):
        module = model(seed)
        average = WeightAverage(module, decay=0.5)
        with torch.no_grad():
            module[0].weight.add_(100)
        paths.append(save(tmp_path / f"{seed}.pt", seed, module=module, average=average.state()))
        expected.append(average.state()["weights"]["0.weight"])
    mean = average_checkpoints(paths)["model"]
    torch.testing.assert_close(mean["0.weight"], torch.stack(expected).mean(0))
    assert mean["2.weight"].data_ptr() == mean["0.weight"].data_ptr()


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (
            {"config": {"model": {"d_model": 8, "dropout": 0.1}, "seed": 1}},
            r"another model\.d_model \(8, not 4\) than .*1\.pt",
        ),
        ({"config": {"model": {"d_model": 4}, "seed": 1}}, r"another model\.dropout \(None, not 0\.1\)"),
        (
            {"config": {"model": {"d_model": 8, "bias": True}, "task": {"kind": "tagging", "headline": "f1"}}},
            r"another task \(tagging, not None\) than",
        ),
        ({"config": {"model": {"d_model": 4, "bias": True, "kind": "lm"}}}, r"another model \(lm, not None\) than"),
        ({"tokenizers": {"source": b"abd"}}, "other tokenizers than"),
        ({"labels": ["a"]}, "other labels than"),
        ({"module": nn.Linear(4, 4)}, "weights of other names or shapes than"),
    ],
)
def test_checkpoints_of_different_models_are_refused(tmp_path, parts, reason):
    """Task and model are named before any option that only one of two tasks or models has."""
    paths = [save(tmp_path / "1.pt", 1), save(tmp_path / "2.pt", 2, **parts)]
    with pytest.raises(CheckpointError, match=rf"2\.pt has {reason}.*: average checkpoints of one model"):
        average_checkpoints(paths)


def test_other_data_another_rate_another_beginning_or_another_seed_are_no_other_model(tmp_path):
    config = {"model": {"d_model": 4, "dropout": 0.1}, "seed": 2, "optimizer": {"lr": 1.0}, "warm_start": "1.pt"}
    paths = [save(tmp_path / "1.pt", 1), save(tmp_path / "2.pt", 2, config=config, corpus="another")]
    assert average_checkpoints(paths)["averaged_steps"] == [1, 2]


def test_an_average_counts_as_a_checkpoint_like_others(tmp_path):
    mean = tmp_path / "mean.pt"
    save_checkpoint(mean, average_checkpoints([save(tmp_path / f"{seed}.pt", seed) for seed in (1, 2)]))
    weights = [load_checkpoint(path)["model"]["1.weight"] for path in (mean, save(tmp_path / "3.pt", 3))]
    found = average_checkpoints([mean, tmp_path / "3.pt"])
    torch.testing.assert_close(found["model"]["1.weight"], (weights[0] + weights[1]) / 2)
    assert found["averaged_steps"] == [2, 3]
