"""Setting pairs aside."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headloom.data.split import hold_out, masked, normalised, split_off
from headloom.data.text import PairList
from headloom.errors import DataError

NUMBERS = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]


def numbered(count: int) -> list[tuple[str, str]]:
    """Pairs that are no near-copies of each other: numbers would be."""
    return [(" ".join(NUMBERS[int(d)] for d in f"{n:04d}"), f"ziel {chr(0x4E00 + n)}") for n in range(count)]


def test_normalising_forgets_case_punctuation_and_which_number_it_is():
    assert normalised("  Sensor 12: “Größe”, 3.5 km!") == "sensor 0 grösse 0 0 km"
    assert normalised("...") == ""


def test_masking_forgets_capitalised_words_but_the_first():
    assert masked("Set up your Foo Bar account") == "set up your x x account"
    assert masked("Set up your Foo2 account 7") == masked("Set up your Qux account 12")
    assert masked("") == ""


def test_held_out_pairs_are_a_tenth_each_and_at_most_the_number_asked_for():
    train, valid, test = hold_out(numbered(200), min_words=1, max_pairs=1000)
    assert (len(train), len(valid), len(test)) == (160, 20, 20)
    assert sorted([*train, *valid, *test]) == sorted(numbered(200))
    train, valid, test = hold_out(numbered(200), min_words=1, max_pairs=7)
    assert (len(train), len(valid), len(test)) == (186, 7, 7)


def test_a_short_source_is_not_held_out():
    _, valid, test = hold_out([*numbered(100), *[(chr(0x4E00 + n), f"z {chr(0x5E00 + n)}") for n in range(100)]],
                              min_words=4, max_pairs=1000)  # fmt: skip
    assert len(valid) == len(test) == 10
    assert all(len(source.split()) == 4 for source, _ in valid + test)


words = st.sampled_from(["Open", "open", "the", "Door", "door", "door!", "Lamp", "7", "8", "tür", "Tür."])
sentences = st.lists(words, min_size=1, max_size=4).map(" ".join)


@given(st.lists(st.tuples(sentences, sentences), min_size=1, max_size=60))
def test_no_held_out_text_has_a_near_copy_elsewhere(pairs):
    train, valid, test = hold_out(pairs, min_words=1, max_pairs=3)
    for part, others in ((valid, train + test), (test, train + valid)):
        for key in (lambda p: normalised(p[0]), lambda p: masked(p[0]), lambda p: normalised(p[1])):
            assert not {key(pair) for pair in part} & {key(pair) for pair in others}


def test_a_share_split_off_is_about_that_share_and_the_parts_make_the_whole(tmp_path):
    pairs = PairList(numbered(2000))
    train, valid = split_off(pairs, 0.1, cache=tmp_path)
    assert 140 < len(valid) < 260  # 200 expected, standard deviation 13
    assert sorted([*train, *valid]) == sorted(pairs)
    assert len(train) + len(valid) == 2000


def test_training_pairs_by_number_are_those_that_iteration_gives(tmp_path):
    train, _ = split_off(PairList(numbered(300)), 0.3, cache=tmp_path)
    assert [train[row] for row in range(len(train))] == list(train)
    with pytest.raises(IndexError):
        train[len(train)]
    with pytest.raises(IndexError):
        train[-1]


def test_a_pair_stays_on_its_side_when_others_come_and_go(tmp_path):
    _, valid = split_off(PairList(numbered(1000)), 0.1, cache=tmp_path)
    _, valid_of_fewer = split_off(PairList(reversed(numbered(1000)[::2])), 0.1, cache=tmp_path)
    assert set(valid_of_fewer) == set(valid) & set(numbered(1000)[::2])


def test_pairs_with_nearly_the_same_source_lie_on_one_side(tmp_path):
    pairs = [(f"{source}{mark}", f"{i}") for source, _ in numbered(100) for i, mark in enumerate(["", ".", " !"])]
    train, valid = split_off(PairList(pairs), 0.2, cache=tmp_path)
    assert not {normalised(s) for s, _ in train} & {normalised(s) for s, _ in valid}


def test_a_changed_text_or_share_is_split_anew(tmp_path):
    """B22."""
    pairs = numbered(300)
    parts = [split_off(PairList(pairs), 0.1, cache=tmp_path)]
    parts.append(split_off(PairList(pairs), 0.2, cache=tmp_path))
    pairs[0] = (pairs[0][0], "another target")
    parts.append(split_off(PairList(pairs), 0.1, cache=tmp_path))
    assert len({part.fingerprint for both in parts for part in both}) == 6
    again = split_off(PairList(pairs), 0.1, cache=tmp_path)
    assert [part.fingerprint for part in again] == [part.fingerprint for part in parts[-1]]


def test_an_empty_part_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(
        DataError, match=r"data\.valid_share=1e-06 of the 5 pairs of few leaves no validation pair: raise"
    ):
        split_off(PairList(numbered(5), name="few"), 1e-6, cache=tmp_path)
    with pytest.raises(DataError, match=r"leaves no training pair: lower it"):
        split_off(PairList(numbered(5)), 1 - 1e-12, cache=tmp_path)


def test_a_few_texts_over_and_over_are_told_from_a_share_too_small(tmp_path):
    """Labels in the place of texts: no share would help."""
    swapped = PairList([("neg", f"text {i}") for i in range(50)] + [("pos", "text")] * 50, name="s.tsv")
    words = r"of the 100 pairs of s\.tsv leaves no validation pair: they have 2 different texts, .*'neg', where numbers"
    with pytest.raises(DataError, match=words):
        split_off(swapped, 0.01, cache=tmp_path)
