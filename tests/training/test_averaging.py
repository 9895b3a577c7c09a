import pytest
import torch
from torch import nn

from headloom.training.averaging import WeightAverage


def model() -> nn.Module:
    module = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5, bias=False))
    module[2].weight = module[0].weight  # tied
    module.register_buffer("table", torch.arange(3))
    return module


def values(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@torch.no_grad()
def move(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.add_(torch.randn_like(parameter))


def averaged(module: nn.Module, average: WeightAverage) -> dict[str, torch.Tensor]:
    with average.applied():
        return values(module)


def test_the_average_of_weights_that_do_not_move_is_these_weights():
    """B69."""
    module = model()
    average = WeightAverage(module, decay=0.9)
    before = values(module)
    for _ in range(50):
        average.update()
    for name, value in averaged(module, average).items():
        torch.testing.assert_close(value, before[name])


def test_the_average_is_a_weighted_mean_of_all_steps():
    """Decay grows from 1/10 to the one asked for: min(d, (1 + u) / (10 + u)) at update u."""
    module = model()
    expected = values(module)
    average = WeightAverage(module, decay=0.3)
    for u in range(6):
        move(module)
        average.update()
        decay = min(0.3, (1 + u) / (10 + u))
        expected = {name: decay * expected[name] + (1 - decay) * value for name, value in values(module).items()}
    for name, value in averaged(module, average).items():
        torch.testing.assert_close(value, expected[name])


def test_inside_are_the_averages_and_afterwards_the_own_weights_bit_for_bit():
    """Whatever happens inside; and the tied matrix stays tied."""
    module = model()
    average = WeightAverage(module, decay=0.9)
    move(module)
    average.update()
    move(module)
    before = values(module)
    with average.applied():
        assert not same(values(module), before)
        assert module[2].weight is module[0].weight
    assert same(values(module), before)
    with pytest.raises(KeyboardInterrupt), average.applied():
        raise KeyboardInterrupt
    assert same(values(module), before)
    assert module[2].weight is module[0].weight


def test_an_optimizer_goes_on_with_the_parameters_it_knows():
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    average = WeightAverage(module, decay=0.9)
    with average.applied():
        pass
    before = values(module)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for name, value in values(module).items():
        torch.testing.assert_close(value, before[name] - 1)


def test_a_tied_matrix_is_averaged_and_saved_once():
    """B61, B69."""
    module = model()
    weights = WeightAverage(module, decay=0.9).state()["weights"]
    assert set(weights) == {name for name, _ in module.named_parameters()} == {"0.weight", "1.weight", "1.bias"}


def test_a_restored_average_goes_on_as_if_never_saved():
    """B54."""
    module = model()
    average = WeightAverage(module, decay=0.9)
    move(module)
    average.update()
    state = {
        "num_updates": average.state()["num_updates"],
        "weights": {k: v.clone() for k, v in average.state()["weights"].items()},
    }
    restored = WeightAverage(module, decay=0.9)
    restored.load_state(state)
    for _ in range(3):
        move(module)
        average.update()
        restored.update()
    assert same(averaged(module, average), averaged(module, restored))


def test_an_average_draws_no_number_and_moves_no_weight():
    module = model()
    before, state = values(module), torch.get_rng_state()
    average = WeightAverage(module, decay=0.9)
    average.update()
    assert same(values(module), before)
    assert torch.equal(torch.get_rng_state(), state)
