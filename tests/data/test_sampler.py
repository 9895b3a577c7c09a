"""Batches of row numbers: every row once an epoch, under the budget, at any place again."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headloom.data.sampler import TokenBudgetSampler, ordered_batches, permuted
from headloom.errors import CheckpointError, ConfigError

RANDOM = np.random.default_rng(7)
SOURCE = RANDOM.integers(1, 20, 1000).astype(np.int32)
TARGET = np.clip(SOURCE + RANDOM.integers(-3, 4, 1000), 1, 20).astype(np.int32)


def sampler(num_rows: int = 1000, **options) -> TokenBudgetSampler:
    return TokenBudgetSampler(
        SOURCE[:num_rows], TARGET[:num_rows], **({"max_tokens": 200, "seed": 1, "pool_size": 300} | options)
    )


def epoch_of(batches: TokenBudgetSampler) -> list[np.ndarray]:
    """What is left of the epoch."""
    epoch, out = batches.epoch, []
    while batches.epoch == epoch:
        out.append(next(batches))
    return out


def padded_tokens(rows: np.ndarray, multiple: int = 1) -> int:
    longest = max(SOURCE[rows].max(), TARGET[rows].max())
    return len(rows) * int(-(-longest // multiple) * multiple)


@settings(max_examples=60, deadline=None)
@given(
    num_rows=st.integers(1, 1000),
    max_tokens=st.integers(24, 600),
    pool_size=st.integers(1, 1200),
    multiple=st.sampled_from([1, 4, 8]),
    seed=st.integers(-(2**70), 2**70),
)
def test_every_row_comes_once_an_epoch_and_every_batch_keeps_the_budget(
    num_rows, max_tokens, pool_size, multiple, seed
):
    batches = sampler(num_rows, max_tokens=max_tokens, pool_size=pool_size, pad_to_multiple=multiple, seed=seed)
    for _ in range(2):
        epoch = epoch_of(batches)
        assert sorted(np.concatenate(epoch).tolist()) == list(range(num_rows))
        assert all(padded_tokens(rows, multiple) <= max_tokens for rows in epoch)


@given(num_rows=st.integers(1, 3000), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_the_permutation_takes_each_row_to_another_one(num_rows, seed, epoch):
    assert sorted(permuted(np.arange(num_rows), num_rows, seed=seed, epoch=epoch).tolist()) == list(range(num_rows))


def test_the_permutation_spreads_rows_evenly():
    """Rows of the first tenth land in each tenth about equally often, and neighbours part."""
    num_rows = 100_000
    places = permuted(np.arange(num_rows), num_rows, seed=3, epoch=2)
    counts = np.bincount(places[: num_rows // 10] * 10 // num_rows, minlength=10)
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000)
    steps = np.abs(np.diff(places))
    assert np.mean(steps) == pytest.approx(num_rows / 3, rel=0.02)


def test_a_part_of_the_permutation_needs_no_other_part():
    whole = permuted(np.arange(10_000_000 - 5, 10_000_000), 10_000_000, seed=1, epoch=0)
    one = permuted(np.array([9_999_997]), 10_000_000, seed=1, epoch=0)
    assert one[0] == whole[2]


def test_epochs_and_seeds_differ_and_the_same_seed_does_not():
    first, again, other = sampler(), sampler(), sampler(seed=2)
    one, two = epoch_of(first), epoch_of(first)
    assert [rows.tolist() for rows in one] == [rows.tolist() for rows in epoch_of(again)]
    assert [rows.tolist() for rows in one] != [rows.tolist() for rows in two]
    assert [rows.tolist() for rows in one] != [rows.tolist() for rows in epoch_of(other)]


def test_rows_of_equal_length_meet_others_in_the_next_epoch():
    lengths = np.full(100, 5, np.int32)
    batches = TokenBudgetSampler(lengths, lengths, max_tokens=50, seed=1)
    one, two = epoch_of(batches), epoch_of(batches)
    assert {frozenset(rows.tolist()) for rows in one}.isdisjoint({frozenset(rows.tolist()) for rows in two})


def test_lengths_in_a_batch_are_similar():
    """A pool of all rows wastes little on padding."""
    epoch = epoch_of(sampler(pool_size=10_000))
    padded = sum(len(rows) * int(TARGET[rows].max()) for rows in epoch)
    assert TARGET.sum() / padded > 0.95


def test_batches_do_not_come_sorted_by_length():
    longest = [int(TARGET[rows].max()) for rows in epoch_of(sampler(pool_size=10_000))]
    assert longest != sorted(longest)
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.4


@pytest.mark.parametrize("num_taken", [0, 1, 30, 40, 55, 200])
def test_a_resumed_sampler_goes_on_where_the_other_stopped(num_taken):
    """B55: also when it is stopped and resumed again within the epoch."""
    straight = sampler()
    for _ in range(num_taken):
        next(straight)
    resumed = sampler()
    resumed.load_state(straight.state())
    assert resumed.epoch == straight.epoch
    again = sampler()
    for rows in itertools.islice(straight, 7):
        assert next(resumed).tolist() == rows.tolist()
    again.load_state(resumed.state())
    for rows in itertools.islice(straight, 300):
        assert next(again).tolist() == rows.tolist()
    assert again.state() == straight.state()


def test_the_state_is_of_plain_numbers_and_names_the_next_batch():
    batches = sampler()
    num_batches = len(epoch_of(batches))
    assert batches.epoch == 1
    state = batches.state()
    assert (state["epoch"], state["pool"], state["batch"]) == (1, 0, 0)
    assert all(type(value) is int for value in state.values())
    assert num_batches > 10


@pytest.mark.parametrize(
    "change", [{"seed": 2}, {"max_tokens": 100}, {"num_rows": 999}, {"pad_to_multiple": 8}, {"pool_size": 100}]
)
def test_a_state_of_other_batches_is_refused(change):
    state = sampler().state()
    with pytest.raises(CheckpointError, match=next(iter(change))):
        sampler(**change).load_state(state)


def test_where_lengths_are_rounded_rows_come_in_eights_but_for_few_rows_and_the_end_of_a_pool():
    counts = [len(rows) for rows in epoch_of(sampler(pool_size=500, pad_to_multiple=4))]
    assert sum(counts) == 1000
    assert sum(count > 8 and count % 8 != 0 for count in counts) <= 2


def test_a_row_longer_than_the_budget_is_refused_by_the_option():
    with pytest.raises(ConfigError, match=r"trainer\.max_tokens=19 .*20 tokens"):
        sampler(max_tokens=19)
    with pytest.raises(ConfigError, match=r"trainer\.max_tokens=20 .*24 tokens"):
        sampler(max_tokens=20, pad_to_multiple=8)


@settings(max_examples=60, deadline=None)
@given(num_rows=st.integers(1, 300), max_tokens=st.integers(1, 400))
def test_evaluation_batches_hold_every_row_once(num_rows, max_tokens):
    """B19: also one row with a large budget, and rows longer than the budget, each alone."""
    batches = ordered_batches(SOURCE[:num_rows], TARGET[:num_rows], max_tokens=max_tokens)
    assert sorted(np.concatenate(batches).tolist()) == list(range(num_rows))
    assert all(padded_tokens(rows) <= max_tokens or len(rows) == 1 for rows in batches)
