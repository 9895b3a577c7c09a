import random

import numpy as np
import torch

from headloom.training.random_state import random_state, restore_random_state, seed_everything


def draw() -> list[object]:
    return [random.random(), random.gauss(0, 1), np.random.standard_normal(3).tolist(), torch.randn(3).tolist()]


def test_every_generator_goes_on_where_it_was(tmp_path):
    """B54, B62: through a file that is read without running code; Gaussian draws that come in pairs included."""
    seed_everything(3)
    draw()
    torch.save(random_state(), tmp_path / "state.pt")
    expected = draw()
    seed_everything(4)
    restore_random_state(torch.load(tmp_path / "state.pt", weights_only=True))
    assert draw() == expected


def test_a_seed_gives_every_generator_the_same_numbers_again():
    seed_everything(2**40 + 5)  # more bits than NumPy takes
    first = draw()
    seed_everything(2**40 + 5)
    assert draw() == first
    seed_everything(6)
    assert draw() != first


def test_looking_at_the_state_draws_nothing():
    seed_everything(3)
    expected = draw()
    seed_everything(3)
    random_state()
    assert draw() == expected
