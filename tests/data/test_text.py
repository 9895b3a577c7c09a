"""Pairs in memory and what is common to all pairs."""

import pytest

from headloom.data.text import PairList, Subset, content_hash, evenly_spread
from headloom.errors import DataError

PAIRS = PairList([(f"s{i}", f"t{i}") for i in range(10)])


def test_a_pair_list_gives_its_pairs():
    assert len(PAIRS) == 10
    assert PAIRS[3] == ("s3", "t3")
    assert list(PAIRS) == [PAIRS[row] for row in range(10)]
    for row in (-1, 10):
        with pytest.raises(IndexError):
            PAIRS[row]


def test_the_fingerprint_tells_where_one_text_ends():
    assert content_hash(["ab", "c"]) != content_hash(["a", "bc"])
    assert PairList([("ab", "c")]).fingerprint != PairList([("a", "bc")]).fingerprint
    assert PairList([("a", "b")], name="x").fingerprint == PairList([("a", "b")], name="y").fingerprint


def test_a_subset_has_its_rows_in_the_order_given():
    subset = Subset(PAIRS, [7, 2], name="some")
    assert list(subset) == [("s7", "t7"), ("s2", "t2")]
    with pytest.raises(IndexError):
        subset[2]
    assert len({Subset(PAIRS, rows, name="some").fingerprint for rows in ([7, 2], [2, 7], [7])}) == 3
    assert subset.fingerprint == Subset(PAIRS, (7, 2), name="other").fingerprint


def test_few_pairs_are_all_taken_and_many_at_equal_distances():
    assert list(evenly_spread(PAIRS, max_pairs=10)) == list(PAIRS)
    assert [source for source, _ in evenly_spread(PAIRS, max_pairs=4)] == ["s0", "s2", "s5", "s7"]
    with pytest.raises(DataError, match="nothing holds no pair"):
        list(evenly_spread(PairList([], name="nothing"), max_pairs=4))
