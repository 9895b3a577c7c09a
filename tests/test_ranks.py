"""What processes that train together tell each other."""

import os
import sys
import time
from pathlib import Path

import pytest
import torch

from headloom.errors import DataError, RankLost
from headloom.ranks import ALONE, Ranks

sys.path.insert(0, str(Path(__file__).parent))
from ranks_in_forks import on_ranks


def everything(ranks: Ranks) -> dict[str, object]:
    one, counts = torch.tensor(1.5), torch.tensor([1, ranks.rank])
    ranks.add_up(one, counts)
    return {
        "shares": ranks.in_order([f"made of {item}" for item in ranks.share(range(7))]),
        "few": ranks.in_order(list(ranks.share(["one"]))),
        "sum": ranks.all_sums(ranks.rank + 1, 2),
        "max": ranks.all_max(ranks.rank + 1),
        "add_up": [one.item(), *counts.tolist()],
        "first": ranks.first_says(f"rank {ranks.rank}"),
        "gathered": ranks.gathered(ranks.rank),
        "done": ranks.first_does(os.getpid),
        "pid": os.getpid(),
    }


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_all_ranks_hear_the_same(world_size):
    """B101, B102: items are shared without a copy and come back in order; a process alone needs no case of its own."""
    answers = [everything(ALONE)] if world_size == 1 else on_ranks(world_size, everything)
    pids = [answer.pop("pid") for answer in answers]
    for answer in answers:
        assert answer == {
            "shares": [f"made of {item}" for item in range(7)],
            "few": ["one"],
            "sum": (sum(range(1, world_size + 1)), 2 * world_size),
            "max": world_size,
            "add_up": [1.5 * world_size, world_size, sum(range(world_size))],
            "first": "rank 0",
            "gathered": list(range(world_size)),
            "done": pids[0],
        }


def test_what_rank_0_prepares_is_there_before_the_others_come(tmp_path):
    """B102: they wait for a slow writer."""

    def prepare(ranks: Ranks) -> bool:
        with ranks.first_goes_first():
            if ranks.is_first:
                time.sleep(0.5)
                (tmp_path / "prepared").touch()
            return (tmp_path / "prepared").exists()

    assert on_ranks(3, prepare) == [True] * 3


def test_what_rank_0_cannot_do_ends_all(tmp_path):
    def fail(ranks: Ranks) -> None:
        def act() -> None:
            raise DataError("the disk is full")

        ranks.first_does(act)

    def fail_first(ranks: Ranks) -> None:
        with ranks.first_goes_first():
            raise DataError("no such file")

    first, second = on_ranks(2, fail)
    assert (type(first), str(first)) == (DataError, "the disk is full")
    assert (type(second), str(second)) == (RankLost, "rank 0 could not go on: DataError: the disk is full")
    first, second = on_ranks(2, fail_first)
    assert (type(first), str(first)) == (DataError, "no such file")
    assert (type(second), str(second)) == (RankLost, "rank 0 could not go on: its message says why")


@pytest.mark.parametrize("way", ["dies", "hangs"])
def test_a_rank_that_is_gone_ends_the_others_in_time(way):
    """B99: with a message."""

    def wait(ranks: Ranks) -> int:
        if ranks.rank == 1:
            if way == "dies":
                os._exit(1)
            time.sleep(3)
        return ranks.all_sums(1)[0]

    lost = on_ranks(3, wait, timeout_seconds=1)[0]
    assert isinstance(lost, RankLost)
    assert "rank 0: another rank ended, or did not answer for 1 s" in str(lost)
