"""How many tokens fit is found from few measurements; here on a device that is made up."""

import pytest
import torch

from headloom.training.memory_probe import find_max_tokens, one_row, repeated

FIXED, EACH = 300_000, 100


def device(total: int, *, bend: float = 0.0):
    """A straight line, which `bend` makes steeper for many tokens."""

    def measure(tokens: int) -> int:
        peak = int(FIXED + EACH * tokens * (1 + bend * tokens / 1e4))
        if peak > total:
            raise torch.OutOfMemoryError("no memory")
        return peak

    return measure


@pytest.mark.parametrize("bend", [0.0, 0.5])
@pytest.mark.parametrize("total", [800_000, 2_000_000, 50_000_000])
def test_what_is_found_fits_and_leaves_little(total, bend):
    room = int(0.85 * total)
    measure = device(total, bend=bend)
    found = find_max_tokens(measure, room=room, first=1024)
    assert measure(found) <= room
    assert found % 64 == 0
    assert measure(found) > 0.6 * room


def test_what_does_not_fit_at_all_is_an_error():
    with pytest.raises(torch.OutOfMemoryError):
        find_max_tokens(device(100), room=85)


def test_a_row_is_repeated_with_its_targets(make_batch):
    row, width = one_row(make_batch([9, 3, 4], source_length=12))
    assert (width, row.num_targets) == (12, 9)
    batch = repeated(row, 5)
    assert (batch.source_BS.shape, batch.target_BT.shape, batch.num_targets) == ((5, 12), (5, 9), 45)
    assert len(batch.rows) == 5
