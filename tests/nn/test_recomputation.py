"""Recomputed activations change nothing but the memory."""

import pytest
import torch
from torch import Tensor, nn

from headloom.nn.attention import recording_attention
from headloom.nn.recomputation import recompute_attention, recompute_blocks

V = 17

WAYS = {
    "full": recompute_blocks,
    "every second": lambda model: recompute_blocks(model, every=2),
    "attention": recompute_attention,
}


def gradients(model: nn.Module, *, autocast: bool = False) -> list[Tensor]:
    """Of a batch with padding, with dropout on."""
    torch.manual_seed(5)
    source_BS, target_BT = torch.randint(V, (3, 7)), torch.randint(V, (3, 6))
    allowed_BS = torch.arange(7) < torch.tensor([7, 4, 2])[:, None]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        hidden_BTD = model(source_BS, allowed_BS, target_BT)
    hidden_BTD.float().square().sum().backward()
    drawn = torch.rand(1)
    return [drawn, hidden_BTD.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_gradients_are_the_same_bit_for_bit_with_dropout(make_model, way, autocast):
    """B34: and the generator is afterwards where it would be."""
    plain, recomputed = make_model(V, dropout=0.3), make_model(V, dropout=0.3)
    assert (
        way(recomputed) == {"full": 4, "every second": 2, "attention": 6}[next(n for n, w in WAYS.items() if w is way)]
    )
    for one, other in zip(gradients(plain, autocast=autocast), gradients(recomputed, autocast=autocast), strict=True):
        assert torch.equal(one, other)


def saved_bytes(model: nn.Module) -> int:
    """What a forward pass keeps for the backward pass, weights not counted."""
    weights = {p.data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            kept[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = model(torch.randint(V, (4, 40)), None, torch.randint(V, (4, 40)))
    assert out.requires_grad
    return sum(kept.values())


def test_less_is_kept(make_model):
    """Otherwise the time is paid for nothing."""
    kept = {"none": saved_bytes(make_model(V))}
    for name, way in WAYS.items():
        model = make_model(V)
        way(model)
        kept[name] = saved_bytes(model)
    assert kept["full"] < 0.5 * kept["none"]
    assert kept["full"] < kept["every second"] < kept["none"]
    assert kept["attention"] < 0.8 * kept["none"]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_names_of_weights_and_recorded_attention_stay(make_model, way):
    """B60."""
    plain, recomputed = make_model(V), make_model(V)
    way(recomputed)
    assert list(recomputed.state_dict()) == list(plain.state_dict())
    with recording_attention(recomputed) as weights:
        recomputed.eval()(torch.randint(V, (1, 5)), None, torch.randint(V, (1, 4)))
    assert len(weights) == 6


def test_input_that_needs_no_gradient_is_no_obstacle(make_model):
    """B34: the embeddings may be frozen."""
    model = make_model(V)
    recompute_blocks(model)
    for embedding in (model.encoder.embedding, model.decoder.embedding):
        embedding.requires_grad_(False)
    gradients(model)
    assert model.encoder.blocks[0].feed_forward.up.weight.grad is not None
