import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headloom.decoding.candidates import BLOCK, best_tokens, top


@settings(max_examples=30, deadline=None)
@given(
    num_rows=st.integers(1, 4),
    vocab_size=st.integers(8, 24 * BLOCK),
    num=st.integers(1, 8),
    levels=st.sampled_from([3, 1000]),
    seed=st.integers(0, 99),
)
def test_top_gives_what_topk_gives(num_rows, vocab_size, num, levels, seed):
    """Also where values repeat; the ids may then differ, but must be distinct and hold the values."""
    x = torch.randint(levels, (num_rows, vocab_size), generator=torch.Generator().manual_seed(seed)).float()
    values, ids = top(x, num)
    torch.testing.assert_close(values, x.topk(num).values, rtol=0, atol=0)
    torch.testing.assert_close(x.gather(1, ids), values, rtol=0, atol=0)
    assert all(len(set(row)) == num for row in ids.tolist())


@pytest.mark.parametrize("vocab_size", [10, 1000])
def test_the_first_of_equals_is_the_top_one(vocab_size):
    x = torch.zeros(2, vocab_size)
    x[1, 7] = x[1, 9] = 1.0
    assert top(x, 1)[1].tolist() == [[0], [7]]


@pytest.mark.parametrize("vocab_size", [9, 700])
def test_probabilities_are_those_of_the_whole_softmax(vocab_size):
    logits = torch.randn(5, vocab_size, generator=torch.Generator().manual_seed(1)) * 4
    logits[0, 0] = logits[1, 1] = 50.0  # banned and almost certain
    expected = logits.log_softmax(-1)
    best = best_tokens(logits.clone(), 4, eos_id=2, banned=(0, 1))
    torch.testing.assert_close(torch.from_numpy(best.eos_log_prob_N).float(), expected[:, 2])
    torch.testing.assert_close(
        torch.from_numpy(best.log_prob_NC).float(), expected.gather(1, torch.from_numpy(best.id_NC))
    )
    assert not np.isin(best.id_NC, (0, 1)).any()


def test_log_probabilities_are_never_above_zero():
    """The bound that stops a search rests on it."""
    logits = torch.full((50, 300), -60.0)
    logits[:, 5] = torch.linspace(-30, 90, 50)
    assert best_tokens(logits, 3, eos_id=2, banned=(0, 1)).log_prob_NC.max() <= 0.0


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 2, 400])
def test_a_row_with_a_value_that_is_not_finite_has_no_candidates(value, place):
    logits = torch.zeros(2, 700)
    logits[0, place] = value
    best = best_tokens(logits, 3, eos_id=2, banned=(0, 1))
    assert (best.log_prob_NC[0] == -np.inf).all()
    assert best.eos_log_prob_N[0] == -np.inf
    assert np.isfinite(best.log_prob_NC[1]).all()
    assert np.isfinite(best.eos_log_prob_N[1])
