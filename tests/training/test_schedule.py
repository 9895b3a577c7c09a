import math

import pytest

from headloom.training import schedule

PEAK = 0.5


def build(name: str, *, warmup_steps: int, max_steps: int, final_share: float = 0.0) -> schedule.LearningRate:
    match name:
        case "cosine" | "linear":
            function = getattr(schedule, name)
            return function(peak=PEAK, warmup_steps=warmup_steps, max_steps=max_steps, final_share=final_share)
        case _:
            return getattr(schedule, name)(peak=PEAK, warmup_steps=warmup_steps)


WITH_PEAK = ["inverse_sqrt", "cosine", "linear", "constant"]
parametrize_name = pytest.mark.parametrize("name", WITH_PEAK)


@parametrize_name
@pytest.mark.parametrize("max_steps", [1, 2, 3, 10])
@pytest.mark.parametrize("warmup_steps", [0, 1, 2, 10, 15])
def test_every_rate_is_finite_positive_and_at_most_the_peak(name, warmup_steps, max_steps):
    """B48: no warm-up, one longer than the run, and steps past the end (a run that goes on longer)."""
    learning_rate = build(name, warmup_steps=warmup_steps, max_steps=max_steps)
    rates = [learning_rate(step) for step in range(max_steps + 5)]
    assert all(math.isfinite(rate) and 0 <= rate <= PEAK for rate in rates)
    assert all(rate > 0 for rate in rates[:max_steps])  # no update is spent on a rate of 0
    if max_steps > warmup_steps:
        assert max(rates) == PEAK


@parametrize_name
def test_without_warm_up_the_first_update_has_the_peak(name):
    """B48."""
    assert build(name, warmup_steps=0, max_steps=100)(0) == PEAK


@parametrize_name
@pytest.mark.parametrize("warmup_steps", [1, 2, 7])
def test_the_warm_up_is_a_line_that_reaches_the_peak_with_its_last_update(name, warmup_steps):
    learning_rate = build(name, warmup_steps=warmup_steps, max_steps=100)
    expected = [PEAK * update / warmup_steps for update in range(1, warmup_steps + 1)]
    assert [learning_rate(step) for step in range(warmup_steps)] == pytest.approx(expected)
    if name != "constant":
        assert learning_rate(warmup_steps) < PEAK


@pytest.mark.parametrize("name", ["cosine", "linear"])
@pytest.mark.parametrize("final_share", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("warmup_steps", [0, 10])
def test_a_decay_falls_to_its_final_share_and_stays_there(name, final_share, warmup_steps):
    """B56: a run that goes on past its end keeps the last rate; it never rises again or becomes negative."""
    learning_rate = build(name, warmup_steps=warmup_steps, max_steps=50, final_share=final_share)
    rates = [learning_rate(step) for step in range(max(0, warmup_steps - 1), 50)]
    assert rates == sorted(rates, reverse=True)
    for step in (50, 51, 1000):
        assert learning_rate(step) == pytest.approx(PEAK * final_share)


def test_a_cosine_is_at_half_height_half_way():
    """Loshchilov and Hutter (2017), equation 5."""
    learning_rate = build("cosine", warmup_steps=1, max_steps=100)
    assert learning_rate(50) == pytest.approx(PEAK / 2)
    assert learning_rate(25) == pytest.approx(PEAK * (1 + math.cos(math.pi / 4)) / 2)


def test_a_line_falls_by_the_same_amount_each_step():
    learning_rate = build("linear", warmup_steps=1, max_steps=100)
    assert learning_rate(25) == pytest.approx(0.75 * PEAK)
    assert learning_rate(75) == pytest.approx(0.25 * PEAK)


def test_noam_is_equation_3_of_the_paper():
    """Vaswani et al. (2017), section 5.3, at the paper's own numbers: a peak of 7e-4 at update 4000."""
    learning_rate = schedule.noam(d_model=512, warmup_steps=4000, factor=1.0)
    assert learning_rate(3999) == pytest.approx(6.9877e-4, rel=1e-4)
    assert learning_rate(0) == pytest.approx(512**-0.5 * 4000**-1.5)
    assert learning_rate(15_999) == pytest.approx(learning_rate(3999) / 2)
    assert max(range(20_000), key=learning_rate) == 3999
    assert schedule.noam(d_model=512, warmup_steps=4000, factor=2.0)(9) == 2 * learning_rate(9)


def test_inverse_sqrt_is_noam_by_its_peak():
    noam = schedule.noam(d_model=64, warmup_steps=30, factor=1.0)
    learning_rate = schedule.inverse_sqrt(peak=noam(29), warmup_steps=30)
    for step in (0, 10, 29, 30, 500):
        assert learning_rate(step) == pytest.approx(noam(step))
