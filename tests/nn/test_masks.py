import pytest
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


CPU = torch.device("cpu")


def reached(pattern: masks.Pattern, num_queries: int, num_keys: int) -> list[list[int]]:
    """The keys that each query reaches."""
    allowed_TS = pattern.allowed(num_queries, num_keys, CPU)
    return [row.nonzero().flatten().tolist() for row in allowed_TS]


def test_a_window_reaches_as_far_on_both_sides():
    """Beltagy et al. (2020), section 3.1; a causal mask leaves the keys before."""
    assert reached(masks.Window(2), 4, 4) == [[0, 1], [0, 1, 2], [1, 2, 3], [2, 3]]
    assert reached(masks.Window(1), 3, 3) == [[0], [1], [2]]
    assert masks.Window(4).allowed(4, 4, CPU) is None  # nobody is that far: Flash stays eligible


def test_blocks_reach_their_neighbours_and_the_global_ones():
    """Zaheer et al. (2020), section 2: what is global reaches all and is reached by all."""
    blocks = masks.BlockSparse(2, num_local=1, num_global=1)
    everyone = list(range(8))
    assert (
        reached(blocks, 8, 8) == [everyone] * 2 + [[0, 1, 2, 3, 4, 5]] * 2 + [everyone] * 2 + [[0, 1, 4, 5, 6, 7]] * 2
    )
    own = masks.BlockSparse(2, num_local=0, num_global=0)
    assert reached(own, 4, 4) == [[0, 1]] * 2 + [[2, 3]] * 2
    assert own.allowed(2, 2, CPU) is None


@pytest.mark.parametrize(
    "pattern",
    [
        masks.Window(3),
        masks.BlockSparse(2, num_local=1, num_global=0),
        masks.BlockSparse(2, num_local=0, num_global=1),
        masks.BlockSparse(3, num_local=1, num_global=1),
    ],
)
def test_the_last_queries_reach_what_they_reach_in_a_full_pass(pattern):
    """B30; and the keys before `first_key` are out of reach of the last one."""
    for num_keys in (3, 7, 8, 9, 12):
        whole_TS = pattern.allowed(num_keys, num_keys, CPU)
        whole_TS = torch.ones(num_keys, num_keys, dtype=torch.bool) if whole_TS is None else whole_TS
        for num_queries in (1, 2):
            last_TS = pattern.allowed(num_queries, num_keys, CPU)
            last_TS = torch.ones(num_queries, num_keys, dtype=torch.bool) if last_TS is None else last_TS
            assert torch.equal(last_TS, whole_TS[num_keys - num_queries :])
        first = pattern.first_key(num_keys)
        assert not whole_TS[-1, :first].any()
        assert whole_TS[-1, first]


def test_a_mask_of_positions_joins_padding_and_causality():
    allowed_BS = torch.tensor([[True, True, True, False]])
    window_TS = masks.Window(2).allowed(4, 4, CPU)
    combined_B1TS = masks.combine(allowed_BS, masks.causal(4, 4), window_TS)
    assert [row.nonzero().flatten().tolist() for row in combined_B1TS[0, 0]] == [[0], [0, 1], [1, 2], [2]]
