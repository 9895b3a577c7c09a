"""The reference's Adam against PyTorch's."""

import numpy as np
import torch

from headloom.reference.adam import Adam


def test_five_steps_are_those_of_pytorch():
    theirs = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    weights = {"w": theirs.detach().numpy().copy()}
    ours = Adam(weights, beta1=0.8, beta2=0.95, epsilon=1e-6)
    optimizer = torch.optim.Adam([theirs], lr=0.1, betas=(0.8, 0.95), eps=1e-6)
    for _ in range(5):
        theirs.grad = torch.randn_like(theirs)
        ours.step({"w": theirs.grad.numpy()}, learning_rate=0.1)
        optimizer.step()
        np.testing.assert_allclose(weights["w"], theirs.detach().numpy(), rtol=1e-12)
