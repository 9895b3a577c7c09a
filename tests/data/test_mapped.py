"""Arrays on disk, read in parts."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headloom.data import mapped
from headloom.data.mapped import MappedArray

VALUES = np.random.default_rng(3).integers(0, 60_000, 500).astype("<u2")


@pytest.fixture(scope="module")
def array(tmp_path_factory) -> MappedArray:
    return on_disk(tmp_path_factory.mktemp("mapped") / "values")


def on_disk(path: Path) -> MappedArray:
    VALUES.tofile(path)
    return MappedArray(path, "<u2", len(VALUES))


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.integers(0, 499), max_size=40), part=st.sampled_from([1, 3, 1000]))
def test_entries_in_any_order_are_those_of_the_array(array, rows, part):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapped, "_PART_ROWS", part)
        assert array[np.array(rows, np.int64)].tolist() == VALUES[rows].tolist()


@settings(max_examples=60, deadline=None)
@given(
    ranges=st.lists(st.tuples(st.integers(0, 480), st.integers(0, 20)), max_size=30), part=st.sampled_from([1, 3, 1000])
)
def test_ranges_in_any_order_are_those_of_the_array(array, ranges, part):
    starts, lengths = (np.array([pair[i] for pair in ranges], np.int64) for i in (0, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapped, "_PART_RANGES", part)
        copy = array.ranges(starts, lengths)
    order = np.random.default_rng(1).permutation(len(ranges))
    taken = copy.take(order)
    assert [
        taken.flat[start : start + length].tolist() for start, length in zip(taken.starts, taken.lengths, strict=True)
    ] == [VALUES[starts[i] : starts[i] + lengths[i]].tolist() for i in order]


@pytest.mark.parametrize("part", [1, 7, 1000])
def test_the_largest_entry_is_found_in_parts(array, part, monkeypatch):
    monkeypatch.setattr(mapped, "_PART_ENTRIES", part)
    assert array.max() == VALUES.max()


def test_a_file_of_another_size_is_refused(tmp_path):
    on_disk(tmp_path / "values")
    with pytest.raises(ValueError, match="values has 1000 bytes instead of 499 entries"):
        MappedArray(tmp_path / "values", "<u2", 499)
