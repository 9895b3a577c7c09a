"""Every combination that a class of transformers holds computes there what it computes here, with random weights."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from every_combination import config_of
from random_exports import CHANGES, PLAIN, TOKENIZER, Change, changed, of, random_ids, random_model

from headloom.combinations import ATTENTIONS
from headloom.config import schema_parts, schema_position
from headloom.config.schema_model import Tying
from headloom.config.schema_parts import NormKind
from headloom.config.schema_position import Scaling
from headloom.export.huggingface.format import HuggingFace
from headloom.export.huggingface.runtime import Writing
from headloom.export.own import OwnContinuation, OwnTranslation, own_runtime

transformers = pytest.importorskip("transformers")


ROPE, WINDOW = schema_position.RopeConfig, schema_parts.WindowConfig(width=3)
RMS = schema_parts.PreNormConfig(kind=NormKind.rms)
QK = schema_parts.PreNormConfig(kind=NormKind.rms, query_key=True)
SANDWICH = schema_parts.SandwichNormConfig(kind=NormKind.rms)
SWIGLU, PLAIN_SWIGLU = schema_parts.SwigluConfig(), schema_parts.SwigluConfig(bias=False)
llama = partial(of, norm=RMS, position=ROPE(), feed_forward=SWIGLU)


def scaled(**options: Any) -> Change:
    return llama(position=ROPE(**options), model={"d_model": 32})


MORE: dict[str, dict[str, Change]] = {
    "LlamaForCausalLM": {
        "swiglu": llama(),
        "geglu, no bias, shared keys": llama(
            feed_forward=schema_parts.GegluConfig(), model={"bias": False, "num_kv_heads": 2}
        ),
        "one bias": llama(feed_forward=PLAIN_SWIGLU),
        "untied": llama(model={"tie_output": False, "scale_embedding": False}),
        "linear": scaled(scaling=Scaling.linear, factor=2.0),
        "ntk": scaled(scaling=Scaling.ntk, factor=2.0),
        "yarn": scaled(scaling=Scaling.yarn, factor=4.0, original_length=8),
        "half of a head": scaled(share=0.5),
        "half of a head, linear": scaled(share=0.5, scaling=Scaling.linear, factor=2.0),
        "half of a head, yarn": scaled(share=0.5, scaling=Scaling.yarn, factor=4.0, original_length=8),
    },
    "ArceeForCausalLM": {
        "relu": llama(feed_forward=schema_parts.ReluConfig()),
        "relu2": llama(feed_forward=schema_parts.Relu2Config()),
    },
    "MistralForCausalLM": {"window": llama(attention=WINDOW, model={"bias": False})},
    "Qwen3ForCausalLM": {
        "full": llama(norm=QK, feed_forward=PLAIN_SWIGLU),
        "window": llama(norm=QK, feed_forward=PLAIN_SWIGLU, attention=WINDOW),
    },
    "Starcoder2ForCausalLM": {"window": of(position=ROPE(), attention=WINDOW)},
    "Gemma2ForCausalLM": {
        "full": llama(norm=SANDWICH, feed_forward=PLAIN_SWIGLU),
        "window, a scale": llama(
            norm=SANDWICH,
            feed_forward=PLAIN_SWIGLU,
            attention=WINDOW,
            model={"scale_embedding": False, "residual_scale": 0.5},
        ),
    },
    "GPT2LMHeadModel": {"epsilon": of(norm=schema_parts.PreNormConfig(epsilon=1e-3))},
    "OPTForCausalLM": {
        "learned": of(norm=schema_parts.DeepNormConfig(), position=schema_position.LearnedConfig(max_length=512)),
        "another base": of(norm=schema_parts.PostNormConfig(), position=schema_position.SinusoidalConfig(base=99.0)),
    },
    "BlenderbotForConditionalGeneration": {
        "two embeddings": of(model={"tying": Tying.decoder}),
        "three embeddings": of(model={"tying": Tying.none}),
    },
    "MarianMTModel": {
        "post": of(norm=schema_parts.PostNormConfig()),
        "two embeddings": of(norm=schema_parts.PostNormConfig(), model={"tying": Tying.decoder}),
        "three embeddings": of(norm=schema_parts.PostNormConfig(), model={"tying": Tying.none}),
    },
    "T5ForConditionalGeneration": {
        "few buckets": of(
            norm=RMS, position=schema_position.T5Config(num_buckets=6, max_distance=5), model={"bias": False}
        ),
        "geglu, unscaled, shared keys": of(
            norm=RMS,
            position=schema_position.T5Config(),
            feed_forward=schema_parts.GegluConfig(),
            model={"bias": False, "scale_embedding": False, "num_kv_heads": 2},
        ),
        "no positions, another epsilon": of(
            norm=schema_parts.PreNormConfig(kind=NormKind.rms, epsilon=1e-3),
            position=schema_position.NoPositionConfig(),
            feed_forward=SWIGLU,
            model={"bias": False},
        ),
    },
}
FAMILIES = {name: "seq2seq" if name.startswith(("Blenderbot", "Marian", "T5")) else "lm" for name in MORE}


KINDS = {f"{kind}: {name}": (kind, change) for kind, changes in MORE.items() for name, change in changes.items()}
CONFIGS = {
    name: config
    for family in ("seq2seq", "lm")
    for choice in [*CHANGES, *ATTENTIONS]
    for name, config in [(f"{family} {choice}", changed(family, choice))]
    if HuggingFace().obstacle(config) is None
} | {name: change(config_of(FAMILIES[kind], PLAIN)) for name, (kind, change) in KINDS.items()}


def logits(runtime: Writing, source: list[int], target: list[int]) -> torch.Tensor:
    read = torch.tensor([[TOKENIZER.bos_id, *target]])
    with torch.no_grad():
        if runtime.translates:
            ids = torch.tensor([[*source, TOKENIZER.eos_id]])
            return runtime.model(input_ids=ids, decoder_input_ids=read).logits[0]
        return runtime.model(read).logits[0]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_that_writes_gives_the_same_log_probabilities(name: str, tmp_path: Path) -> None:
    trained = random_model(CONFIGS[name])
    HuggingFace().write(trained, tmp_path)
    runtime, own = HuggingFace().opened(trained, tmp_path), own_runtime(trained)
    assert isinstance(runtime, Writing)
    assert isinstance(own, OwnTranslation | OwnContinuation)
    if name in KINDS:
        assert type(runtime.model).__name__ == KINDS[name][0]
    for num in (1, 9, 40):
        target = random_ids(num + 2)
        source = random_ids(num) if runtime.translates else []
        expected = torch.tensor(own.log_probabilities(source, target), dtype=torch.float64)
        ends = torch.tensor([*target, TOKENIZER.eos_id])
        found = logits(runtime, source, target).double().log_softmax(-1).gather(-1, ends[:, None])[:, 0]
        torch.testing.assert_close(found, expected, atol=tolerance(name), rtol=0)
    rows = [random_ids(num) for num in (3, 3, 7)]
    assert runtime.search(rows, beam_size=1, max_length=9) == own.search(rows, beam_size=1, max_length=9)


def tolerance(name: str) -> float:
    """DeepNorm is post-norm with a smaller epsilon there."""
    return 1e-4 if "deepnorm" in name or name == "OPTForCausalLM: learned" else 1e-5


WRITING_OBSTACLES = {
    ("seq2seq", "position=rope"): "position=rope",
    ("seq2seq", "position=alibi"): "position=alibi",
    ("lm", "position=alibi"): "position=alibi",
    ("lm", "position=t5"): "position=t5",
    ("lm", "position=rope position.scaling=dynamic_ntk"): "position.scaling=dynamic_ntk",
    ("seq2seq", "position=t5"): "position=t5 in BlenderbotForConditionalGeneration",
    ("lm", "norm=pre norm.kind=rms"): "norm.kind=rms in GPT2LMHeadModel",
    ("seq2seq", "norm=sandwich norm.kind=layer"): "norm=sandwich",
    ("lm", "norm=sandwich norm.kind=layer"): "norm=sandwich in GPT2LMHeadModel",
    ("seq2seq", "norm=pre norm.query_key=true"): "norm.query_key=true",
    ("seq2seq", "feed_forward=swiglu"): "feed_forward=swiglu in BlenderbotForConditionalGeneration",
    ("lm", "feed_forward=moe"): "feed_forward=moe",
    ("seq2seq", "attention=window"): "attention=window",
    ("lm", "attention=block_sparse"): "attention=block_sparse",
    ("lm", "attention.soft_cap=30"): "attention.soft_cap=30.0",
}
CHANGED_OBSTACLES: dict[str, tuple[str, Change]] = {
    "norm.epsilon=0.001 in BlenderbotForConditionalGeneration": (
        "seq2seq",
        of(norm=schema_parts.PreNormConfig(epsilon=1e-3)),
    ),
    "position.base=99.0 in MarianMTModel": (
        "seq2seq",
        of(
            norm=schema_parts.PostNormConfig(epsilon=1e-5),
            position=schema_position.SinusoidalConfig(base=99.0),
        ),
    ),
    "model.bias=true in T5ForConditionalGeneration": ("seq2seq", of(norm=RMS, position=schema_position.T5Config())),
    "model.tying=none in T5ForConditionalGeneration": (
        "seq2seq",
        of(norm=RMS, position=schema_position.T5Config(), model={"bias": False, "tying": Tying.none}),
    ),
    "feed_forward.bias=true in Qwen3ForCausalLM": (
        "lm",
        llama(norm=QK, feed_forward=schema_parts.SwigluConfig(bias=True)),
    ),
    "attention.bias=true in MistralForCausalLM": (
        "lm",
        llama(
            attention=schema_parts.WindowConfig(width=3, bias=True), feed_forward=PLAIN_SWIGLU, model={"bias": False}
        ),
    ),
    "norm=post in LlamaForCausalLM": ("lm", llama(norm=schema_parts.PostNormConfig(kind=NormKind.rms))),
}


@pytest.mark.parametrize(("family", "name"), WRITING_OBSTACLES)
def test_what_stands_in_the_way_is_named(family: str, name: str) -> None:
    assert HuggingFace().obstacle(changed(family, name)) == WRITING_OBSTACLES[family, name]


@pytest.mark.parametrize("words", CHANGED_OBSTACLES)
def test_what_stands_in_the_way_of_the_nearest_class_is_named_with_it(words: str) -> None:
    family, change = CHANGED_OBSTACLES[words]
    assert HuggingFace().obstacle(change(config_of(family, PLAIN))) == words
