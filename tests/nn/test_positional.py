"""Shapes: B batch, T length, D model width, H heads, K head width."""

import math

import pytest
import torch

from headloom.nn.positional import Learned, Positional, Rotary, Sinusoidal

D, K = 8, 8
SCHEMES = {
    "none": Positional,
    "sinusoidal": lambda: Sinusoidal(D),
    "learned": lambda: Learned(D, max_length=600),
    "rope": lambda: Rotary(K, base=10_000.0),
}
parametrize_scheme = pytest.mark.parametrize("make", SCHEMES.values(), ids=SCHEMES)


@parametrize_scheme
def test_a_later_start_asks_for_the_same_numbers_as_a_full_pass(make):
    """Cached decoding rests on this (B30)."""
    positional = make()
    x_BTD, x_BHTK = torch.randn(2, 20, D), torch.randn(2, 3, 20, K)
    assert torch.equal(positional.embed(x_BTD)[:, 7:9], positional.embed(x_BTD[:, 7:9], first=7))
    assert torch.equal(positional.rotate(x_BHTK)[:, :, 7:9], positional.rotate(x_BHTK[:, :, 7:9], first=7))


@parametrize_scheme
def test_longer_sequences_do_not_change_shorter_ones(make):
    """Tables grow with the longest sequence seen; what stood in them stays."""
    positional = make()
    x_BTD, x_BHTK = torch.randn(1, 600, D), torch.randn(1, 2, 600, K)
    before = positional.embed(x_BTD[:, :9]), positional.rotate(x_BHTK[:, :, :9])
    after = positional.embed(x_BTD)[:, :9], positional.rotate(x_BHTK)[:, :, :9]
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])


@parametrize_scheme
def test_a_table_made_in_evaluation_serves_training(make):
    positional = make()
    with torch.no_grad():
        positional.embed(torch.randn(1, 5, D))
        positional.rotate(torch.randn(1, 2, 5, K))
    x_BTD, x_BHTK = torch.randn(1, 5, D, requires_grad=True), torch.randn(1, 2, 5, K, requires_grad=True)
    (positional.embed(x_BTD).sum() + positional.rotate(x_BHTK).square().sum()).backward()
    assert x_BTD.grad.isfinite().all()
    assert x_BHTK.grad.isfinite().all()


@pytest.mark.parametrize("name", ["none", "sinusoidal", "rope"])
def test_computed_positions_are_not_saved_and_know_no_longest_length(name):
    positional = SCHEMES[name]()
    positional.embed(torch.randn(1, 5, D))
    positional.rotate(torch.randn(1, 2, 5, K))
    assert not positional.state_dict()
    assert positional.max_length is None


@pytest.mark.parametrize("width", [8, 6])
def test_sinusoidal_is_the_formula_of_the_paper(width):
    """Vaswani et al. (2017), section 3.5, entry by entry."""
    table_TD = Sinusoidal(width).embed(torch.zeros(1, 40, width))[0]
    for t in (0, 1, 39):
        for i in range(width // 2):
            angle = t / 10_000 ** (2 * i / width)
            assert table_TD[t, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table_TD[t, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_learned_positions_end_at_their_table():
    """B16: an error that says what to set, not an index error."""
    learned = Learned(D, max_length=4)
    assert learned.max_length == 4
    x_BTD = torch.zeros(1, 4, D)
    assert torch.equal(learned.embed(x_BTD)[0], learned.weight_TD)
    with pytest.raises(ValueError, match=r"sequence of 5 tokens is longer than position\.max_length=4"):
        learned.embed(torch.zeros(1, 5, D))
    with pytest.raises(ValueError, match="sequence of 5 tokens"):
        learned.embed(torch.zeros(1, 1, D), first=4)


def test_learned_positions_are_trained():
    learned = Learned(D, max_length=4)
    learned.embed(torch.zeros(2, 3, D)).sum().backward()
    assert learned.weight_TD.grad[:3].eq(2).all()
    assert learned.weight_TD.grad[3:].eq(0).all()


def test_a_rotary_score_depends_on_the_distance_alone():
    """Su et al. (2021), equation 16."""
    rotary = Rotary(K, base=100.0)
    q_BHTK, k_BHTK = torch.randn(1, 1, 1, K), torch.randn(1, 1, 1, K)
    scores = [(rotary.rotate(q_BHTK, first=t + 5) * rotary.rotate(k_BHTK, first=t)).sum() for t in (0, 3, 90)]
    torch.testing.assert_close(scores[1:], scores[:1] * 2)
    other = (rotary.rotate(q_BHTK, first=6) * rotary.rotate(k_BHTK)).sum()
    assert not torch.isclose(other, scores[0])


def test_a_rotary_turn_keeps_lengths_and_leaves_the_first_token():
    x_BHTK = torch.randn(2, 3, 50, K)
    turned = Rotary(K, base=10_000.0).rotate(x_BHTK)
    torch.testing.assert_close(turned.norm(dim=-1), x_BHTK.norm(dim=-1))
    assert torch.equal(turned[:, :, 0], x_BHTK[:, :, 0])


def test_rotary_turns_pairs_by_the_angles_of_the_paper():
    """Channels k and k + K/2 as one complex number times exp(i t base^(-2k/K)): section 3.2.2."""
    x_BHTK = torch.randn(1, 2, 30, K)
    complex_BHTk = torch.complex(x_BHTK[..., : K // 2], x_BHTK[..., K // 2 :])
    angle_Tk = torch.arange(30)[:, None] * 500.0 ** (-torch.arange(0, K, 2) / K)
    expected = complex_BHTk * torch.polar(torch.ones(30, K // 2), angle_Tk)
    turned = Rotary(K, base=500.0).rotate(x_BHTK)
    torch.testing.assert_close(turned, torch.cat([expected.real, expected.imag], dim=-1), atol=1e-5, rtol=1e-5)


def test_far_neighbours_keep_different_angles_in_bfloat16():
    """bfloat16 rounds whole numbers above 256: angles must not be formed in it."""
    x_BHTK = torch.ones(1, 1, 1, K, dtype=torch.bfloat16)
    rotary = Rotary(K, base=10_000.0)
    turned = [rotary.rotate(x_BHTK, first=t) for t in (1000, 1001)]
    assert turned[0].dtype is torch.bfloat16
    assert (turned[0] - turned[1]).abs().max() > 0.3


def test_an_odd_head_width_is_refused():
    with pytest.raises(ValueError, match="even head width, not 7"):
        Rotary(7, base=10_000.0)
