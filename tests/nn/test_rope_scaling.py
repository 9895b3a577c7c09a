"""The formulas of the papers, written out number by number."""

import math

import pytest
import torch

from headloom.nn.positional import Rotary
from headloom.nn.rope_scaling import DynamicNtk, Linear, Ntk, Unscaled, Yarn

WIDTH, BASE = 16, 10_000.0
PAIRS = range(WIDTH // 2)


def rate(i: int, base: float = BASE) -> float:
    return base ** (-2 * i / WIDTH)


def test_linear_divides_positions():
    """Chen et al. (2023), equation 4."""
    angles = Linear(4.0).angles(100, WIDTH, BASE)
    for i in PAIRS:
        assert angles[80, i].item() == pytest.approx(80 / 4 * rate(i))


def test_ntk_stretches_the_base():
    """Peng et al. (2023), definition 1: the slowest pair turns as with interpolation, the fastest as if unscaled."""
    angles = Ntk(4.0).angles(100, WIDTH, BASE)
    for i in PAIRS:
        assert angles[80, i].item() == pytest.approx(80 * rate(i, BASE * 4 ** (WIDTH / (WIDTH - 2))))
    assert angles[80, 0].item() == pytest.approx(80)
    assert angles[80, -1].item() == pytest.approx(80 / 4 * rate(WIDTH // 2 - 1))


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_dynamic_ntk_has_the_base_of_the_length_so_far(factor):
    """At the last of l positions: base * (factor l / L - (factor - 1))^(w / (w - 2)); up to L nothing changes."""
    original = 32
    angles = DynamicNtk(factor, original).angles(100, WIDTH, BASE)
    assert torch.equal(angles[:original], Unscaled().angles(original, WIDTH, BASE))
    for length in (33, 64, 100):
        base = BASE * (factor * length / original - (factor - 1)) ** (WIDTH / (WIDTH - 2))
        for i in PAIRS:
            assert angles[length - 1, i].item() == pytest.approx((length - 1) * rate(i, base))


def test_yarn_interpolates_what_turns_slowly():
    """Peng et al. (2023), section 3.3: ramp 0 below one turn in the original length, 1 above 32, straight between."""
    factor, original = 4.0, 2048
    angles = Yarn(factor, original).angles(3000, WIDTH, BASE)
    ramps = []
    for i in PAIRS:
        turns = original * rate(i) / (2 * math.pi)
        ramp = min(1.0, max(0.0, (turns - 1) / (32 - 1)))
        ramps.append(ramp)
        assert angles[2500, i].item() == pytest.approx(2500 * rate(i) * ((1 - ramp) / factor + ramp))
    assert ramps[0] == 1
    assert ramps[-1] == 0
    assert any(0 < ramp < 1 for ramp in ramps)


def test_yarn_s_temperature_multiplies_queries_and_keys():
    """Peng et al. (2023), section 3.4: sqrt(1 / t) = 0.1 ln(s) + 1."""
    assert Yarn(8.0, 64).magnitude == pytest.approx(0.1 * math.log(8) + 1)
    x_BHTK = torch.randn(1, 1, 5, WIDTH)
    turned = Rotary(WIDTH, base=BASE, scaling=Yarn(8.0, 64)).rotate(x_BHTK)
    torch.testing.assert_close(turned.norm(dim=-1), x_BHTK.norm(dim=-1) * (0.1 * math.log(8) + 1))


def test_a_factor_of_one_changes_nothing():
    plain = Unscaled().angles(50, WIDTH, BASE)
    for scaling in (Linear(1.0), Ntk(1.0), Yarn(1.0, 20)):
        torch.testing.assert_close(scaling.angles(50, WIDTH, BASE), plain)
        assert scaling.magnitude == 1


def test_only_a_share_of_the_head_turns():
    """A quarter of 16 channels: pairs 0 and 1, at the rates of a head 4 wide; the other channels stay."""
    x_BHTK = torch.randn(1, 2, 6, WIDTH)
    turned = Rotary(WIDTH, base=BASE, share=0.25).rotate(x_BHTK)
    half = WIDTH // 2
    for k in range(half):
        if k >= 2:
            assert torch.equal(turned[..., [k, k + half]], x_BHTK[..., [k, k + half]])
            continue
        angle_T = torch.arange(6) * BASE ** (-2 * k / 4)
        first, second = x_BHTK[..., k], x_BHTK[..., k + half]
        torch.testing.assert_close(turned[..., k], first * angle_T.cos() - second * angle_T.sin())
        torch.testing.assert_close(turned[..., k + half], second * angle_T.cos() + first * angle_T.sin())


def test_another_scaling_takes_effect_at_once():
    rotary, x_BHTK = Rotary(WIDTH, base=BASE), torch.randn(1, 1, 5, WIDTH)
    rotary.rotate(x_BHTK)
    rotary.rescale(Linear(2.0))
    assert torch.equal(rotary.rotate(x_BHTK), Rotary(WIDTH, base=BASE, scaling=Linear(2.0)).rotate(x_BHTK))
