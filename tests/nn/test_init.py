import math

import torch
from torch import nn

from headloom.nn import init
from headloom.nn.feed_forward import FeedForward


def feed_forward() -> FeedForward:
    return FeedForward(200, 400, activation=torch.relu, bias=True, dropout=0.0)


def test_xavier_gives_each_matrix_a_variance_by_its_two_widths():
    """Glorot and Bengio (2010), equation 16; biases are zero."""
    module = feed_forward()
    init.xavier(module)
    for linear in (module.up, module.down):
        assert math.isclose(linear.weight.std().item(), math.sqrt(2 / 600), rel_tol=0.02)
        assert linear.weight.abs().max() <= math.sqrt(6 / 600)
        assert linear.bias.eq(0).all()


def test_small_normal_narrows_what_writes_to_the_residual_stream():
    """Radford et al. (2019), section 2.3."""
    module = nn.ModuleDict({"feed_forward": feed_forward()})
    init.small_normal(module, num_residuals=16)
    assert math.isclose(module["feed_forward"].up.weight.std().item(), 0.02, rel_tol=0.02)
    assert math.isclose(module["feed_forward"].down.weight.std().item(), 0.02 / 4, rel_tol=0.02)
    assert module["feed_forward"].down.bias.eq(0).all()


def test_embeddings_times_the_root_of_the_width_have_deviation_one():
    table = nn.Embedding(500, 100)
    init.embedding(table)
    assert math.isclose(table.weight.std().item() * math.sqrt(100), 1.0, rel_tol=0.02)
