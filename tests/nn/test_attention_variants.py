"""What every variant of self-attention keeps: causality, padding, cached steps, precision.

Shapes: B batch, T queries, S keys, D model width, N rows of a search, H query heads, K head width.
"""

import pytest
import torch
from torch import Tensor, nn

from headloom.nn import masks
from headloom.nn.attention import MultiHeadAttention, recording_attention
from headloom.nn.cache import KeyValues
from headloom.nn.norm import LayerNorm, RMSNorm
from headloom.nn.positional import Rotary
from headloom.nn.relative import Alibi, RelativeBuckets
from headloom.nn.rope_scaling import DynamicNtk, Yarn

D, H = 16, 4
K = D // H
BLOCKS = masks.BlockSparse(2, num_local=1, num_global=1)


def buckets(causal: bool) -> RelativeBuckets:
    scheme = RelativeBuckets(H, num_buckets=8, max_distance=6, causal=causal)
    nn.init.normal_(scheme.weight_1HN)
    return scheme


VARIANTS = {
    "alibi": lambda causal: {"positional": Alibi(H)},
    "t5": lambda causal: {"positional": buckets(causal)},
    "yarn": lambda causal: {"positional": Rotary(K, base=100.0, share=0.5, scaling=Yarn(4.0, 3))},
    "dynamic": lambda causal: {"positional": Rotary(K, base=100.0, scaling=DynamicNtk(1.0, 3))},
    "window": lambda causal: {"pattern": masks.Window(3)},
    "blocks": lambda causal: {"pattern": BLOCKS},
    "cap": lambda causal: {"soft_cap": 0.5},
    "norm": lambda causal: {
        "query_norm": LayerNorm(K, epsilon=1e-5),
        "key_norm": RMSNorm(K, epsilon=1e-5),
        "positional": Rotary(K, base=100.0),
    },
    "all": lambda causal: {
        "positional": buckets(causal),
        "pattern": masks.Window(4),
        "soft_cap": 2.0,
        "query_norm": RMSNorm(K, epsilon=1e-5),
        "key_norm": RMSNorm(K, epsilon=1e-5),
        "num_kv_heads": 2,
    },
    "alibi-blocks": lambda causal: {"positional": Alibi(H), "pattern": BLOCKS, "num_kv_heads": 1},
}
parametrize_variant = pytest.mark.parametrize("variant", VARIANTS)


def attention(variant: str, *, causal: bool, **options) -> MultiHeadAttention:
    return MultiHeadAttention(D, H, **VARIANTS[variant](causal), **options)


def reach(module: MultiHeadAttention, length: int, *, causal: bool) -> Tensor:
    """allowed_TS by the pattern and causality."""
    all_TS = torch.ones(length, length, dtype=torch.bool)
    pattern_TS = None if module.pattern is None else module.pattern.allowed(length, length, torch.device("cpu"))
    return (all_TS if pattern_TS is None else pattern_TS) & (all_TS.tril() if causal else all_TS)


@parametrize_variant
@pytest.mark.parametrize("causal", [False, True])
def test_a_query_sees_what_the_pattern_and_causality_allow_and_nothing_else(variant, causal):
    """B29: the gradient is exactly zero for what is out of reach."""
    module, x_BTD = attention(variant, causal=causal), torch.randn(1, 9, D, requires_grad=True)
    allowed_TS = reach(module, 9, causal=causal)
    for t in (0, 4, 8):
        (gradient_BTD,) = torch.autograd.grad(module(x_BTD, x_BTD, None, causal=causal)[0, t].square().sum(), x_BTD)
        assert torch.equal(gradient_BTD[0].abs().amax(-1) > 0, allowed_TS[t])


@parametrize_variant
@pytest.mark.parametrize("with_gradient", [True, False])
@pytest.mark.parametrize("causal", [False, True])
def test_padding_changes_nothing(variant, causal, with_gradient):
    """B27; under a causal mask no mask is needed against padding on the right."""
    module, x_BTD = attention(variant, causal=causal), torch.randn(2, 9, D)
    with torch.set_grad_enabled(with_gradient):
        alone_BTD = module(x_BTD[:, :6], x_BTD[:, :6], None, causal=causal)
        padded_BTD = torch.cat([x_BTD[:, :6], torch.full((2, 3, D), 1e4)], dim=1)
        allowed_BS = None if causal else (torch.arange(9) < 6).expand(2, 9)
        out_BTD = module(padded_BTD, padded_BTD, allowed_BS, causal=causal)
    torch.testing.assert_close(out_BTD[:, :6], alone_BTD, atol=1e-5, rtol=1e-5)


@parametrize_variant
@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_steps_of_any_length_are_one_pass(variant, padded):
    """B30: one token after another, and several onto a cache; also with padding on the left."""
    module, x_NTD = attention(variant, causal=True).eval(), torch.randn(2, 9, D)
    allowed_NS = torch.arange(9) >= torch.tensor([[0], [3]]) if padded else None
    whole_NTD = module(x_NTD, x_NTD, allowed_NS, causal=True)
    cache = KeyValues(x_NTD.new_empty(9, 2, 2, module.num_kv_heads, module.head_width))
    steps = []
    for piece_NTD in x_NTD.split([2, 1, 1, 3, 1, 1], dim=1):
        stop = cache.length + piece_NTD.size(1)
        steps.append(module.step(piece_NTD, cache, None if allowed_NS is None else allowed_NS[:, :stop]))
    torch.testing.assert_close(torch.cat(steps, dim=1), whole_NTD, atol=1e-5, rtol=1e-5)


@parametrize_variant
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_row_of_nothing_but_padding_has_finite_gradients(variant, causal, dtype, dropout):
    """B26: on each path; its attention is zero, so that its output is the bias alone."""
    module, x_BTD = attention(variant, causal=causal, dropout=dropout), torch.randn(2, 6, D, requires_grad=True)
    allowed_BS = torch.tensor([[False] * 6, [True] * 4 + [False] * 2])
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        out_BTD = module(x_BTD, x_BTD, allowed_BS, causal=causal)
    out_BTD.float().square().sum().backward()
    assert all(p.grad.isfinite().all() for p in (x_BTD, *module.parameters()) if p.grad is not None)
    torch.testing.assert_close(out_BTD[0].float(), module.output.bias.expand(6, D), atol=0.01, rtol=0.01)
    with torch.no_grad():
        plain_BTD = module.eval()(x_BTD, x_BTD, allowed_BS, causal=causal)
    torch.testing.assert_close(plain_BTD[0], module.output.bias.expand(6, D))


@parametrize_variant
@pytest.mark.parametrize("causal", [False, True])
def test_each_path_gives_the_same(variant, causal):
    """With a gradient, without one, and recorded: three ways through the kernels."""
    module, x_BTD = attention(variant, causal=causal).eval(), torch.randn(2, 7, D)
    allowed_BS = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    outs = [module(x_BTD, x_BTD, allowed_BS, causal=causal)]
    with torch.no_grad():
        outs.append(module(x_BTD, x_BTD, allowed_BS, causal=causal))
    with recording_attention(nn.ModuleList([module])) as weights:
        outs.append(module(x_BTD, x_BTD, allowed_BS, causal=causal))
    for out_BTD in outs[1:]:
        torch.testing.assert_close(out_BTD, outs[0], atol=1e-5, rtol=1e-5)
    ((weights_BHTS),) = weights.values()
    blocked_B1TS = ~(reach(module, 7, causal=causal) & allowed_BS[:, None])[:, None]
    assert weights_BHTS.masked_select(blocked_B1TS).eq(0).all()


def test_scores_are_capped_and_then_biased():
    """Gemma Team (2024), section 2, on the scores alone: the bias is not squeezed."""
    module = MultiHeadAttention(D, 1, soft_cap=0.7, positional=Alibi(1))
    x_BTD = torch.randn(1, 5, D)
    q_TK = module.query(x_BTD)[0]
    k_TK, v_TK = module.key_value(x_BTD)[0].chunk(2, dim=-1)
    scores_TS = 0.7 * (q_TK @ k_TK.T / D**0.5 / 0.7).tanh()
    distance_TS = (torch.arange(5)[:, None] - torch.arange(5)).abs()
    expected_TD = module.output((scores_TS - distance_TS * 2**-8).softmax(-1) @ v_TK)
    torch.testing.assert_close(module(x_BTD, x_BTD, None, causal=False)[0], expected_TD)


def test_normalised_queries_and_keys_do_not_grow_with_the_stream():
    """Dehghani et al. (2023), section 2: the weights of a stream a thousand times as large are the same."""
    module = MultiHeadAttention(
        D, H, bias=False, query_norm=LayerNorm(K, epsilon=1e-12), key_norm=LayerNorm(K, epsilon=1e-12)
    ).double()
    x_BTD = torch.randn(1, 5, D, dtype=torch.float64)
    torch.testing.assert_close(
        module(1000 * x_BTD, 1000 * x_BTD, None, causal=True), 1000 * module(x_BTD, x_BTD, None, causal=True)
    )


def test_a_learnt_bias_has_the_gradient_of_its_scores():
    """Against the difference quotient, through the path that training takes."""
    scheme = buckets(True).double()
    module = MultiHeadAttention(D, H, positional=scheme).double()
    x_BTD = torch.randn(1, 5, D, dtype=torch.float64)

    def loss(weight_1HN: Tensor) -> Tensor:
        return (
            torch.func.functional_call(
                module, {"positional.weight_1HN": weight_1HN}, (x_BTD, x_BTD, None), {"causal": True}
            )
            .square()
            .sum()
        )

    assert torch.autograd.gradcheck(loss, scheme.weight_1HN)
