"""What evaluate.py and translate.py take from the training where the command line is silent."""

import pytest

from headloom.config.schema_decoding import (
    BeamConfig,
    GreedyConfig,
    LengthPenaltyForm,
    SampleConfig,
    ScoreConfig,
    as_trained,
    differences,
)
from headloom.errors import ConfigError

TRAINED = BeamConfig(beam_size=3, length_penalty=1.5, length_penalty_form=LengthPenaltyForm.power, max_tokens=100)


def test_nothing_given_is_the_search_of_the_training_in_batches_of_this_machine():
    assert as_trained(BeamConfig(), TRAINED, frozenset()) == BeamConfig(
        beam_size=3, length_penalty=1.5, length_penalty_form=LengthPenaltyForm.power
    )
    assert as_trained(BeamConfig(max_tokens=7), GreedyConfig(max_tokens=9), frozenset({"decoding.max_tokens"})) == (
        GreedyConfig(max_tokens=7)
    )
    assert as_trained(BeamConfig(), GreedyConfig(max_length=9), {"checkpoint"}) == GreedyConfig(max_length=9)


def test_an_option_that_is_given_is_taken_also_where_it_is_what_it_would_be_anyway():
    found = as_trained(BeamConfig(beam_size=5, num_best=2), TRAINED, {"decoding.beam_size", "decoding.num_best"})
    assert (found.beam_size, found.num_best, found.length_penalty) == (5, 2, 1.5)


@pytest.mark.parametrize("asked", [BeamConfig(), GreedyConfig(), SampleConfig(), ScoreConfig()])
def test_a_search_that_is_given_is_taken_with_its_own_defaults(asked):
    assert as_trained(asked, TRAINED, {"decoding"}) is asked


def test_an_option_that_the_search_of_the_training_has_too_does_not_choose_another_search():
    trained = GreedyConfig(max_length=9, forbidden=["x"])
    found = as_trained(BeamConfig(max_tokens=7, min_length=2), trained, {"decoding.max_tokens", "decoding.min_length"})
    assert found == GreedyConfig(max_length=9, forbidden=["x"], max_tokens=7, min_length=2)


def test_an_option_that_it_does_not_have_is_of_the_search_that_is_asked():
    asked = BeamConfig(num_best=2)
    assert as_trained(asked, GreedyConfig(max_length=9), {"decoding.num_best"}) is asked


def test_what_does_not_go_together_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"decoding\.num_best=4 passes decoding\.beam_size=3"):
        as_trained(BeamConfig(num_best=4), TRAINED, {"decoding.num_best"})


def test_differences_are_what_a_command_line_would_say():
    assert differences(BeamConfig(), BeamConfig()) == []
    assert differences(TRAINED, BeamConfig(beam_size=3)) == [
        "decoding.max_tokens=100",
        "decoding.length_penalty=1.5",
        "decoding.length_penalty_form=power",
    ]
    assert differences(GreedyConfig(max_length=3), TRAINED) == ["decoding=greedy", "decoding.max_length=3"]
