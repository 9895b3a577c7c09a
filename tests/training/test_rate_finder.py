"""The curve of a rising rate: what is read off it, and when it ends."""

import math
from collections.abc import Iterator

import pytest

from headloom.training.interrupt import Interrupt
from headloom.training.rate_finder import RateCurve, exponential, raise_rate


def curve(loss_of, *, num_updates: int = 100) -> RateCurve:
    """Rates from 1e-6 to 1, and a loss for each power of ten."""
    rate = exponential(lowest=1e-6, highest=1.0, num_updates=num_updates)
    rates = [rate(step) for step in range(num_updates)]
    return RateCurve(rates, [loss_of(math.log10(rate)) for rate in rates])


def valley(power: float) -> float:
    """Falls around 1e-4, is lowest at 1e-2, then rises."""
    fallen = 5 - 3 / (1 + math.exp(-3 * (power + 4)))
    return fallen + max(0.0, power + 2) ** 2


def test_rates_grow_by_the_same_factor():
    """Smith (2017), section 3.3, with factors in place of differences."""
    rate = exponential(lowest=1e-3, highest=10.0, num_updates=5)
    assert [rate(step) for step in range(5)] == pytest.approx([1e-3, 1e-2, 1e-1, 1.0, 10.0])
    assert exponential(lowest=1e-3, highest=10.0, num_updates=1)(0) == 1e-3


def test_the_suggestion_lies_between_the_steepest_place_and_the_end_of_the_fall():
    found = curve(valley)
    assert found.steepest == pytest.approx(1e-4, rel=0.3)
    assert found.lowest == pytest.approx(1e-2, rel=0.7)
    assert found.suggestion == pytest.approx(math.sqrt(found.steepest * found.lowest))


def test_a_second_valley_past_a_rise_is_not_the_end_of_the_fall():
    found = curve(lambda power: valley(power) if power < -1 else 1.0)
    assert found.lowest == pytest.approx(1e-2, rel=0.7)


def test_noise_does_not_move_the_places_far():
    quiet = curve(valley)
    noisy = curve(lambda power: valley(power) + 0.03 * math.sin(1000 * power))
    assert noisy.suggestion == pytest.approx(quiet.suggestion, rel=0.5)


@pytest.mark.parametrize("slope", [0.0, -0.001, 1.0])
def test_a_loss_that_does_not_fall_suggests_nothing(slope):
    flat = curve(lambda power: 10 + slope * power)
    assert (flat.steepest, flat.lowest, flat.suggestion) == (None, None, None)


@pytest.mark.parametrize("num_updates", [0, 1, 2, 8])
def test_a_curve_too_short_to_smooth_suggests_nothing(num_updates):
    short = RateCurve([1e-3] * num_updates, [5.0 - i for i in range(num_updates)])
    assert short.suggestion is None
    assert short.smoothed == short.losses


def test_smoothing_moves_no_line_and_keeps_the_length():
    straight = RateCurve([1.0] * 20, [float(i) for i in range(20)])
    assert straight.smoothed[4:-4] == pytest.approx(straight.losses[4:-4])
    assert len(straight.smoothed) == 20


def updates(make_batch) -> Iterator[list]:
    seed = 0
    while True:
        seed += 1
        yield [make_batch([3, 4], seed=seed)]


def test_each_update_has_its_rate_and_its_loss(make_trainer, make_batch):
    trainer = make_trainer(learning_rate=exponential(lowest=1e-6, highest=1e-3, num_updates=5))
    done: list[int] = []
    found = raise_rate(
        trainer, updates(make_batch), num_updates=5, interrupt=Interrupt(), progress=lambda step: done.append(step)
    )
    assert found.rates == pytest.approx([1e-6, 10**-5.25, 10**-4.5, 10**-3.75, 1e-3])
    assert all(2 < loss < 5 for loss in found.losses)
    assert done == [1, 2, 3, 4, 5]


def test_a_loss_that_diverges_ends_it(make_trainer, make_batch):
    trainer = make_trainer(learning_rate=exponential(lowest=1.0, highest=1e9, num_updates=50), max_grad_norm=None)
    found = raise_rate(trainer, updates(make_batch), num_updates=50, interrupt=Interrupt(), progress=lambda step: None)
    assert 0 < len(found.rates) < 50
    assert all(math.isfinite(loss) and loss <= found.losses[0] + 1 for loss in found.losses)
