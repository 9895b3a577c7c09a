"""The whole model against `torch.nn.Transformer`, by copied weights.

Shapes: B batch, S source length, T target length, D model width, V vocabulary.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headloom.build_model import build_model
from headloom.build_parts import Parts
from headloom.config.schema_parts import GeluConfig, PostNormConfig, PreNormConfig, ReluConfig
from headloom.config.schema_position import NoPositionConfig
from headloom.models.seq2seq import Seq2Seq
from headloom.nn.attention import MultiHeadAttention
from headloom.nn.loss import IGNORE, sequence_loss
from headloom.nn.positional import Sinusoidal

V, D, PAD = 19, 16, 0


class Pair(NamedTuple):
    """The same numbers in both models: `theirs[place]`."""

    ours: nn.Parameter
    theirs: nn.Parameter
    place: slice = slice(None)


class Peer(nn.Module):
    """`nn.Transformer` in the arrangement of Vaswani et al. (2017): one table for all three uses, sinusoids."""

    def __init__(self, *, norm_first: bool, activation: str) -> None:
        super().__init__()
        options = {
            "dim_feedforward": 32,
            "dropout": 0.0,
            "activation": activation,
            "norm_first": norm_first,
            "batch_first": True,
        }

        def last_norm() -> nn.Module | None:
            return nn.LayerNorm(D) if norm_first else None  # nn.Transformer would put one after post-norm too

        self.table = nn.Embedding(V, D)
        self.transformer = nn.Transformer(
            D,
            4,
            batch_first=True,
            custom_encoder=nn.TransformerEncoder(
                nn.TransformerEncoderLayer(D, 4, **options), 2, norm=last_norm(), enable_nested_tensor=False
            ),
            custom_decoder=nn.TransformerDecoder(nn.TransformerDecoderLayer(D, 4, **options), 2, norm=last_norm()),
        )

    def embed(self, token_BT: Tensor) -> Tensor:
        return Sinusoidal(D).embed(self.table(token_BT) * math.sqrt(D))

    def forward(self, source_BS: Tensor, allowed_BS: Tensor | None, target_input_BT: Tensor) -> Tensor:
        hidden = None if allowed_BS is None else ~allowed_BS  # True hides there
        T = target_input_BT.size(1)
        hidden_BTD = self.transformer(
            self.embed(source_BS),
            self.embed(target_input_BT),
            tgt_mask=torch.ones(T, T, dtype=torch.bool).triu(1),
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
        )
        return hidden_BTD @ self.table.weight.T


def attention_pairs(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> Iterator[Pair]:
    for name in ("weight", "bias"):
        in_proj = getattr(theirs, f"in_proj_{name}")
        yield Pair(getattr(ours.query, name), in_proj, slice(0, D))
        yield Pair(getattr(ours.key_value, name), in_proj, slice(D, 3 * D))
        yield Pair(getattr(ours.output, name), getattr(theirs.out_proj, name))


def module_pairs(ours: nn.Module, theirs: nn.Module) -> Iterator[Pair]:
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        yield Pair(mine, other)


def pairs(ours: Seq2Seq, theirs: Peer) -> Iterator[Pair]:
    yield Pair(ours.output.weight, theirs.table.weight)
    for stack in ("encoder", "decoder"):
        mine, other = getattr(ours, stack), getattr(theirs.transformer, stack)
        for block, layer in zip(mine.blocks, other.layers, strict=True):
            yield from attention_pairs(block.self_attention, layer.self_attn)
            yield from module_pairs(block.self_residual.norm, layer.norm1)
            yield from module_pairs(block.feed_forward.up, layer.linear1)
            yield from module_pairs(block.feed_forward.down, layer.linear2)
            if stack == "decoder":
                yield from attention_pairs(block.cross_attention, layer.multihead_attn)
                yield from module_pairs(block.cross_residual.norm, layer.norm2)
            yield from module_pairs(
                block.feed_forward_residual.norm, layer.norm3 if stack == "decoder" else layer.norm2
            )
        if other.norm is not None:
            yield from module_pairs(mine.norm, other.norm)


@pytest.mark.parametrize("norm", [PreNormConfig(), PostNormConfig()], ids=["pre", "post"])
@pytest.mark.parametrize("feed_forward", [ReluConfig(), GeluConfig()], ids=["relu", "gelu"])
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
def test_outputs_and_gradients_are_those_of_pytorch(make_config, norm, feed_forward, padded):
    """Post-norm with ReLU, sinusoids and one tied matrix is the model of Vaswani et al. (2017)."""
    config = make_config(norm=norm, feed_forward=feed_forward)
    ours = build_model(config, source_vocab_size=V, target_vocab_size=V).eval()
    theirs = Peer(norm_first=isinstance(norm, PreNormConfig), activation=feed_forward.kind.name)
    same = list(pairs(ours, theirs))
    assert {id(pair.ours) for pair in same} == {id(parameter) for parameter in ours.parameters()}
    assert {id(pair.theirs) for pair in same} == {id(parameter) for parameter in theirs.parameters()}
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
        for pair in same:
            pair.ours.copy_(pair.theirs[pair.place])

    source_BS, input_BT, target_BT = (torch.randint(1, V, (3, length)) for length in (6, 7, 7))
    allowed_BS = None
    if padded:
        allowed_BS = torch.arange(6) < torch.tensor([6, 4, 1])[:, None]
        source_BS[~allowed_BS] = PAD
        input_BT[1, 4:] = PAD
        target_BT[1, 4:] = IGNORE
    hidden_BTD = ours(source_BS, allowed_BS, input_BT)
    logits_BTV = theirs(source_BS, allowed_BS, input_BT)
    torch.testing.assert_close(ours.logits(hidden_BTD), logits_BTV)

    loss = sequence_loss(hidden_BTD, target_BT, ours.output_weight, label_smoothing=0.1).loss
    expected = F.cross_entropy(logits_BTV.flatten(0, 1), target_BT.flatten(), label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    for pair in same:
        # Sums of some hundred terms of both signs, in another order.
        torch.testing.assert_close(pair.ours.grad, pair.theirs.grad[pair.place], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("norm", [PreNormConfig(), PostNormConfig()], ids=["pre", "post"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_stack_is_the_encoder_of_pytorch(make_config, norm, causal):
    """Of a classifier, and with a causal mask of a decoder-only model."""
    parts = Parts(make_config(norm=norm, feed_forward=GeluConfig(), position=NoPositionConfig()))
    make = parts.causal_stack if causal else parts.encoder
    ours = make(nn.Embedding(V, D), num_layers=2).eval()
    is_pre = isinstance(norm, PreNormConfig)
    layer = nn.TransformerEncoderLayer(D, 4, 32, dropout=0.0, activation="gelu", norm_first=is_pre, batch_first=True)
    theirs = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(D) if is_pre else None, enable_nested_tensor=False)
    for block, other in zip(ours.blocks, theirs.layers, strict=True):
        for pair in (
            *attention_pairs(block.self_attention, other.self_attn),
            *module_pairs(block.self_residual.norm, other.norm1),
            *module_pairs(block.feed_forward.up, other.linear1),
            *module_pairs(block.feed_forward.down, other.linear2),
            *module_pairs(block.feed_forward_residual.norm, other.norm2),
        ):
            with torch.no_grad():
                pair.ours.copy_(pair.theirs[pair.place].normal_(std=0.3))
    token_BT = torch.randint(V, (2, 6))
    allowed_BT = None if causal else torch.arange(6) < torch.tensor([[6], [4]])
    expected_BTD = theirs(
        ours.embedding(token_BT),
        mask=torch.ones(6, 6, dtype=torch.bool).triu(1) if causal else None,
        src_key_padding_mask=None if allowed_BT is None else ~allowed_BT,
    )
    out_BTD = ours(token_BT, allowed_BT)
    real_BT = torch.ones(2, 6, dtype=torch.bool) if allowed_BT is None else allowed_BT
    torch.testing.assert_close(out_BTD[real_BT], expected_BTD[real_BT])
