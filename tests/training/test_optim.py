import pytest
import torch
from torch import nn

from headloom.nn.norm import LayerNorm
from headloom.nn.positional import Learned
from headloom.training import optim
from headloom.training.muon import Muon


def model() -> nn.Module:
    module = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), LayerNorm(4, epsilon=1e-5), nn.Linear(4, 5, bias=False))
    module[3].weight = module[0].weight  # tied
    return module


ADAM = {"beta1": 0.9, "beta2": 0.98, "epsilon": 1e-9}
RULE = optim.DecayRule()
BUILDERS = {
    "adam": lambda module: optim.adam(module, **ADAM),
    "adamw": lambda module, rule=RULE: optim.adamw(module, **ADAM, weight_decay=0.5, rule=rule),
    "adafactor": lambda module, rule=RULE: optim.adafactor(
        module, beta2_exponent=0.8, clip_threshold=1.0, epsilon=1e-3, weight_decay=0.5, rule=rule
    ),
    "muon": lambda module, rule=RULE: Muon(
        module, **ADAM, momentum=0.9, adam_share=1.0, weight_decay=0.5, dtype=torch.float32, rule=rule
    ),
    "sgd": lambda module, rule=RULE: optim.sgd(module, momentum=0.9, nesterov=False, weight_decay=0.5, rule=rule),
}
DECAYING = sorted(BUILDERS.keys() - {"adam"})


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_every_parameter_has_one_entry(build):
    """B61: a tied matrix is updated once."""
    module = model()
    entries = [parameter for group in build(module).param_groups for parameter in group["params"]]
    assert len(entries) == len(set(entries))
    assert set(entries) == set(module.parameters())


class EveryRole(nn.Module):
    """A parameter of each role, and a table that is the output matrix too."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(4, 5, bias=False)
        self.table = nn.Embedding(5, 4)
        self.table.weight = self.output.weight
        self.positions = Learned(4, max_length=3)
        self.blocks = nn.ModuleList([nn.Linear(4, 4)])
        self.norm = LayerNorm(4, epsilon=1e-5)


def test_every_parameter_has_its_role():
    assert {name: role.name for name, role in optim.roles(EveryRole()).items()} == {
        "output.weight": "embedding",
        "positions.weight_TD": "position",
        "blocks.0.weight": "matrix",
        "blocks.0.bias": "bias",
        "norm.weight": "norm",
        "norm.bias": "bias",
    }


@pytest.mark.parametrize("name", DECAYING)
@pytest.mark.parametrize("switch", [None, "embeddings", "positions", "norms", "biases"])
def test_what_decays_is_what_the_rule_says(name, switch):
    """A parameter that decays shrinks by rate times decay where the gradient is zero; any other keeps its value."""
    rule = optim.DecayRule() if switch is None else optim.DecayRule(**{switch: switch in ("norms", "biases")})
    module = EveryRole()
    optimizer = BUILDERS[name](module, rule)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(2.0)
            parameter.grad = torch.zeros_like(parameter)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    optimizer.step()
    plural = {"embedding": "embeddings", "position": "positions", "norm": "norms", "bias": "biases"}
    for parameter_name, role in optim.roles(module).items():
        decays = role is optim.Role.matrix or getattr(rule, plural[role.name])
        value = module.get_parameter(parameter_name).detach()
        torch.testing.assert_close(value, torch.full_like(value, 2 * (1 - 0.1 * 0.5) if decays else 2.0))


def test_the_groups_are_described_with_their_rates_and_decay():
    module = EveryRole()
    assert optim.describe_groups(BUILDERS["adam"](module), peak=0.01) == [
        "6 tensors of 60 parameters: peak rate 0.01, no weight decay"
    ]
    muon = Muon(module, **ADAM, momentum=0.9, adam_share=0.1, weight_decay=0.5, dtype=torch.float32)
    still = optim.sgd(module, momentum=0.0, nesterov=False, weight_decay=0.0, rule=RULE)
    assert optim.describe_groups(still, peak=0.01) == ["6 tensors of 60 parameters: peak rate 0.01, no weight decay"]
    assert optim.describe_groups(muon, peak=0.01) == [
        "1 tensors of 16 parameters: peak rate 0.01, weight decay 0.5",
        "2 tensors of 32 parameters: peak rate 0.001, weight decay 0.5",
        "3 tensors of 12 parameters: peak rate 0.001, no weight decay",
    ]


@pytest.mark.parametrize("name", BUILDERS)
def test_a_parameter_without_a_gradient_stays_as_it_is(name):
    """A part that a batch did not use, such as an expert of a mixture."""
    module = EveryRole()
    optimizer = BUILDERS[name](module)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    before = [parameter.detach().clone() for parameter in module.parameters()]
    module.norm.weight.grad = torch.ones(4)
    optimizer.step()
    changed = [not torch.equal(p, old) for p, old in zip(module.parameters(), before, strict=True)]
    assert dict(zip(optim.roles(module), changed, strict=True)) == {
        name: name == "norm.weight" for name in optim.roles(module)
    }


@pytest.mark.parametrize("name", BUILDERS)
def test_going_on_from_the_saved_state_changes_nothing(name):
    """B54."""

    def update(module, optimizer, seed):
        generator = torch.Generator().manual_seed(seed)
        for parameter in module.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        for group in optimizer.param_groups:
            group["lr"] = 0.01
        optimizer.step()

    whole, halves = EveryRole(), EveryRole()
    halves.load_state_dict(whole.state_dict())
    optimizers = [BUILDERS[name](whole), BUILDERS[name](halves)]
    for seed in range(3):
        update(whole, optimizers[0], seed)
        update(halves, optimizers[1], seed)
    again = BUILDERS[name](halves)
    again.load_state_dict(optimizers[1].state_dict())
    for seed in range(3, 6):
        update(whole, optimizers[0], seed)
        update(halves, again, seed)
    for one, other in zip(whole.parameters(), halves.parameters(), strict=True):
        assert torch.equal(one, other)


def test_adam_does_not_decay():
    module = model()
    before = [parameter.detach().clone() for parameter in module.parameters()]
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    BUILDERS["adam"](module).step()
    for parameter, old in zip(module.parameters(), before, strict=True):
        assert torch.equal(parameter, old)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_the_first_step_of_adam_is_that_of_the_paper(name):
    """Kingma and Ba (2015), algorithm 1: corrected means of one gradient are the gradient and its square."""
    module = nn.Linear(3, 1, bias=False)
    optimizer = BUILDERS[name](module)
    before = module.weight.detach().clone()
    module.weight.grad = torch.tensor([[0.5, -2.0, 1e-3]])
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    optimizer.step()
    decayed = before * (1 - 0.1 * 0.5) if optimizer.param_groups[0]["weight_decay"] else before
    torch.testing.assert_close(module.weight.detach(), decayed - 0.1 * module.weight.grad.sign())


def test_the_first_step_of_adafactor_is_that_of_the_paper():
    """Shazeer and Stern (2018), algorithm 4: factored squares, a clipped update, a step relative to the weights."""
    module = nn.Linear(3, 2, bias=False)
    optimizer = BUILDERS["adafactor"](module)
    optimizer.param_groups[0].update(lr=0.01, weight_decay=0.0)
    before = module.weight.detach().clone()
    grad = torch.tensor([[0.5, -2.0, 1e-3], [1.0, 0.2, -0.3]])
    module.weight.grad = grad.clone()
    optimizer.step()
    squares = grad.square()
    estimate = squares.mean(1, keepdim=True) @ squares.mean(0, keepdim=True) / squares.mean()
    update = grad / estimate.sqrt()
    update /= max(1.0, update.square().mean().sqrt().item())
    step = 0.01 * before.square().mean().sqrt()
    torch.testing.assert_close(module.weight.detach(), before - step * update)


def test_the_rate_of_adafactor_is_capped_by_the_root_of_the_update():
    """Shazeer and Stern (2018), section 8: a step of at most 1 / sqrt(t) of the weights."""
    module = nn.Linear(3, 2, bias=False)
    optimizer = BUILDERS["adafactor"](module)
    optimizer.param_groups[0].update(lr=100.0, weight_decay=0.0)
    before = module.weight.detach().clone()
    module.weight.grad = torch.ones(2, 3)
    optimizer.step()
    assert (module.weight.detach() - before).square().mean().sqrt() <= 1.001 * before.square().mean().sqrt()


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_the_running_sum_of_gradients(nesterov):
    """Sutskever et al. (2013), equations 1 to 4, with the rate outside of the sum."""
    module = nn.Linear(3, 1, bias=False)
    optimizer = optim.sgd(module, momentum=0.5, nesterov=nesterov, weight_decay=0.0, rule=RULE)
    optimizer.param_groups[0]["lr"] = 0.1
    expected, velocity = module.weight.detach().clone(), torch.zeros(1, 3)
    for seed in range(3):
        grad = torch.randn(1, 3, generator=torch.Generator().manual_seed(seed))
        module.weight.grad = grad.clone()
        optimizer.step()
        velocity = 0.5 * velocity + grad
        expected -= 0.1 * (grad + 0.5 * velocity if nesterov else velocity)
    torch.testing.assert_close(module.weight.detach(), expected)


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_a_first_step_that_is_skipped_on_the_device_leaves_nothing_behind(name):
    """B45: the first updates of a float16 run overflow until the scale fits."""
    results = []
    for skips in (False, True):
        torch.manual_seed(0)
        module = nn.Linear(64, 64)
        optimizer = BUILDERS[name](module)
        for group in optimizer.param_groups:
            group["lr"] = 0.1
        for found_inf in (1.0, 0.0) if skips else (0.0,):
            for parameter in module.parameters():
                parameter.grad = torch.full_like(parameter, torch.inf if found_inf else 1.0)
            optimizer.found_inf = torch.tensor(found_inf)
            unused = torch.full((64, 64), 1e9)  # what memory holds that is asked for next
            del unused
            optimizer.step()
        results.append([parameter.detach().clone() for parameter in module.parameters()])
    for plain, after_skip in zip(*results, strict=True):
        assert torch.equal(plain, after_skip)
