import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headloom.training import schedule

PEAK = 0.5


def build(name: str, *, warmup_steps: int, max_steps: int, final_share: float = 0.0) -> schedule.LearningRate:
    match name:
        case "cosine" | "linear":
            function = getattr(schedule, name)
            return function(peak=PEAK, warmup_steps=warmup_steps, max_steps=max_steps, final_share=final_share)
        case "plateau":
            return plateau(warmup_steps=warmup_steps, final_share=final_share)
        case _ if name.startswith("wsd "):
            shape = schedule.Shape[name.removeprefix("wsd ")]
            if shape is schedule.Shape.exponential:
                final_share = max(final_share, 0.01)  # the configuration refuses 0, which an exponential never reaches
            return schedule.wsd(
                peak=PEAK,
                warmup_steps=warmup_steps,
                max_steps=max_steps,
                decay_share=0.2,
                final_share=final_share,
                shape=shape,
            )
        case _:
            return getattr(schedule, name)(peak=PEAK, warmup_steps=warmup_steps)


def plateau(*, warmup_steps: int = 0, final_share: float = 0.0, patience: int = 2) -> schedule.Plateau:
    return schedule.Plateau(
        peak=PEAK, warmup_steps=warmup_steps, factor=0.5, patience=patience, final_share=final_share
    )


WSD = [f"wsd {shape.name}" for shape in schedule.Shape]
WITH_PEAK = ["inverse_sqrt", "cosine", "linear", "constant", "plateau", *WSD]
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
@settings(deadline=None, derandomize=True)
@given(
    warmup_steps=st.integers(0, 60), max_steps=st.integers(1, 50), final_share=st.floats(0, 1), beyond=st.integers(0, 9)
)
def test_a_rate_rises_to_the_peak_and_never_rises_again(name, warmup_steps, max_steps, final_share, beyond):
    """B48, B56: for any warm-up, length and end, past the end too."""
    learning_rate = build(name, warmup_steps=warmup_steps, max_steps=max_steps, final_share=final_share)
    rates = [learning_rate(step) for step in range(max_steps + beyond)]
    assert all(math.isfinite(rate) and rate >= 0 for rate in rates)
    assert all(rate > 0 for rate in rates[:max_steps])
    top = max(1, warmup_steps)
    assert rates[:top] == sorted(rates[:top])
    assert all(after <= before + 1e-12 for before, after in zip(rates[top - 1 :], rates[top:], strict=False))
    if len(rates) >= top:
        assert max(rates) == rates[top - 1] == PEAK


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
    if name not in ("constant", "plateau", *WSD):
        assert learning_rate(warmup_steps) < PEAK


@pytest.mark.parametrize("name", ["cosine", "linear", *WSD])
@pytest.mark.parametrize("final_share", [0.01, 0.1, 1.0])
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


@pytest.mark.parametrize("name", ["cosine", "linear", "wsd linear", "wsd cosine", "wsd sqrt"])
def test_a_decay_to_nothing_ends_one_step_after_the_last_update(name):
    learning_rate = build(name, warmup_steps=3, max_steps=20)
    assert learning_rate(19) > 0
    assert learning_rate(20) == learning_rate(1000) == 0


@pytest.mark.parametrize("name", WSD)
def test_wsd_stays_at_the_peak_and_decays_in_its_last_share(name):
    """Hu et al. (2024), section 4.2: here the last 20 of 100 updates."""
    learning_rate = build(name, warmup_steps=10, max_steps=100, final_share=0.01)
    assert {learning_rate(step) for step in range(9, 81)} == {PEAK}
    half_way = {"linear": 0.505, "cosine": 0.505, "sqrt": 0.01 + 0.99 * (1 - 0.5**0.5), "exponential": 0.1}
    assert learning_rate(90) == pytest.approx(PEAK * half_way[name.removeprefix("wsd ")])


@pytest.mark.parametrize("name", WSD)
def test_the_stable_part_of_wsd_is_that_of_a_longer_run(name):
    """So a checkpoint of it can go on with more steps."""
    shorter, longer = (build(name, warmup_steps=10, max_steps=steps) for steps in (100, 1000))
    assert [shorter(step) for step in range(81)] == [longer(step) for step in range(81)]


def test_a_plateau_is_lowered_after_patience_and_counts_anew():
    learning_rate = plateau(patience=2)
    seen = []
    for step, is_better in enumerate([False, True, False, False, False, False, True, False, False], start=1):
        learning_rate.validated(step, is_better=is_better)
        seen.append(learning_rate(step))
    assert seen == [PEAK, PEAK, PEAK, PEAK / 2, PEAK / 2, PEAK / 4, PEAK / 4, PEAK / 4, PEAK / 8]


def test_a_plateau_waits_for_the_end_of_its_warm_up():
    learning_rate = plateau(warmup_steps=10, patience=1)
    for step in (4, 9):
        learning_rate.validated(step, is_better=False)
    assert learning_rate(9) == PEAK
    learning_rate.validated(10, is_better=False)
    assert learning_rate(10) == PEAK / 2


def test_a_plateau_never_falls_below_its_final_share():
    learning_rate = plateau(patience=1, final_share=0.2)
    for step in range(1, 3000):
        learning_rate.validated(step, is_better=False)
    assert learning_rate(3000) == pytest.approx(0.2 * PEAK)
    without_end = plateau(patience=1)
    for step in range(1, 3000):
        without_end.validated(step, is_better=False)
    assert without_end(3000) >= 0


def test_a_restored_plateau_goes_on_as_if_never_saved():
    """B56."""
    whole, restored = plateau(patience=3), plateau(patience=3)
    for step in range(1, 6):
        whole.validated(step, is_better=False)
    restored.load_state(whole.state())
    for step in range(6, 12):
        for each in (whole, restored):
            each.validated(step, is_better=False)
        assert whole(step) == restored(step)
    assert whole(12) == PEAK / 8
