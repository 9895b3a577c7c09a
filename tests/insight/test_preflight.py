import pytest

from headloom.insight.preflight import rate_warning, size_lines, time_left


def test_the_table_has_tokens_parameters_and_memory():
    lines = list(
        size_lines(
            num_parameters=1_000_000,
            num_trained=1_000_000,
            states=2,
            averaged=True,
            max_tokens=4096,
            num_batches=2,
        )
    )
    assert lines[0].endswith("1,000,000")
    assert "8,192 at most" in lines[1]
    assert "19 MiB for weights, gradients and optimizer" in lines[2]  # 5 numbers of 4 bytes


@pytest.mark.parametrize(("peak", "max_tokens"), [(7e-4, 25_000), (1e-3, 4096), (3e-3, 4096), (1e-4, 500_000)])
def test_usual_rates_are_left_alone(peak, max_tokens):
    assert rate_warning(peak, max_tokens=max_tokens) is None


@pytest.mark.parametrize(("peak", "side"), [(0.1, "above"), (1e-6, "below")])
def test_a_rate_far_off_for_the_tokens_of_an_update_is_named(peak, side):
    warning = rate_warning(peak, max_tokens=4096)
    assert warning.startswith(
        f"a peak rate of {peak:.2g} is far {side} what suits 4,096 tokens an update, about 0.0003"
    )


@pytest.mark.parametrize(
    ("seconds", "words"), [(42, "42 s"), (420, "7 min"), (12000, "3 h 20 min"), (187200, "2 d 4 h")]
)
def test_a_time_is_said_in_words(seconds, words):
    assert time_left(seconds) == words
