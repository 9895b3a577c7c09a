import torch
from torch import nn

from headloom.training.warm_start import in_short, take_fitting


def tied() -> nn.ModuleDict:
    model = nn.ModuleDict({"table": nn.Embedding(5, 3), "output": nn.Linear(3, 5, bias=False), "head": nn.Linear(3, 2)})
    model["output"].weight = model["table"].weight
    return model


def test_what_has_a_namesake_of_its_shape_is_taken_and_nothing_else_changes():
    model = tied()
    head = {name: weight.clone() for name, weight in model["head"].state_dict().items()}
    table = torch.randn(5, 3)
    fit = take_fitting(model, {"table.weight": table, "head.weight": torch.zeros(4, 3), "pool.weight": torch.zeros(1)})
    assert fit.taken == ["table.weight", "output.weight"]
    assert (fit.other_shape, fit.fresh, fit.unused) == (["head.weight"], ["head.bias"], ["pool.weight"])
    assert torch.equal(model["table"].weight, table)
    assert model["output"].weight is model["table"].weight
    assert all(torch.equal(weight, head[name]) for name, weight in model["head"].state_dict().items())
    assert fit.share == 15 / (15 + 6 + 2)


def test_a_tied_weight_is_taken_by_any_of_its_names():
    model, weight = tied(), torch.randn(5, 3)
    fit = take_fitting(model, {"output.weight": weight})
    assert torch.equal(model["table"].weight, weight)
    assert fit.taken == ["table.weight", "output.weight"]


def test_a_module_is_named_in_place_of_its_weights_where_all_are_meant():
    names = ["encoder.a.weight", "encoder.a.bias", "encoder.b.weight", "head.weight", "scale"]
    assert in_short(names, names) == ["encoder", "head", "scale"]
    assert in_short(["encoder.a.weight", "encoder.a.bias", "scale"], names) == ["encoder.a", "scale"]
    assert in_short(["encoder.a.bias"], names) == ["encoder.a.bias"]
    assert in_short([], names) == []
