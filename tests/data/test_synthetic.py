"""Made-up tasks."""

import pytest

from headloom.data.synthetic import SyntheticTask, synthetic
from headloom.errors import ConfigError

COPY, REVERSE = SyntheticTask.copy, SyntheticTask.reverse


def test_the_target_of_copy_is_the_source_and_of_reverse_the_reversed_source():
    copy = synthetic(COPY, num_train=100, num_valid=10, seed=3)
    reverse = synthetic(REVERSE, num_train=100, num_valid=10, seed=3)
    assert all(target == source for source, target in copy.train)
    assert all(target.split(" ") == source.split(" ")[::-1] for source, target in reverse.train)
    assert [source for source, _ in copy.train] == [source for source, _ in reverse.train]
    assert copy.train.fingerprint != reverse.train.fingerprint


def test_sequences_have_the_lengths_and_symbols_asked_for():
    corpus = synthetic(COPY, num_train=500, num_valid=1, num_symbols=40, min_length=3, max_symbols=6)
    lengths = {len(source.split(" ")) for source, _ in corpus.train}
    symbols = {symbol for source, _ in corpus.train for symbol in source.split(" ")}
    assert lengths == {3, 4, 5, 6}
    assert len(symbols) == 40
    assert symbols > set("abcxyz0189") | {"aa", "ad"}


def test_no_source_occurs_twice_in_the_three_parts():
    corpus = synthetic(COPY, num_train=40, num_valid=10, num_symbols=5, min_length=2, max_symbols=3)
    assert corpus.test is not None
    parts = [corpus.train, corpus.valid, corpus.test]
    assert [len(part) for part in parts] == [40, 10, 10]
    assert len({source for part in parts for source, _ in part}) == 60


def test_training_has_most_of_the_few_sequences_of_one_symbol():
    """In the order of drawing, validation and test would take them all."""
    corpus = synthetic(REVERSE, num_train=2000, num_valid=200)
    assert sum(len(source) == 1 for source, _ in corpus.train) >= 18


def test_as_many_can_be_held_out_as_there_are_of_one_length():
    corpus = synthetic(COPY, num_train=10, num_valid=50, num_symbols=15, min_length=2, max_symbols=2)
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (10, 50, 50)


def test_the_seed_decides_the_sequences():
    """If this fails, made-up corpora have changed: say so where results on them are recorded."""
    first, again, other = (list(synthetic(COPY, num_train=20, num_valid=5, seed=seed).train) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert [source for source, _ in first[:3]] == ["b h b t b", "p s s", "t q r"]


def test_more_training_pairs_leave_valid_and_test_as_they_are():
    few, many = (synthetic(REVERSE, num_train=n, num_valid=20) for n in (10, 1000))
    assert list(few.valid) == list(many.valid)
    assert list(few.test) == list(many.test)
    assert list(few.train) == list(many.train)[:10]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_train": 0}, "data.num_train=0 must be at least 1"),
        ({"num_valid": 0}, "data.num_valid=0 must be at least 1"),
        ({"num_symbols": 0}, "data.num_symbols=0 must be at least 1"),
        ({"min_length": 0}, "data.min_length=0 must be from 1"),
        ({"min_length": 9, "max_symbols": 8}, "data.min_length=9 must be from 1 to data.max_symbols=8"),
        ({"num_symbols": 2, "max_symbols": 4}, "are more than half of the 30 sequences of 1 to 4 out of 2 symbols"),
    ],
)
def test_numbers_that_cannot_be_met_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        synthetic(COPY, **{"num_train": 10, "num_valid": 3, **options})
