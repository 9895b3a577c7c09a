"""A causal stack, as a decoder-only model has it.

Shapes: B batch, T length, N rows of a search, D model width, V vocabulary.
"""

import pytest
import torch
from torch import Tensor, nn

from headloom.build_parts import Parts
from headloom.config.schema_position import LearnedConfig, RopeConfig, SinusoidalConfig
from headloom.models.classifier import SegmentEmbedding
from headloom.models.stack import Embedding, Stack
from headloom.nn.positional import Sinusoidal

V, D = 19, 16
POSITIONS = {"sinusoidal": SinusoidalConfig(), "learned": LearnedConfig(max_length=64), "rope": RopeConfig()}


@pytest.fixture(params=POSITIONS)
def stack(make_config, request) -> Stack:
    built = Parts(make_config(position=POSITIONS[request.param])).causal_stack(nn.Embedding(V, D), num_layers=2)
    return built.eval()


def tokens(*shape: int) -> Tensor:
    return torch.randint(V, shape)


@torch.no_grad()
@pytest.mark.parametrize("segments", [False, True])
def test_token_dropout_drops_whole_tokens_and_scales_the_others(segments):
    """A dropped token keeps its position; the expectation is that of all tokens."""
    table, options = nn.Embedding(V, D), {"scaled": True, "dropout": 0.0, "token_dropout": 0.25}
    embedding = Embedding(table, Sinusoidal(D), **options)
    if segments:
        embedding = SegmentEmbedding(table, Sinusoidal(D), separator=V, **options)
    token_BT = tokens(40, 50)
    position_BTD = Sinusoidal(D).embed(torch.zeros(40, 50, D))
    whole_BTD = embedding.eval()(token_BT) - position_BTD
    left_BTD = embedding.train()(token_BT) - position_BTD
    dropped_BT = left_BTD.abs().amax(-1) < 1e-5
    torch.testing.assert_close(left_BTD, whole_BTD / 0.75 * ~dropped_BT[..., None], atol=1e-4, rtol=1e-4)
    assert 0.2 < dropped_BT.float().mean() < 0.3


@torch.no_grad()
def test_steps_of_any_length_are_one_forward_pass(stack):
    """B30: a prompt of three tokens, one token, then two onto a cache of four."""
    token_NT = tokens(2, 6)
    cache = stack.start(2, max_length=6)
    steps = [stack.step(piece_NT, cache) for piece_NT in token_NT.split([3, 1, 2], dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), stack(token_NT, None), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_padding_on_the_left_can_be_masked_step_by_step(stack):
    """Prompts of several lengths end together; a row that sees nothing yet is finite."""
    token_NT = tokens(2, 5)
    allowed_NT = torch.tensor([[True] * 5, [False] * 2 + [True] * 3])
    cache = stack.start(2, max_length=5)
    steps = [stack.step(token_NT[:, :4], cache, allowed_NT[:, :4]), stack.step(token_NT[:, 4:], cache, allowed_NT)]
    torch.testing.assert_close(torch.cat(steps, dim=1), stack(token_NT, allowed_NT), atol=1e-5, rtol=1e-5)
    assert torch.cat(steps, dim=1).isfinite().all()


@torch.no_grad()
def test_a_document_does_not_see_the_one_before_it_in_its_row(stack):
    token_BT, document_BT = tokens(2, 6), torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 2, 2]])
    allowed_BTT = document_BT[:, :, None] == document_BT[:, None, :]
    hidden_BTD = stack(token_BT, allowed_BTT)
    changed_BT = token_BT.clone()
    changed_BT[0, :3] = tokens(3)
    changed_BT[1, :4] = tokens(4)
    other_BTD = stack(changed_BT, allowed_BTT)
    assert torch.equal(other_BTD[0, 3:], hidden_BTD[0, 3:])
    assert torch.equal(other_BTD[1, 4:], hidden_BTD[1, 4:])


def test_a_cache_is_in_the_precision_of_the_step(stack):
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        cache = stack.start(1, max_length=2)
        stack.step(tokens(1, 2), cache)
    assert cache.layers[0].both_SN2GK.dtype is torch.bfloat16
