"""Shapes: B batch, T queries, S keys, D model width, H query heads, G key/value heads, K head width."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headloom.nn.attention import MultiHeadAttention, recording_attention
from headloom.nn.positional import Rotary

D, H = 16, 4
parametrize_kv_heads = pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
parametrize_position = pytest.mark.parametrize("rope", [False, True], ids=["", "rope"])


def attention(num_kv_heads: int = H, *, rope: bool = False, **options) -> MultiHeadAttention:
    positional = Rotary(D // H, base=100.0) if rope else None
    return MultiHeadAttention(D, H, num_kv_heads=num_kv_heads, positional=positional, **options)


def copied(theirs: nn.MultiheadAttention) -> MultiHeadAttention:
    ours = attention()
    with torch.no_grad():
        for ours_parameter, value in copies(ours, theirs):
            ours_parameter.copy_(value)
    return ours


def copies(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> Iterator[tuple[Tensor, Tensor]]:
    yield ours.query.weight, theirs.in_proj_weight[:D]
    yield ours.query.bias, theirs.in_proj_bias[:D]
    yield ours.key_value.weight, theirs.in_proj_weight[D:]
    yield ours.key_value.bias, theirs.in_proj_bias[D:]
    yield ours.output.weight, theirs.out_proj.weight
    yield ours.output.bias, theirs.out_proj.bias


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("itself", [False, True], ids=["cross", "self"])
def test_attention_and_its_gradients_are_those_of_pytorch(causal, padded, itself):
    """By copied weights; B29: PyTorch's boolean masks have the opposite sense of ours."""
    theirs = nn.MultiheadAttention(D, H, batch_first=True)
    nn.init.normal_(theirs.in_proj_bias)
    nn.init.normal_(theirs.out_proj.bias)
    ours = copied(theirs)
    x_BTD = torch.randn(2, 6, D, requires_grad=True)
    memory_BSD = x_BTD if itself else torch.randn(2, 6, D, requires_grad=True)
    allowed_BS = torch.tensor([[True] * 6, [True] * 4 + [False] * 2]) if padded else None
    out = ours(x_BTD, memory_BSD, allowed_BS, causal=causal)
    expected, _ = theirs(
        x_BTD,
        memory_BSD,
        memory_BSD,
        key_padding_mask=None if allowed_BS is None else ~allowed_BS,
        attn_mask=torch.ones(6, 6, dtype=torch.bool).triu(1) if causal else None,
        need_weights=False,
    )
    torch.testing.assert_close(out, expected)
    upstream = torch.randn_like(out)
    torch.testing.assert_close(
        torch.autograd.grad(out, (x_BTD, memory_BSD), upstream, retain_graph=True),
        torch.autograd.grad(expected, (x_BTD, memory_BSD), upstream, retain_graph=True),
    )
    out.backward(upstream)
    expected.backward(upstream)
    grads_of_theirs = nn.MultiheadAttention(D, H, batch_first=True)
    grads_of_theirs.load_state_dict({name: p.grad for name, p in theirs.named_parameters()})
    for ours_parameter, gradient in copies(ours, grads_of_theirs):
        torch.testing.assert_close(ours_parameter.grad, gradient.detach())


@parametrize_kv_heads
@parametrize_position
def test_a_query_does_not_see_the_future(num_kv_heads, rope):
    """B29: the gradient of output t is exactly zero for every input after t, and for none before."""
    x_BTD = torch.randn(1, 9, D, requires_grad=True)
    attention(num_kv_heads, rope=rope)(x_BTD, x_BTD, None, causal=True)[0, 4].sum().backward()
    assert x_BTD.grad[0, 5:].abs().max() == 0
    assert x_BTD.grad[0, :5].abs().amax(dim=-1).min() > 0


@parametrize_kv_heads
@parametrize_position
def test_a_query_does_not_see_padding(num_kv_heads, rope):
    """B27: the gradient for padded keys is exactly zero."""
    memory_BSD = torch.randn(1, 9, D, requires_grad=True)
    allowed_BS = torch.tensor([[True] * 6 + [False] * 3])
    attention(num_kv_heads, rope=rope)(torch.randn(1, 4, D), memory_BSD, allowed_BS, causal=False).sum().backward()
    assert memory_BSD.grad[0, 6:].abs().max() == 0
    assert memory_BSD.grad[0, :6].abs().amax(dim=-1).min() > 0


@pytest.mark.parametrize("num_kv_heads", [1, 2])
@parametrize_position
def test_shared_key_heads_are_heads_of_equal_weights(num_kv_heads, rope):
    """Ainslie et al. (2023), section 2.2: G heads, each for H / G neighbouring queries."""
    shared, full = attention(num_kv_heads, rope=rope), attention(rope=rope)
    full.query.load_state_dict(shared.query.state_dict())
    full.output.load_state_dict(shared.output.state_dict())
    with torch.no_grad():
        for name in ("weight", "bias"):
            grouped_2GK = getattr(shared.key_value, name).unflatten(0, (2, num_kv_heads, D // H))
            repeated_2HK = grouped_2GK.repeat_interleave(H // num_kv_heads, dim=1)
            getattr(full.key_value, name).copy_(repeated_2HK.flatten(0, 2))
    x_BTD = torch.randn(2, 5, D)
    for causal in (False, True):
        torch.testing.assert_close(shared(x_BTD, x_BTD, None, causal=causal), full(x_BTD, x_BTD, None, causal=causal))


@parametrize_kv_heads
def test_dropout_ends_with_training(num_kv_heads):
    """B28: evaluation is that of the same weights without dropout, bit for bit, and draws no number."""
    dropping, plain = attention(num_kv_heads, dropout=0.5), attention(num_kv_heads)
    plain.load_state_dict(dropping.state_dict())
    x_BTD = torch.randn(2, 5, D)
    assert not torch.equal(dropping(x_BTD, x_BTD, None, causal=True), dropping(x_BTD, x_BTD, None, causal=True))
    dropping.eval()
    state = torch.get_rng_state()
    assert torch.equal(dropping(x_BTD, x_BTD, None, causal=True), plain(x_BTD, x_BTD, None, causal=True))
    assert torch.equal(torch.get_rng_state(), state)


def test_recomputed_attention_draws_the_same_dropout():
    """B34: gradients with activation checkpointing are those without, bit for bit, under autocast too."""
    module, x_BTD = attention(dropout=0.3), torch.randn(2, 5, D)
    for autocast in (False, True):
        gradients = []
        for recompute in (False, True):
            torch.manual_seed(4)

            def forward(x_BTD: Tensor) -> Tensor:
                return module(x_BTD, x_BTD, None, causal=True)

            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                out = checkpoint(forward, x_BTD, use_reentrant=False) if recompute else forward(x_BTD)
            gradients.append(torch.autograd.grad(out.float().square().sum(), list(module.parameters())))
        for one, other in zip(*gradients, strict=True):
            assert torch.equal(one, other)


def test_bias_false_leaves_matrices_only():
    assert [parameter.dim() for parameter in attention(bias=False).parameters()] == [2, 2, 2]


def test_widths_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match=r"d_model \(16\) must be a multiple of num_heads \(3\)"):
        MultiHeadAttention(16, 3)
    with pytest.raises(ValueError, match=r"num_heads \(4\) must be a multiple of num_kv_heads \(3\)"):
        MultiHeadAttention(16, 4, num_kv_heads=3)


class Pair(nn.Module):
    """Two attentions in a list, as a stack has them."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([attention(2, **options), attention(4, **options)])

    def forward(self, x_BTD: Tensor, allowed_BS: Tensor | None) -> Tensor:
        for block in self.blocks:
            x_BTD = block(x_BTD, x_BTD, allowed_BS, causal=True)
        return x_BTD


def test_recorded_weights_are_those_of_every_head_and_change_no_output():
    model, x_BTD = Pair().eval(), torch.randn(2, 5, D)
    allowed_BS = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    plain = model(x_BTD, allowed_BS)
    with recording_attention(model) as weights:
        recorded = model(x_BTD, allowed_BS)
    torch.testing.assert_close(recorded, plain)
    assert len(weights) == 2
    for weights_BHTS in weights.values():
        assert weights_BHTS.shape == (2, H, 5, 5)
        assert weights_BHTS.dtype is torch.float32
        torch.testing.assert_close(weights_BHTS.sum(-1), torch.ones(2, H, 5))
        assert weights_BHTS.triu(1).eq(0).all()
        assert weights_BHTS[1, :, :, 3:].eq(0).all()


def test_outside_the_block_nothing_is_recorded_whatever_happened_inside():
    """Training keeps its fused kernels, and no graph or tensor is held."""
    model, x_BTD = Pair(), torch.randn(2, 5, D)

    def fails_inside() -> None:
        with recording_attention(model):
            model(x_BTD, None)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fails_inside()
    with recording_attention(model) as weights:
        pass
    model(x_BTD, None).sum().backward()
    assert not weights


def test_recording_works_in_reduced_precision():
    model, x_BTD = Pair().eval(), torch.randn(2, 5, D)
    with torch.autocast("cpu", torch.bfloat16), recording_attention(model) as weights:
        out = model(x_BTD, None)
    assert out.isfinite().all()
    for weights_BHTS in weights.values():
        assert weights_BHTS.dtype is torch.float32
        torch.testing.assert_close(weights_BHTS.sum(-1), torch.ones(2, H, 5))
