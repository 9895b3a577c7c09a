import torch

from headloom.nn import masks


def test_true_means_may_attend():
    """B29: one sense for every mask."""
    assert masks.causal(3, 3).tolist() == [[True, False, False], [True, True, False], [True, True, True]]


def test_the_last_query_stands_at_the_last_key():
    """B30: with a cache of earlier keys the queries are the last ones."""
    assert masks.causal(2, 4).tolist() == [[True, True, True, False], [True, True, True, True]]
    assert masks.causal(1, 4).tolist() == [[True] * 4]


def test_a_key_must_be_allowed_by_both_masks():
    allowed_BS = torch.tensor([[True, True, False], [True, False, False]])
    combined = masks.combine(allowed_BS, masks.causal(3, 3))
    assert combined.expand(2, 1, 3, 3)[0, 0].tolist() == [
        [True, False, False],
        [True, True, False],
        [True, True, False],
    ]
    assert combined.expand(2, 1, 3, 3)[1, 0].tolist() == [[True, False, False]] * 3


def test_without_a_mask_all_is_allowed():
    assert masks.combine(None, None) is None
    assert torch.equal(masks.combine(None, masks.causal(2, 2)).view(2, 2), masks.causal(2, 2))
    allowed_BS = torch.tensor([[True, False]])
    assert torch.equal(masks.combine(allowed_BS, None).view(1, 2), allowed_BS)
