"""Shapes: N targets, D model width, V vocabulary."""

import math

import pytest
import torch
from torch.nn import functional as F

from headloom.nn import loss
from headloom.nn.divergence import symmetric_divergence

N, D, V = 7, 5, 11


@pytest.fixture(params=[1 << 22, 3 * V], ids=["one chunk", "chunks of three"], autouse=True)
def chunk(request, monkeypatch):
    monkeypatch.setattr(loss, "CHUNK_LOGITS", request.param)


def test_two_distributions_worked_out_by_hand():
    """p = (3/4, 1/4) and q = (1/2, 1/2): 0.25 ln 1.5 - 0.25 ln 0.5 = 0.25 ln 3."""
    weight_VD = torch.tensor([[1.0], [0.0]])
    p_1D, q_1D = torch.tensor([[math.log(3)]]), torch.tensor([[0.0]])
    torch.testing.assert_close(symmetric_divergence(p_1D, q_1D, weight_VD), torch.tensor(0.25 * math.log(3)))


def test_the_sum_and_its_gradients_are_those_of_two_divergences_of_pytorch():
    inputs = [
        torch.randn(N, D).requires_grad_(),
        torch.randn(N, D).requires_grad_(),
        torch.randn(V, D).requires_grad_(),
    ]
    log_p_NV, log_q_NV = ((h_ND @ inputs[2].T).log_softmax(-1) for h_ND in inputs[:2])
    theirs = F.kl_div(log_q_NV, log_p_NV, reduction="sum", log_target=True)
    theirs = theirs + F.kl_div(log_p_NV, log_q_NV, reduction="sum", log_target=True)
    ours = symmetric_divergence(*inputs)
    torch.testing.assert_close(ours, theirs)
    upstream = torch.tensor(0.37)
    gradients = [torch.autograd.grad(value, inputs, upstream) for value in (ours, theirs)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_equal_predictions_do_not_diverge():
    hidden_ND, weight_VD = torch.randn(N, D).requires_grad_(), torch.randn(V, D)
    divergence = symmetric_divergence(hidden_ND, hidden_ND.detach().clone(), weight_VD)
    divergence.backward()
    assert divergence.item() == 0
    assert hidden_ND.grad.abs().max() == 0
