"""What holds for every encoder-decoder that the configuration can describe.

Shapes: B batch, S source length, T target length, N rows of a search, D model width, V vocabulary.
"""

import itertools

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from headloom.build_model import build_model
from headloom.config.schema_model import Tying
from headloom.config.schema_parts import GeluConfig, NormKind, PostNormConfig, PreNormConfig, ReluConfig, SwigluConfig
from headloom.config.schema_position import LearnedConfig, NoPositionConfig, RopeConfig, SinusoidalConfig
from headloom.models.seq2seq import Seq2Seq
from headloom.nn.attention import recording_attention
from headloom.nn.loss import IGNORE, sequence_loss

V, PAD = 19, 0
POSITIONS = {
    "none": NoPositionConfig,
    "sinusoidal": SinusoidalConfig,
    "learned": lambda: LearnedConfig(max_length=64),
    "rope": RopeConfig,
}
PLACEMENTS = {"pre": PreNormConfig, "post": PostNormConfig}
FEED_FORWARDS = {"relu": ReluConfig, "gelu": GeluConfig, "swiglu": SwigluConfig}
EVERY = [
    pytest.param(*parts, id="-".join(map(str, parts)))
    for parts in itertools.product(POSITIONS, PLACEMENTS, ["layer", "rms"], FEED_FORWARDS, [1, 2, 4])
]
NAMES = ("position", "placement", "norm", "feed_forward", "num_kv_heads")
EACH = [
    *[(position, "pre", "layer", "relu", num_kv_heads) for position in POSITIONS for num_kv_heads in (1, 2, 4)],
    *[("rope", placement, norm, "swiglu", 2) for placement in PLACEMENTS for norm in ("layer", "rms")],
    ("sinusoidal", "post", "layer", "gelu", 4),
]


@pytest.fixture
def build(make_config):
    def build(
        position="sinusoidal", placement="pre", norm="layer", feed_forward="relu", num_kv_heads=4, **model
    ) -> Seq2Seq:
        config = make_config(
            model={"num_kv_heads": num_kv_heads, "dropout": 0.3, **model},
            position=POSITIONS[position](),
            norm=PLACEMENTS[placement](kind=NormKind[norm]),
            feed_forward=FEED_FORWARDS[feed_forward](),
        )
        model = build_model(config, source_vocab_size=V, target_vocab_size=V).eval()
        with torch.no_grad():
            for parameter in model.parameters():  # away from zero biases and equal gains
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
        return model

    return build


def tokens(*shape: int) -> Tensor:
    return torch.randint(1, V, shape)


@pytest.mark.parametrize(NAMES, EACH)
def test_a_hidden_state_sees_the_source_and_the_tokens_up_to_its_own(
    build, position, placement, norm, feed_forward, num_kv_heads
):
    """B29: the gradient of output t is exactly 0 for every later target token and for padding, and for nothing else."""
    model = build(position, placement, norm, feed_forward, num_kv_heads, tying=Tying.none)
    seen = []

    def keep_gradient(module: torch.nn.Module, arguments: tuple[Tensor, ...], out: Tensor) -> None:
        out.retain_grad()
        seen.append(out)

    for embedding in (model.encoder.embedding, model.decoder.embedding):
        embedding.register_forward_hook(keep_gradient)
    allowed_BS = torch.tensor([[True] * 4 + [False] * 2])
    model(tokens(1, 6), allowed_BS, tokens(1, 7))[0, 3].square().sum().backward()
    source_S, target_T = (embedded.grad[0].abs().amax(dim=-1) for embedded in seen)
    assert target_T[4:].max() == 0
    assert target_T[:4].min() > 0
    assert source_S[4:].max() == 0
    assert source_S[:4].min() > 0


@pytest.mark.parametrize(NAMES, EVERY)
def test_decoding_step_by_step_is_one_forward_pass(build, position, placement, norm, feed_forward, num_kv_heads):
    """B30, B75: also after hypotheses were reordered and sentences have left."""
    model = build(position, placement, norm, feed_forward, num_kv_heads, num_encoder_layers=1)
    source_BS = tokens(3, 6)
    allowed_BS = torch.arange(6) < torch.tensor([4, 6, 2])[:, None]
    beam_size, num_steps = 2, 6
    reorders = {
        1: [1, 1, 3, 2, 4, 4],  # inside their sentences
        3: [0, 1, 5, 4],  # the second sentence leaves
        5: [3, 2],  # so does the first
    }
    sentence_N = torch.arange(3).repeat_interleave(beam_size)
    prefix_NT = torch.empty(6, 0, dtype=torch.int64)
    with torch.no_grad():
        memory_BSD = model.encode(source_BS, allowed_BS)
        state = model.start(memory_BSD, allowed_BS, beam_size=beam_size, max_length=num_steps)
        for step in range(num_steps):
            if step in reorders:
                index_N = torch.tensor(reorders[step])
                state.reorder(index_N)
                prefix_NT, sentence_N = prefix_NT[index_N], sentence_N[index_N]
            token_N = tokens(len(prefix_NT))
            prefix_NT = torch.cat([prefix_NT, token_N[:, None]], dim=1)
            hidden_NTD = model.decoder(prefix_NT, memory_BSD[sentence_N], allowed_BS[sentence_N])
            torch.testing.assert_close(state.step(token_N), model.logits(hidden_NTD[:, -1]), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("position", POSITIONS)
def test_decoding_step_by_step_needs_no_mask_when_no_row_is_padded(build, position):
    model, source_BS, input_NT = build(position), tokens(2, 5), tokens(2, 4)
    with torch.no_grad():
        state = model.start(model.encode(source_BS, None), None, beam_size=1, max_length=4)
        logits_NTV = torch.stack([state.step(token_N) for token_N in input_NT.T], dim=1)
        torch.testing.assert_close(logits_NTV, model.logits(model(source_BS, None, input_NT)))


def test_decoding_step_by_step_works_in_bfloat16(build):
    """Rounded to 8 bits in every layer: close, not equal."""
    model, source_BS, input_NT = build("rope"), tokens(2, 5), tokens(2, 4)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            state = model.start(model.encode(source_BS, None), None, beam_size=1, max_length=4)
            logits_NTV = torch.stack([state.step(token_N) for token_N in input_NT.T], dim=1)
            forward_NTV = model.logits(model(source_BS, None, input_NT))
        exact_NTV = model.logits(model(source_BS, None, input_NT))
    assert logits_NTV.dtype is forward_NTV.dtype is torch.float32
    for close_NTV in (logits_NTV, forward_NTV):
        assert (close_NTV - exact_NTV).norm() < 0.05 * exact_NTV.norm()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("num_padded", [1, 50])
def test_padding_changes_nothing(build, position, num_padded, training):
    """B27: neither how much of it there is nor what its embedding holds changes a result or a gradient."""
    model = build(position, dropout=0.0, tying=Tying.none).train(training)
    source_BS, input_BT = tokens(1, 4), tokens(1, 3)
    alone_BTD = model(source_BS, None, input_BT)
    parameters = [p for name, p in model.named_parameters() if "embedding" not in name and p is not model.output.weight]
    expected = torch.autograd.grad(alone_BTD.sin().sum(), parameters)
    with torch.no_grad():
        model.encoder.embedding.table.weight[PAD] = 1e4
        model.decoder.embedding.table.weight[PAD] = 1e4
    # Beside a longer neighbour.
    source_BS = torch.cat([torch.nn.functional.pad(source_BS, (0, num_padded), value=PAD), tokens(1, 4 + num_padded)])
    input_BT = torch.cat([torch.nn.functional.pad(input_BT, (0, num_padded), value=PAD), tokens(1, 3 + num_padded)])
    allowed_BS = torch.arange(4 + num_padded) < torch.tensor([[4], [4 + num_padded]])
    padded_BTD = model(source_BS, allowed_BS, input_BT)
    torch.testing.assert_close(padded_BTD[:1, :3], alone_BTD, atol=1e-5, rtol=1e-5)
    gradients = torch.autograd.grad(padded_BTD[:1, :3].sin().sum(), parameters)
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_sentence_of_nothing_but_padding_spoils_no_gradient(build, dropout, dtype, placement):
    """B26, B37: every gradient is finite, and the other rows are what they are without it."""
    model = build(placement=placement, dropout=dropout).train()
    source_BS, input_BT, target_BT = tokens(3, 5), tokens(3, 4), tokens(3, 4)
    allowed_BS = torch.tensor([[True] * 5, [False] * 5, [True] * 3 + [False] * 2])
    target_BT[1] = IGNORE
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        hidden_BTD = model(source_BS, allowed_BS, input_BT)
        sums = sequence_loss(hidden_BTD, target_BT, model.output_weight, label_smoothing=0.1)
    sums.loss.backward()
    assert sums.loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    if dropout == 0 and dtype is None:
        rest = [0, 2]
        without_BTD = model(source_BS[rest], allowed_BS[rest], input_BT[rest])
        torch.testing.assert_close(hidden_BTD[rest], without_BTD)


@pytest.mark.parametrize(
    "place", ["embedding_dropout", "token_dropout", "attention_dropout", "activation_dropout", "residual_dropout"]
)
@pytest.mark.parametrize("position", ["sinusoidal", "rope"])
def test_each_dropout_ends_with_training(build, place, position):
    """B28: evaluation is that of the same weights without dropout, bit for bit, cached or not; training is not."""
    dropping = build(position, dropout=0.0, **{place: 0.5})
    plain = build(position, dropout=0.0)
    plain.load_state_dict(dropping.state_dict())
    source_BS, input_BT = tokens(2, 5), tokens(2, 4)
    assert torch.equal(dropping(source_BS, None, input_BT), plain(source_BS, None, input_BT))
    steps = []
    for model in (dropping, plain):
        state = model.start(model.encode(source_BS, None), None, beam_size=1, max_length=2)
        steps.append(state.step(input_BT[:, 0]))
    assert torch.equal(*steps)
    dropping.train()
    assert not torch.equal(dropping(source_BS, None, input_BT), dropping(source_BS, None, input_BT))


@pytest.mark.parametrize("position", POSITIONS)
def test_only_without_positions_is_the_order_of_the_source_unknown(build, position):
    model, source_BS, input_BT = build(position), tokens(1, 6), tokens(1, 4)
    same = torch.allclose(model(source_BS, None, input_BT), model(source_BS.flip(1), None, input_BT), atol=1e-4)
    assert same is (position == "none")


@pytest.mark.parametrize(
    ("tying", "num_matrices"), [(Tying.all, 1), (Tying.decoder, 2), (Tying.none, 3)], ids=lambda value: str(value)
)
def test_tied_matrices_are_one_parameter(build, tying, num_matrices):
    """B61: before and after a load and a move."""
    model = build(tying=tying)
    for _ in range(2):
        tables = {model.encoder.embedding.table.weight, model.decoder.embedding.table.weight, model.output_weight}
        assert len(tables) == num_matrices
        assert sum(parameter.shape == (V, 16) for parameter in model.parameters()) == num_matrices
        model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
        model.to(torch.float64).to(torch.float32)


def test_recomputed_blocks_give_the_same_gradients(build):
    """B34: dropout 0.3, bit for bit."""
    model = build("rope").train()
    source_BS, input_BT = tokens(2, 5), tokens(2, 4)
    gradients = []
    for recompute in (False, True):
        torch.manual_seed(1)
        if recompute:
            hidden_BTD = checkpoint(model, source_BS, None, input_BT, use_reentrant=False)
        else:
            hidden_BTD = model(source_BS, None, input_BT)
        model.zero_grad()
        hidden_BTD.square().sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])


def test_every_attention_is_recorded_under_its_place(build):
    model = build()
    with recording_attention(model) as weights:
        model(tokens(1, 5), None, tokens(1, 4))
    shapes = {name: tuple(weights_BHTS.shape) for name, weights_BHTS in weights.items()}
    assert shapes == {
        "encoder.0.self": (1, 4, 5, 5),
        "encoder.1.self": (1, 4, 5, 5),
        "decoder.0.self": (1, 4, 4, 4),
        "decoder.0.cross": (1, 4, 4, 5),
        "decoder.1.self": (1, 4, 4, 4),
        "decoder.1.cross": (1, 4, 4, 5),
    }


def test_the_longest_length_is_that_of_the_positions(build):
    assert build("learned").max_length == 64
    assert build("rope").max_length is None


def test_the_stream_ends_in_float32_and_the_products_are_bfloat16(build):
    """B50: weights, loss and logits stay float32."""
    model = build().train()
    with torch.autocast("cpu", torch.bfloat16):
        hidden_BTD = model(tokens(2, 5), None, tokens(2, 4))
        sums = sequence_loss(hidden_BTD, tokens(2, 4), model.output_weight, label_smoothing=0.1)
    sums.loss.backward()
    assert hidden_BTD.dtype is torch.bfloat16
    assert sums.loss.dtype is torch.float32
    assert {p.dtype for p in model.parameters()} == {p.grad.dtype for p in model.parameters()} == {torch.float32}
