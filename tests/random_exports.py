"""Models with random weights in every configuration that an export may meet, as if they had been trained."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from every_combination import config_of, shaken
from torch import nn

from headloom.build_language import build_language_model
from headloom.build_model import build_model
from headloom.combinations import FEED_FORWARDS, GROUPS, NORMS, POSITIONS
from headloom.config import schema_parts, schema_position
from headloom.config.schema import TrainConfig
from headloom.data.tokenizer import ByteTokenizer
from headloom.export.base import Format
from headloom.work.base import Trained

TOKENIZER = ByteTokenizer()
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


def of(*, model: dict[str, Any] | None = None, **sections: Any) -> Change:
    """Other sections, and other options of the model."""
    return lambda config: in_model(**model or {})(replace(config, **sections))


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


def changed(family: str, name: str, changes: Mapping[str, Change] = CHANGES) -> TrainConfig:
    """The configuration of the tests, all plain, with one change: a choice of a group, or one of `changes`."""
    choices = PLAIN | {group: name for group, values in GROUPS.items() if name in values}
    return changes.get(name, lambda config: config)(config_of(family, choices))


def random_model(config: TrainConfig) -> Trained:
    """A model that writes, as if it had been trained."""
    torch.manual_seed(1)
    size = TOKENIZER.vocab_size
    model: nn.Module
    if config.model.kind.name == "lm":
        model = build_language_model(config, vocab_size=size)
        tokenizers: dict[str, Any] = {"text": TOKENIZER.state()}
    else:
        model = build_model(config, source_vocab_size=size, target_vocab_size=size)
        tokenizers = {"source": TOKENIZER.state(), "target": None}
    return Trained(config, shaken(model), {"tokenizers": tokenizers}, 0, torch.device("cpu"), None)


def random_ids(num: int) -> list[int]:
    return torch.randint(4, TOKENIZER.vocab_size, (num,)).tolist()


def held(format: Format, family: str) -> list[str]:
    """Names of changes in which nothing stands in the way of a format."""
    return [name for name in CHANGES if format.obstacle(changed(family, name)) is None]
