import pytest
import torch
from torch import nn

from headloom.nn.norm import LayerNorm
from headloom.training import optim


def model() -> nn.Module:
    module = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), LayerNorm(4, epsilon=1e-5), nn.Linear(4, 5, bias=False))
    module[3].weight = module[0].weight  # tied
    return module


BUILDERS = {
    "adam": lambda module: optim.adam(module, beta1=0.9, beta2=0.98, epsilon=1e-9),
    "adamw": lambda module: optim.adamw(module, beta1=0.9, beta2=0.98, epsilon=1e-9, weight_decay=0.5),
}


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_every_parameter_has_one_entry(build):
    """B61: a tied matrix is updated once."""
    module = model()
    entries = [parameter for group in build(module).param_groups for parameter in group["params"]]
    assert len(entries) == len(set(entries))
    assert set(entries) == set(module.parameters())


def test_only_matrices_decay():
    """Biases and gains of norms keep their value where the gradient is zero; a matrix shrinks by its share."""
    module = model()
    optimizer = BUILDERS["adamw"](module)
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in module.named_parameters():
        share = 1 - 0.1 * 0.5 if parameter.dim() >= 2 else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * share)


def test_adam_does_not_decay():
    module = model()
    before = [parameter.detach().clone() for parameter in module.parameters()]
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    BUILDERS["adam"](module).step()
    for parameter, old in zip(module.parameters(), before, strict=True):
        assert torch.equal(parameter, old)


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_the_first_step_is_that_of_the_paper(build):
    """Kingma and Ba (2015), algorithm 1: corrected means of one gradient are the gradient and its square."""
    module = nn.Linear(3, 1, bias=False)
    optimizer = build(module)
    before = module.weight.detach().clone()
    module.weight.grad = torch.tensor([[0.5, -2.0, 1e-3]])
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    optimizer.step()
    decayed = before * (1 - 0.1 * 0.5) if optimizer.param_groups[0]["weight_decay"] else before
    torch.testing.assert_close(module.weight.detach(), decayed - 0.1 * module.weight.grad.sign())
