"""Every combination that CTranslate2 holds computes there what it computes here.

Random models: log-probabilities of random targets, which both programs are forced to write.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from every_combination import bases, config_of
from torch import nn

from headloom.build_language import build_language_model
from headloom.build_model import build_model
from headloom.combinations import FEED_FORWARDS, GROUPS, NORMS, POSITIONS
from headloom.config import schema_parts, schema_position
from headloom.config.schema import TrainConfig
from headloom.data.tokenizer import ByteTokenizer
from headloom.export.ctranslate2 import CTranslate2
from headloom.export.own import OwnContinuation, OwnTranslation, own_runtime
from headloom.work.base import Trained

ctranslate2 = pytest.importorskip("ctranslate2")

TOKENIZER = ByteTokenizer()
PIECES = TOKENIZER.pieces(range(TOKENIZER.vocab_size))
PLAIN = {
    "position": "position=sinusoidal",
    "norm": "norm=pre norm.kind=layer",
    "feed_forward": "feed_forward=relu",
    "attention": "attention=full",
    "num_kv_heads": 4,
    "stochastic_depth": 0.0,
}
QK_RMS = partial(schema_parts.PreNormConfig, kind=schema_parts.NormKind.rms, query_key=True)
Change = Callable[[TrainConfig], TrainConfig]


def in_model(**options: Any) -> Change:
    return lambda config: replace(config, model=replace(config.model, **options))


def share(value: float) -> Change:
    """Heads of 8 channels of which some turn."""
    position = schema_position.RopeConfig(share=value)
    return lambda config: replace(config, position=position, model=replace(config.model, d_model=32))


CHANGES: dict[str, Change] = {
    **{choice: lambda config: config for choice in [*POSITIONS, *NORMS, *FEED_FORWARDS]},
    "model.num_kv_heads=2": in_model(num_kv_heads=2),
    "model.num_kv_heads=1": in_model(num_kv_heads=1),
    "model.bias=false": in_model(bias=False),
    "model.scale_embedding=false": in_model(scale_embedding=False),
    "model.residual_scale=0.5": in_model(residual_scale=0.5),
    "norm=sandwich model.residual_scale=0.5": lambda config: replace(
        in_model(residual_scale=0.5)(config), norm=schema_parts.SandwichNormConfig()
    ),
    "norm=pre norm.kind=rms norm.query_key=true": lambda config: replace(config, norm=QK_RMS()),
    "position=rope position.share=0.5": share(0.5),
    "position=rope position.share=0.25 norm.query_key=true": lambda config: replace(share(0.25)(config), norm=QK_RMS()),
    "position=alibi model.num_kv_heads=1": lambda config: replace(
        in_model(num_kv_heads=1)(config), position=schema_position.AlibiConfig()
    ),
    "position=rope norm=deepnorm feed_forward=geglu model.num_kv_heads=2": lambda config: replace(
        in_model(num_kv_heads=2)(config),
        position=schema_position.RopeConfig(base=500.0),
        norm=schema_parts.DeepNormConfig(kind=schema_parts.NormKind.rms),
        feed_forward=schema_parts.GegluConfig(),
    ),
}


def random_model(family: str, name: str) -> Trained:
    choices = PLAIN | {group: name for group, values in GROUPS.items() if name in values}
    config = CHANGES[name](config_of(family, choices))
    torch.manual_seed(1)
    size = TOKENIZER.vocab_size
    model: nn.Module
    if family == "lm":
        model = build_language_model(config, vocab_size=size)
        tokenizers: dict[str, Any] = {"text": TOKENIZER.state()}
    else:
        model = build_model(config, source_vocab_size=size, target_vocab_size=size)
        tokenizers = {"source": TOKENIZER.state(), "target": None}
    with torch.no_grad():
        for parameter in model.parameters():  # away from zero biases, equal gains and tables of zeros
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return Trained(config, model.eval(), {"tokenizers": tokenizers}, 0, torch.device("cpu"), None)


def random_ids(num: int) -> list[int]:
    return torch.randint(4, TOKENIZER.vocab_size, (num,)).tolist()


def held(family: str) -> list[str]:
    """Names of combinations in which nothing stands in the way."""
    found = []
    for name, change in CHANGES.items():
        choices = PLAIN | {group: name for group, values in GROUPS.items() if name in values}
        if CTranslate2().obstacle(change(config_of(family, choices))) is None:
            found.append(name)
    return found


@pytest.mark.parametrize("name", held("seq2seq"))
def test_an_encoder_decoder_gives_the_same_log_probabilities(name: str, tmp_path: Path) -> None:
    trained = random_model("seq2seq", name)
    CTranslate2().write(trained, tmp_path)
    program = ctranslate2.Translator(str(tmp_path), intra_threads=1)
    own = own_runtime(trained)
    assert isinstance(own, OwnTranslation)
    for num in (1, 9, 40):
        source, target = random_ids(num), random_ids(num + 2)
        [found] = program.score_batch([[PIECES[i] for i in source]], [[PIECES[i] for i in target]])
        expected = torch.tensor(own.log_probabilities(source, target))
        torch.testing.assert_close(torch.tensor(found.log_probs), expected, atol=tolerance(name), rtol=0)


@pytest.mark.parametrize("name", held("lm"))
def test_a_language_model_gives_the_same_log_probabilities(name: str, tmp_path: Path) -> None:
    trained = random_model("lm", name)
    CTranslate2().write(trained, tmp_path)
    program = ctranslate2.Generator(str(tmp_path), intra_threads=1)
    own = own_runtime(trained)
    assert isinstance(own, OwnContinuation)
    target = random_ids(40)
    [found] = program.score_batch([["<s>", *(PIECES[i] for i in target)]])
    expected = torch.tensor(own.log_probabilities([], target)[:-1])
    torch.testing.assert_close(torch.tensor(found.log_probs), expected, atol=tolerance(name), rtol=0)
    assert CTranslate2().opened(trained, tmp_path).search([target], beam_size=1, max_length=9) == own.search(
        [target], beam_size=1, max_length=9
    )


def tolerance(name: str) -> float:
    """DeepNorm is post-norm with a smaller epsilon there."""
    return 1e-4 if "deepnorm" in name else 1e-5


OBSTACLES = {
    ("seq2seq", "position=alibi"): "position=alibi in an encoder",
    ("lm", "position=alibi"): None,
    ("lm", "position=rope position.scaling=yarn"): "position.scaling=yarn",
    ("seq2seq", "position=rope position.scaling=dynamic_ntk"): "position.scaling=dynamic_ntk",
    ("seq2seq", "feed_forward=relu2"): "feed_forward=relu2",
    ("lm", "feed_forward=moe"): "feed_forward=moe",
    ("lm", "attention=window"): "attention=window",
    ("seq2seq", "attention=block_sparse"): "attention=block_sparse",
    ("lm", "attention.soft_cap=30"): "attention.soft_cap=30.0",
    ("seq2seq", "norm=pre norm.query_key=true"): "norm.query_key=true between decoder and encoder",
    ("lm", "norm=pre norm.query_key=true"): None,
}


@pytest.mark.parametrize(("family", "name"), OBSTACLES)
def test_what_stands_in_the_way_is_named(family: str, name: str) -> None:
    choices = PLAIN | {group: name for group, values in GROUPS.items() if name in values}
    assert CTranslate2().obstacle(config_of(family, choices)) == OBSTACLES[family, name]


def test_a_classifier_is_none_of_its_models() -> None:
    assert CTranslate2().obstacle(bases()["classifier"]) == "task=classification"
