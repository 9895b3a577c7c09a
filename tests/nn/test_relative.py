"""Shapes: T queries, S keys, H heads."""

import math

import pytest
import torch

from headloom.nn.relative import Alibi, RelativeBuckets, alibi_slopes, relative_buckets


@pytest.mark.parametrize(
    ("num_heads", "expected"),
    [
        (1, [2**-8]),
        (2, [2**-4, 2**-8]),
        (4, [2**-2, 2**-4, 2**-6, 2**-8]),
        (8, [2**-h for h in range(1, 9)]),
        (16, [2 ** (-h / 2) for h in range(1, 17)]),
        # No powers of two: those of the power below, then every second one of the power above.
        (3, [2**-4, 2**-8, 2**-2]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
        (12, [2**-h for h in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
    ],
)
def test_slopes_are_those_of_the_paper(num_heads, expected):
    """Press et al. (2022), section 3: a geometric sequence from 2^(-8/n) with that ratio."""
    assert alibi_slopes(num_heads) == pytest.approx(expected)


def test_alibi_is_the_distance_times_the_slope_on_both_sides():
    bias_1HTS = Alibi(2).bias(3, 3, like=torch.empty(0))
    distance_TS = torch.tensor([[0.0, 1, 2], [1, 0, 1], [2, 1, 0]])
    torch.testing.assert_close(bias_1HTS[0], torch.stack([-distance_TS / 16, -distance_TS / 256]))


def bucket_by_hand(offset: int, *, num_buckets: int, max_distance: int, causal: bool) -> int:
    """Raffel et al. (2020), section 2.1: as many exact distances as half the buckets, then by the logarithm."""
    if causal:
        first, distance = 0, max(-offset, 0)
    else:
        num_buckets //= 2
        first, distance = (num_buckets if offset > 0 else 0), abs(offset)
    exact = num_buckets // 2
    if distance < exact:
        return first + distance
    steps = num_buckets - exact
    # The largest k whose edge exact * (max_distance / exact)^(k / steps) is not above the distance.
    edges = [exact * (max_distance / exact) ** (k / steps) for k in range(steps)]
    return first + exact + max(k for k, edge in enumerate(edges) if edge <= distance * (1 + 1e-9))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20), (4, 3), (6, 50)])
def test_buckets_are_those_of_the_paper(causal, num_buckets, max_distance):
    offset_R = torch.arange(-300, 301)
    options = {"num_buckets": num_buckets, "max_distance": max_distance, "causal": causal}
    expected = [bucket_by_hand(int(offset), **options) for offset in offset_R]
    assert relative_buckets(offset_R, **options).tolist() == expected


def test_the_published_table_of_32_buckets():
    """Distances 0 to 128 back, as the T5 models have them: 16 exact ones when causal, 8 a side otherwise."""
    causal = relative_buckets(-torch.arange(129), num_buckets=32, max_distance=128, causal=True).tolist()
    assert causal[:16] == list(range(16))
    assert [causal[d] for d in (16, 19, 21, 24, 32, 64, 113, 127, 128)] == [16, 17, 18, 19, 21, 26, 31, 31, 31]
    both = relative_buckets(
        torch.tensor([-8, -12, -16, -127, 0, 1, 8, 16]), num_buckets=32, max_distance=128, causal=False
    )
    assert both.tolist() == [8, 9, 10, 15, 0, 17, 24, 26]


@pytest.mark.parametrize(
    "make", [lambda: Alibi(3), lambda: RelativeBuckets(3, num_buckets=8, max_distance=9, causal=True)]
)
def test_the_last_queries_have_the_bias_of_a_full_pass(make):
    """Cached decoding rests on this (B30)."""
    scheme = make()
    for parameter in scheme.parameters():
        torch.nn.init.normal_(parameter)
    like = torch.empty(0)
    whole_1HTS = scheme.bias(7, 7, like=like)
    assert whole_1HTS.shape == (1, 3, 7, 7)
    for num_queries in (1, 3):
        assert torch.equal(scheme.bias(num_queries, 7, like=like), whole_1HTS[:, :, 7 - num_queries :])
    assert torch.equal(scheme.bias(4, 4, like=like), whole_1HTS[:, :, :4, :4])


def test_the_gradient_of_a_bucket_is_the_sum_over_its_distances():
    scheme = RelativeBuckets(1, num_buckets=4, max_distance=3, causal=True)
    scheme.bias(4, 4, like=torch.empty(0)).sum().backward()
    # Of 16 pairs, 6 look ahead and 4 at themselves (bucket 0); then 3, 2 and 1 are at distances 1, 2 and 3.
    assert scheme.weight_1HN.grad[0, 0].tolist() == [10, 3, 2, 1]


def test_alibi_is_as_precise_as_what_it_is_added_to():
    assert Alibi(3).bias(2, 2, like=torch.empty(0, dtype=torch.float64)).dtype is torch.float64
    assert Alibi(3).bias(2, 2, like=torch.empty(0, dtype=torch.bfloat16)).dtype is torch.float32
    assert math.isclose(Alibi(12).bias(1, 2, like=torch.empty(0, dtype=torch.float64))[0, 8, 0, 0].item(), -(2**-0.5))
