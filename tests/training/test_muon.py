"""Muon does what its paper says, and goes on from its saved state."""

import pytest
import torch
from torch import nn

from headloom.training.muon import Muon, orthogonal


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)) for _ in range(2))

    def forward(self, token_N):
        x_ND = self.table(token_N)
        for block in self.blocks:
            x_ND = x_ND + block(x_ND)
        return x_ND


def muon(model, **options):
    defaults = {"momentum": 0.95, "adam_share": 0.1, "beta1": 0.9, "beta2": 0.98, "epsilon": 1e-9, "weight_decay": 0.0}
    optimizer = Muon(model, dtype=torch.float32, **{**defaults, **options})
    for group in optimizer.param_groups:
        group["lr"] = 0.02 * group["rate_share"]
    return optimizer


def train(model, optimizer, num_steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(torch.randint(7, (5,), generator=generator)).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("shape", [(3, 4, 4), (2, 8, 24)])
def test_newton_schulz_keeps_singular_vectors_and_brings_singular_values_near_one(shape):
    torch.manual_seed(0)
    x_MRC = torch.randn(shape)
    got_MRC = orthogonal(x_MRC)
    assert torch.linalg.svdvals(got_MRC).min() > 0.5
    assert torch.linalg.svdvals(got_MRC).max() < 1.3
    u, _, v = torch.linalg.svd(x_MRC, full_matrices=False)
    mixed_MRR = u.mT @ got_MRC @ v.mT
    torch.testing.assert_close(mixed_MRR, torch.diag_embed(mixed_MRR.diagonal(dim1=-2, dim2=-1)), atol=1e-4, rtol=0)


def test_a_matrix_moves_by_the_rate_times_the_root_of_its_aspect():
    """Jordan et al. (2024); the first update is the orthogonal gradient."""
    torch.manual_seed(0)
    model = Small()
    up, down = model.blocks[0][0].weight, model.blocks[0][2].weight
    before = up.detach().clone(), down.detach().clone()
    train(model, muon(model), 1)
    for weight, old, factor in ((up, before[0], 2**0.5), (down, before[1], 1.0)):
        moved = torch.linalg.svdvals((old - weight.detach()) / (0.02 * factor))
        assert moved[moved > 0.1].min() > 0.5
        assert moved.max() < 1.3


def test_embeddings_and_biases_move_as_adamw_moves_them():
    torch.manual_seed(0)
    model = Small()
    twin = Small()
    twin.load_state_dict(model.state_dict())
    train(model, muon(model), 1)
    others = [p for p in twin.parameters() if p.dim() < 2] + [twin.table.weight]
    train(twin, torch.optim.AdamW(others, lr=0.002, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0), 1)
    torch.testing.assert_close(model.table.weight, twin.table.weight)
    torch.testing.assert_close(model.blocks[1][0].bias, twin.blocks[1][0].bias)


def test_weight_decay_shrinks_matrices_and_leaves_biases_alone():
    torch.manual_seed(0)
    plain, decayed = Small(), Small()
    decayed.load_state_dict(plain.state_dict())
    train(plain, muon(plain), 1)
    train(decayed, muon(decayed, weight_decay=0.5), 1)
    assert decayed.blocks[0][0].weight.norm() < plain.blocks[0][0].weight.norm()
    assert decayed.table.weight.norm() < plain.table.weight.norm()
    torch.testing.assert_close(decayed.blocks[0][0].bias, plain.blocks[0][0].bias, rtol=0, atol=0)


def test_going_on_from_the_saved_state_changes_nothing():
    torch.manual_seed(0)
    whole = Small()
    halves = Small()
    halves.load_state_dict(whole.state_dict())
    optimizer = muon(whole)
    train(whole, optimizer, 3)
    train(whole, optimizer, 3, seed=1)
    first = muon(halves)
    train(halves, first, 3)
    again = muon(halves)
    again.load_state_dict(first.state_dict())
    for group in again.param_groups:
        group["lr"] = 0.02 * group["rate_share"]
    train(halves, again, 3, seed=1)
    for a, b in zip(whole.parameters(), halves.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_stack_of_matrices_moves_as_its_matrices_do():
    """The experts of a mixture are one parameter of three dimensions."""
    torch.manual_seed(0)
    gradient_EFD = torch.randn(3, 8, 4)
    together, apart = nn.Module(), nn.Module()
    together.blocks = nn.ParameterList([torch.zeros(3, 8, 4)])
    apart.blocks = nn.ParameterList([torch.zeros(8, 4) for _ in range(3)])
    together.blocks[0].grad = gradient_EFD.clone()
    for parameter, gradient_FD in zip(apart.blocks, gradient_EFD, strict=True):
        parameter.grad = gradient_FD.clone()
    for module in (together, apart):
        muon(module).step()
    assert together.blocks[0].abs().min() > 0
    torch.testing.assert_close(together.blocks[0], torch.stack(list(apart.blocks)))
