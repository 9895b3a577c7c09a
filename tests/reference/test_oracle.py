"""Our PyTorch modules equal the NumPy reference in float64, outputs and every gradient, over random configurations.

Shapes: B batch, S source length, T target length.
"""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headloom.build_language import build_language_model
from headloom.build_model import build_model
from headloom.build_parts import Parts
from headloom.config import schema_language, schema_model, schema_parts, schema_position
from headloom.models.classifier import Classifier, Pool, Pooling
from headloom.nn.loss import IGNORE, sequence_loss
from headloom.reference import parts
from headloom.reference.layers import Settings
from headloom.reference.model import Transformer

RENAMED = [
    (r"^stack\.", "decoder."),
    (r"\.blocks\.", "."),
    (r"_attention\.", "."),
    (r"_residual\.norm\.", ".norm."),
    (r"norm\.weight$", "norm.gain"),
    (r"\.embedding\.table\.weight$", ".table"),
    (r"\.embedding\.positional\.weight_TD$", ".position"),
    (r"gate_up", "up"),
    (r"^output\.weight$", "output.table"),
]


def reference_name(name: str, tying: str) -> str:
    """What the reference calls a parameter of ours."""
    for pattern, replacement in RENAMED:
        name = re.sub(pattern, replacement, name)
    return "decoder.table" if name == "encoder.table" and tying == "all" else name


def tensor(array: np.ndarray | None) -> torch.Tensor | None:
    return None if array is None else torch.from_numpy(array)


def reference_layout(name: str, array: torch.Tensor) -> np.ndarray:
    """A matrix of the reference has its input's width first, as in x W; PyTorch's has it last."""
    return (array.T if name.endswith(".weight") else array).detach().numpy().copy()


def reference_weights(model: nn.Module, tying: str) -> dict[str, np.ndarray]:
    named = ((reference_name(name, tying), weight) for name, weight in model.named_parameters())
    return {name: reference_layout(name, weight) for name, weight in named}


def assert_same_gradients(model: nn.Module, gradients: dict[str, np.ndarray], tying: str) -> None:
    names = {name: reference_name(name, tying) for name, _ in model.named_parameters()}
    assert set(names.values()) == set(gradients)
    for name, parameter in model.named_parameters():
        expected = gradients[names[name]]
        np.testing.assert_allclose(
            reference_layout(names[name], parameter.grad), expected, rtol=1e-10, atol=1e-10, err_msg=name
        )


def shaken(model: nn.Module) -> nn.Module:
    """In float64, with biases and gains that are not where they start."""
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


class Draw:
    """A random configuration, ours and the reference's."""

    def __init__(self, seed: int, **fixed: Any) -> None:
        rng = self.rng = np.random.default_rng(seed)

        def one(*choices: Any) -> Any:
            return choices[rng.integers(len(choices))]

        heads, kv_heads = one((1, 1), (2, 1), (2, 2), (4, 2), (6, 3), (3, 3))
        self.tying = fixed.get("tying") or one("none", "decoder", "all")
        self.source_vocab_size = one(7, 11)
        self.target_vocab_size = self.source_vocab_size if self.tying == "all" else one(7, 13)
        self.settings = Settings(
            d_model=heads * one(2, 4, 6),
            num_heads=heads,
            num_kv_heads=kv_heads,
            d_ff=one(8, 16),
            num_layers={"encoder": one(1, 2, 3), "decoder": one(1, 2, 3)},
            vocab_size={"encoder": self.source_vocab_size, "decoder": self.target_vocab_size},
            position=one("none", "sinusoidal", "learned", "rope", "alibi"),
            max_length=64,
            rope_base=one(10_000.0, 100.0),
            placement=one("pre", "post"),
            norm=one("layer", "rms"),
            epsilon=one(1e-5, 1e-3),
            activation=one("relu", "gelu", "swiglu"),
            bias=one(True, False),
            tying=self.tying,
            scale_embedding=one(True, False),
        )
        self.label_smoothing = one(0.0, 0.1)

    def tokens(self, batch: int, length: int, vocab_size: int) -> np.ndarray:
        return self.rng.integers(0, vocab_size, (batch, length))

    def allowed(self, batch: int, length: int) -> np.ndarray | None:
        """True on the tokens of rows of random lengths, padded on the right; or none is padding."""
        if self.rng.random() < 0.3:
            return None
        return np.arange(length) < self.rng.integers(1, length + 1, (batch, 1))

    def sections(self) -> dict[str, Any]:
        """The sections of our configuration that say the same."""
        s = self.settings
        position = {
            "none": schema_position.NoPositionConfig,
            "sinusoidal": schema_position.SinusoidalConfig,
            "learned": lambda: schema_position.LearnedConfig(max_length=s.max_length),
            "rope": lambda: schema_position.RopeConfig(base=s.rope_base),
            "alibi": schema_position.AlibiConfig,
        }[s.position]()
        norm = {"pre": schema_parts.PreNormConfig, "post": schema_parts.PostNormConfig}[s.placement]
        feed_forward = {
            "relu": schema_parts.ReluConfig,
            "gelu": schema_parts.GeluConfig,
            "swiglu": schema_parts.SwigluConfig,
        }
        return {
            "position": position,
            "norm": norm(kind=schema_parts.NormKind[s.norm], epsilon=s.epsilon),
            "feed_forward": feed_forward[s.activation](d_ff=s.d_ff),
        }

    def model(self, **options: Any) -> dict[str, Any]:
        """Options of our model, of every family; `options` are those of one."""
        shared = ("d_model", "num_heads", "num_kv_heads", "bias", "scale_embedding")
        return {"dropout": 0.3} | {name: getattr(self.settings, name) for name in shared} | options

    def seq2seq(self) -> dict[str, Any]:
        depths = {f"num_{stack}_layers": num_layers for stack, num_layers in self.settings.num_layers.items()}
        return self.model(tying=schema_model.Tying[self.tying], **depths)


@pytest.mark.parametrize("seed", range(40))
def test_the_encoder_decoder_is_the_references(make_config, seed):
    draw = Draw(seed)
    B, S, T = draw.rng.integers(1, 4), draw.rng.integers(2, 8), draw.rng.integers(2, 8)
    source_BS, target_BT = draw.tokens(B, S, draw.source_vocab_size), draw.tokens(B, T + 1, draw.target_vocab_size)
    allowed_BS, target_allowed_BT = draw.allowed(B, S), draw.allowed(B, T)
    wanted_BT = target_BT[:, 1:] if target_allowed_BT is None else np.where(target_allowed_BT, target_BT[:, 1:], IGNORE)

    config = make_config(model=draw.seq2seq(), **draw.sections())
    ours = shaken(
        build_model(config, source_vocab_size=draw.source_vocab_size, target_vocab_size=draw.target_vocab_size)
    )
    reference = Transformer(draw.settings, reference_weights(ours, draw.tying))
    logits_BTV, backward = reference.seq2seq(source_BS, allowed_BS, target_BT[:, :-1])
    loss, loss_backward = parts.cross_entropy(logits_BTV, wanted_BT, label_smoothing=draw.label_smoothing)

    hidden_BTD = ours(tensor(source_BS), tensor(allowed_BS), tensor(target_BT[:, :-1]))
    our_loss = sequence_loss(
        hidden_BTD, tensor(wanted_BT), ours.output_weight, label_smoothing=draw.label_smoothing
    ).loss
    our_loss.backward()
    our_logits_BTV = (hidden_BTD @ ours.output_weight.T).detach().numpy()
    np.testing.assert_allclose(our_logits_BTV, logits_BTV, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(our_loss.item(), loss, rtol=1e-10)
    assert_same_gradients(ours, backward(*loss_backward(1.0)), draw.tying)


@pytest.mark.parametrize("seed", range(200, 224))
def test_the_language_model_is_the_references(make_config, seed):
    """Also where documents share a row and positions count within each."""
    draw = Draw(seed, tying=("none", "decoder")[seed % 2])
    B, T, V = draw.rng.integers(1, 4), draw.rng.integers(2, 8), draw.settings.vocab_size["decoder"]
    token_BT = draw.tokens(B, T + 1, V)
    allowed_BTT = stretch_BT = position_BT = None
    if draw.rng.random() < 0.5:
        begins_BT = draw.rng.random((B, T)) < 0.4
        stretch_BT = begins_BT.cumsum(1)
        allowed_BTT = stretch_BT[:, :, None] == stretch_BT[:, None]
        position_BT = np.tril(allowed_BTT, -1).sum(-1)

    model = schema_language.LmConfig(
        **draw.model(num_layers=draw.settings.num_layers["decoder"], tie_output=draw.tying == "decoder")
    )
    config = make_config(
        model=model,
        data=schema_language.TextConfig(path="unused.txt", max_length=32),
        task=schema_language.LanguageModelingConfig(),
        **draw.sections(),
    )
    ours = shaken(build_language_model(config, vocab_size=V))
    reference = Transformer(draw.settings, reference_weights(ours, draw.tying))
    logits_BTV, backward = reference.language_model(token_BT[:, :-1], allowed_BTT, position_BT)
    loss, loss_backward = parts.cross_entropy(logits_BTV, token_BT[:, 1:])

    hidden_BTD = ours(tensor(token_BT[:, :-1]), tensor(stretch_BT), tensor(position_BT))
    our_loss = sequence_loss(hidden_BTD, tensor(token_BT[:, 1:]), ours.output_weight, label_smoothing=0.0).loss
    our_loss.backward()
    np.testing.assert_allclose(our_loss.item(), loss, rtol=1e-10)
    np.testing.assert_allclose((hidden_BTD @ ours.output_weight.T).detach().numpy(), logits_BTV, rtol=1e-10, atol=1e-10)
    assert_same_gradients(ours, backward(*loss_backward(1.0)), draw.tying)


@pytest.mark.parametrize("seed", range(300, 318))
@pytest.mark.parametrize("pooling", ["cls", "mean", None])
def test_the_classifier_is_the_references(make_config, pooling, seed):
    """One answer a row, from its first or mean vector, or one a token; the loss is PyTorch's own."""
    draw = Draw(seed, tying="none")
    B, S, C = draw.rng.integers(1, 4), draw.rng.integers(2, 8), draw.rng.integers(2, 5)
    settings = replace(draw.settings, num_classes=int(C), pooling=pooling or "cls")
    token_BS, allowed_BS = draw.tokens(B, S, draw.source_vocab_size), draw.allowed(B, S)
    wanted = draw.tokens(B, S, C) if pooling is None else draw.tokens(B, 1, C)[:, 0]
    if pooling is None and allowed_BS is not None:
        wanted = np.where(allowed_BS, wanted, IGNORE)

    modules = Parts(make_config(model=draw.seq2seq(), **draw.sections()))
    table = nn.Embedding(draw.source_vocab_size, settings.d_model)
    encoder = modules.encoder(table, num_layers=settings.num_layers["encoder"])
    pool = None if pooling is None else Pool(Pooling[pooling], settings.d_model)
    head = nn.Linear(settings.d_model, settings.num_classes, bias=settings.bias)
    ours = shaken(Classifier(encoder, pool, head, dropout=0.3))
    reference = Transformer(settings, reference_weights(ours, "none"))
    if pooling is None:
        hidden_BSD, encoder_backward = reference.encoder(token_BS, allowed_BS)
        logits, head_backward = reference.linear("head", hidden_BSD, settings.num_classes)
    else:
        logits, backward = reference.classifier(token_BS, allowed_BS)
    loss, loss_backward = parts.cross_entropy(logits, wanted, label_smoothing=draw.label_smoothing)
    if pooling is None:
        encoder_backward(*head_backward(*loss_backward(1.0)))
    else:
        backward(*loss_backward(1.0))

    our_logits = ours(tensor(token_BS), tensor(allowed_BS))
    our_loss = F.cross_entropy(
        our_logits.flatten(0, -2), tensor(wanted).flatten(), reduction="sum", label_smoothing=draw.label_smoothing
    )
    our_loss.backward()
    np.testing.assert_allclose(our_logits.detach().numpy(), logits, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(our_loss.item(), loss, rtol=1e-10)
    assert_same_gradients(ours, reference.gradients, "none")


@pytest.mark.parametrize("seed", range(100, 120))
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_a_stack_by_itself_is_the_references(make_config, stack, seed):
    """An encoder with padding; a decoder without encoder, whose rows may hold several documents."""
    draw = Draw(seed, tying="none")
    B, T = draw.rng.integers(1, 4), draw.rng.integers(2, 8)
    table = nn.Embedding(draw.settings.vocab_size[stack], draw.settings.d_model)
    modules = Parts(make_config(model=draw.seq2seq(), **draw.sections()))
    build = modules.encoder if stack == "encoder" else modules.causal_stack
    ours = shaken(nn.ModuleDict({stack: build(table, num_layers=draw.settings.num_layers[stack])}))
    reference = Transformer(draw.settings, reference_weights(ours, "none"))
    token_BT = draw.tokens(B, T, draw.settings.vocab_size[stack])
    if stack == "encoder":
        allowed = draw.allowed(B, T)
        expected_BTD, backward = reference.encoder(token_BT, allowed)
    else:
        document_BT = draw.rng.integers(0, 2, (B, T)).cumsum(1)
        allowed = None if draw.rng.random() < 0.5 else document_BT[:, :, None] == document_BT[:, None]
        expected_BTD, backward = reference.decoder(token_BT, allowed, None)
    hidden_BTD = ours[stack](tensor(token_BT), tensor(allowed))
    np.testing.assert_allclose(hidden_BTD.detach().numpy(), expected_BTD, rtol=1e-10, atol=1e-10)
    dhidden_BTD = draw.rng.normal(size=expected_BTD.shape)
    backward(dhidden_BTD)
    hidden_BTD.backward(tensor(dhidden_BTD))
    assert_same_gradients(ours, reference.gradients, "none")
