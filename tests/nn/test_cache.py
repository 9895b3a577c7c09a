import pytest
import torch
from torch import Tensor

from headloom.nn.cache import Cache

LAYERS, G, K = 2, 3, 4


def filled_cache(num_rows: int, *, length: int = 3) -> tuple[Cache, Tensor]:
    """A cache with room for one token more, and both_L2NGSK, which is in it."""
    cache = Cache(
        num_layers=LAYERS, num_rows=num_rows, max_length=length + 1, num_kv_heads=G, head_width=K, like=torch.empty(0)
    )
    both_L2NGSK = torch.randn(LAYERS, 2, num_rows, G, length, K)
    for layer, (key_NGSK, value_NGSK) in zip(cache.layers, both_L2NGSK, strict=True):
        layer.append(key_NGSK, value_NGSK)
    return cache, both_L2NGSK


def held(cache: Cache) -> Tensor:
    return torch.stack([torch.stack(layer.filled()) for layer in cache.layers])


def test_a_cache_holds_tokens_in_the_order_they_came():
    cache, both_L2NGSK = filled_cache(2)
    more_L2NGSK = torch.randn(LAYERS, 2, 2, G, 1, K)
    for layer, both_2NGSK, more_2NGSK in zip(cache.layers, both_L2NGSK, more_L2NGSK, strict=True):
        key_NGSK, value_NGSK = layer.append(*more_2NGSK)
        assert torch.equal(key_NGSK, torch.cat([both_2NGSK[0], more_2NGSK[0]], dim=2))
        assert torch.equal(value_NGSK, torch.cat([both_2NGSK[1], more_2NGSK[1]], dim=2))
    assert cache.length == 4


@pytest.mark.parametrize("index", [[0, 1, 2, 3], [2, 0, 0, 2], [3, 2, 1, 0], [0, 0, 0, 0], [1, 2, 3], [3], [2, 2]])
def test_a_reordered_cache_continues_other_rows(index):
    """B75: rows may be repeated, change places, and leave."""
    cache, both_L2NGSK = filled_cache(4)
    cache.reorder(torch.tensor(index))
    assert torch.equal(held(cache), both_L2NGSK[:, :, index])
    assert cache.num_rows == len(index)
    new_NGTK = torch.randn(len(index), G, 1, K)
    for layer, both_2NGSK in zip(cache.layers, both_L2NGSK, strict=True):
        key_NGSK, _ = layer.append(new_NGTK, new_NGTK)
        assert torch.equal(key_NGSK, torch.cat([both_2NGSK[0, index], new_NGTK], dim=2))
