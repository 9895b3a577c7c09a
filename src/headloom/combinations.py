"""docs/combinations.md: which parts go together, which are refused and with which words, and which kernel serves them.

`python -m headloom.combinations` writes it; see config/generated.py.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headloom.build_parts import Parts
from headloom.config import schema_parts, schema_position
from headloom.config.generated import renew
from headloom.config.schema import CHOICES, TrainConfig
from headloom.config.schema_model import Initialization
from headloom.errors import ConfigError
from headloom.nn.attention import MultiHeadAttention
from headloom.nn.kernels import NO_PREFERENCE, Kernel, Preference


def _of_kind(choice: type[Any], kind: schema_parts.NormKind) -> Callable[[], schema_parts.NormConfig]:
    return lambda: choice(kind=kind)


POSITIONS: dict[str, Callable[[], schema_position.PositionConfig]] = {
    **{f"position={name}": choice for name, choice in schema_position.POSITIONS.items()},
    **{
        f"position=rope position.scaling={scaling.name}": partial(
            schema_position.RopeConfig, scaling=scaling, factor=2.0
        )
        for scaling in schema_position.Scaling
        if scaling is not schema_position.Scaling.none
    },
}
NORMS: dict[str, Callable[[], schema_parts.NormConfig]] = {
    **{
        f"norm={name} norm.kind={kind.name}": _of_kind(choice, kind)
        for name, choice in schema_parts.NORMS.items()
        for kind in schema_parts.NormKind
    },
    "norm=pre norm.query_key=true": partial(schema_parts.PreNormConfig, query_key=True),
}
FEED_FORWARDS: dict[str, Callable[[], schema_parts.FeedForwardConfig]] = {
    f"feed_forward={name}": choice for name, choice in schema_parts.FEED_FORWARDS.items()
}
ATTENTIONS: dict[str, Callable[[], schema_parts.AttentionConfig]] = {
    **{f"attention={name}": choice for name, choice in schema_parts.ATTENTIONS.items()},
    "attention.soft_cap=30": partial(schema_parts.FullAttentionConfig, soft_cap=30.0),
}
REQUIRED = "???"
"""The default of an option without one, such as the path of a file."""

GROUPS: dict[str, dict[str, Callable[[], Any]]] = {
    "position": POSITIONS,
    "norm": NORMS,
    "feed_forward": FEED_FORWARDS,
    "attention": ATTENTIONS,
}
"""Group, what is written on the command line, the section that it makes."""

SHORT, LONG = 32, 2048
"""Lengths in tokens at which kernels are shown."""


@dataclass(frozen=True)
class Combination:
    """One choice of every group, and the words with which it is refused; None: it exists."""

    family: str
    choices: tuple[str, ...]
    refusal: str | None


def families() -> dict[str, TrainConfig]:
    """A configuration of each family, with a task and data that suit it."""
    return {family: _any_config(family) for family in CHOICES["model"]}


def _any_config(family: str) -> TrainConfig:
    for task, data in itertools.product(CHOICES["task"].values(), CHOICES["data"].values()):
        try:
            return TrainConfig(
                model=CHOICES["model"][family](),
                position=schema_position.NoPositionConfig(),
                norm=schema_parts.PreNormConfig(),
                feed_forward=schema_parts.ReluConfig(),
                tokenizer=CHOICES["tokenizer"]["byte"](),
                task=task(),
                data=data(**{field.name: Path("any") for field in fields(data) if field.default == REQUIRED}),
                optimizer=CHOICES["optimizer"]["adam"](),
                schedule=CHOICES["schedule"]["constant"](),
                decoding=CHOICES["decoding"]["greedy"](),
            )
        except ConfigError:
            continue
    raise AssertionError(f"no task and data suit model={family}")


def walk() -> Iterator[Combination]:
    """Every family with every choice of every group."""
    for family, config in families().items():
        for choices in itertools.product(*GROUPS.values()):
            refusal = None
            try:
                replace(config, **{group: GROUPS[group][c]() for group, c in zip(GROUPS, choices, strict=True)})
            except ConfigError as error:
                refusal = str(error)
            yield Combination(family, choices, refusal)


def refusals() -> dict[str, str]:
    """What is refused between parts and the options around them: what was set, and the words."""
    config = next(iter(families().values()))
    model, rope = config.model, schema_position.RopeConfig
    stretch = schema_position.StretchConfig
    yarn = stretch(scaling=schema_position.Scaling.yarn, factor=4.0)
    probes: dict[str, Callable[[], object]] = {
        "position=rope model.d_model=24 model.num_heads=8": lambda: replace(
            config, position=rope(), model=replace(model, d_model=24, num_heads=8)
        ),
        "position=rope position.scaling=ntk position.factor=2 position.share=0.05": lambda: replace(
            config, position=rope(scaling=schema_position.Scaling.ntk, factor=2.0, share=0.05)
        ),
        "position=rope position.scaling=yarn": lambda: rope(scaling=schema_position.Scaling.yarn),
        "position=rope position.factor=2": lambda: rope(factor=2.0),
        "position=rope position.scaling=linear position.factor=2 position.original_length=64": lambda: rope(
            scaling=schema_position.Scaling.linear, factor=2.0, original_length=64
        ),
        "position=sinusoidal model.d_model=9 model.num_heads=1": lambda: replace(
            config, position=schema_position.SinusoidalConfig(), model=replace(model, d_model=9, num_heads=1)
        ),
        "position=learned position.max_length=100": lambda: replace(
            config, position=schema_position.LearnedConfig(max_length=100)
        ),
        "position=t5 position.num_buckets=7": lambda: schema_position.T5Config(num_buckets=7),
        "position=t5 position.max_distance=16": lambda: schema_position.T5Config(max_distance=16),
        "norm=deepnorm model.initialization=normal": lambda: replace(
            config,
            norm=schema_parts.DeepNormConfig(),
            model=replace(model, initialization=Initialization.normal),
        ),
        "norm=deepnorm model.residual_scale=0.5": lambda: replace(
            config, norm=schema_parts.DeepNormConfig(), model=replace(model, residual_scale=0.5)
        ),
        "feed_forward=moe feed_forward.num_experts=2 feed_forward.num_chosen=3": lambda: schema_parts.MoeConfig(
            num_experts=2, num_chosen=3
        ),
        "model.num_kv_heads=3": lambda: replace(model, num_kv_heads=3),
        "evaluate.py position.scaling=yarn position.factor=4, trained with position=sinusoidal": lambda: yarn.applied(
            schema_position.SinusoidalConfig()
        ),
        "evaluate.py position.max_length=64, trained with position=learned": lambda: stretch(max_length=64).applied(
            schema_position.LearnedConfig()
        ),
    }
    words = {}
    for options, probe in probes.items():
        try:
            probe()
        except ConfigError as error:
            words[options] = str(error)
        else:
            raise AssertionError(f"{options} is not refused")
    return words


def attentions(position: str, attention: str) -> tuple[MultiHeadAttention, MultiHeadAttention]:
    """A causal self-attention and an encoder's, of these parts; without dropout."""
    config = next(iter(families().values()))
    config = replace(
        config,
        position=POSITIONS[position](),
        attention=ATTENTIONS[attention](),
        model=replace(config.model, d_model=16, num_heads=4, d_ff=16, dropout=0.0),
    )
    with torch.device("meta"):
        parts = Parts(config)
        stacks = (build(nn.Embedding(2, 16), num_layers=1) for build in (parts.causal_stack, parts.encoder))
        causal, both = (stack.blocks[0].self_attention for stack in stacks)
    assert isinstance(causal, MultiHeadAttention)
    assert isinstance(both, MultiHeadAttention)
    return causal, both


KERNELS = {
    Kernel.flash: "Flash",
    Kernel.masked: "mask",
    Kernel.written_out: "written out",
    Kernel.packed: "varlen",
    Kernel.flex: "flex",
}
ON_GPU = Preference(working=frozenset({Kernel.flex, Kernel.packed}))
"""Where both kernels that are tried first were found right."""
COLUMNS: dict[str, Callable[[MultiHeadAttention, MultiHeadAttention], str]] = {
    "causal, GPU": lambda causal, both: _kernels(causal, "cuda", torch.bfloat16, causal=True),
    "padded, GPU": lambda causal, both: _kernels(both, "cuda", torch.bfloat16, padded=True),
    "causal, CPU": lambda causal, both: _kernels(causal, "cpu", causal=True),
    "causal, CPU bfloat16": lambda causal, both: _kernels(causal, "cpu", torch.bfloat16, causal=True),
    "causal, CPU, scoring": lambda causal, both: _kernels(causal, "cpu", causal=True, training=False),
}


def _kernels(
    module: MultiHeadAttention,
    device: str,
    dtype: torch.dtype = torch.float32,
    *,
    causal: bool = False,
    padded: bool = False,
    training: bool = True,
) -> str:
    """The kernel of short rows, and that of long ones where it is another."""
    module.preference = ON_GPU if device == "cuda" else NO_PREFERENCE
    names = [
        KERNELS[
            module.kernel(
                num_keys, causal=causal, padded=padded, training=training, device=torch.device(device), dtype=dtype
            ).kernel
        ]
        for num_keys in (SHORT, LONG)
    ]
    return names[0] if names[0] == names[1] else f"{names[0]}; long: {names[1]}"


def markdown() -> str:
    """docs/combinations.md."""
    found = list(walk())
    names = list(dict.fromkeys(one.family for one in found))
    num_existing = sum(one.refusal is None for one in found)
    rows = ["| | " + " | ".join(f"`model={name}`" for name in names) + " |", "| --- |" + " --- |" * len(names)]
    for place, choices in enumerate(GROUPS.values()):
        for choice in choices:
            cells = []
            for name in names:
                own = [one for one in found if one.family == name and one.choices[place] == choice]
                exist = sum(one.refusal is None for one in own)
                cells.append("all" if exist == len(own) else f"{exist} of {len(own)}")
            rows.append(f"| `{choice}` | " + " | ".join(cells) + " |")
    by_words: dict[str, list[Combination]] = {}
    for one in found:
        if one.refusal is not None:
            by_words.setdefault(one.refusal, []).append(one)
    refused = [
        f"| {len(ones)} combinations, such as `model={ones[0].family} {' '.join(ones[0].choices)}` | {words} |"
        for words, ones in by_words.items()
    ]
    refused += [f"| `{options}` | {words} |" for options, words in refusals().items()]
    kernels = ["| | " + " | ".join(COLUMNS) + " |", "| --- |" + " --- |" * len(COLUMNS)]
    plain = "position=none"
    for position, attention in [
        *[(position, "attention=full") for position in POSITIONS if "scaling" not in position],
        *[(plain, attention) for attention in ATTENTIONS if attention != "attention=full"],
    ]:
        modules = attentions(position, attention)
        shown = position if attention == "attention=full" else attention
        kernels.append(f"| `{shown}` | " + " | ".join(column(*modules) for column in COLUMNS.values()) + " |")
    return INTRODUCTION.format(
        num_all=f"{len(found):,}",
        exist="all of them exist" if num_existing == len(found) else f"{num_existing:,} of them exist",
        table="\n".join(rows),
        refused="\n".join(["| set | refused with |", "| --- | --- |", *refused]),
        kernels="\n".join(kernels),
    )


INTRODUCTION = """\
# Combinations

Generated from the schema and the kernels by `python -m headloom.combinations`; do not edit.

A family with one choice of each group below makes {num_all} combinations; {exist}. A cell says how many of those
that hold the choice exist in a family.

{table}

Each may have `model.num_kv_heads`, `model.residual_scale` (but with deepnorm), `model.stochastic_depth`, biases and
dropouts of any value, and any tokenizer, optimizer, schedule and precision.

A test walks the table (tests/test_combinations.py): causality by gradient, padding changes nothing, cached steps are
one full pass, saved is loaded, one update trains. With each change it takes combinations that hold every pair of
choices; tests/slow takes them all.

## What is refused

{refused}

Everything else that a part has no use for is no option with it, and is refused as such before anything is loaded.

## Which kernel

With trainer.attention=auto. Flash: PyTorch's fused kernel without a mask, which is its FlashAttention where device and
precision have it. varlen: variable-length Flash, no padding is computed. flex: FlexAttention, no mask in memory. mask:
PyTorch's fused kernel with a mask. written out: our own products and softmax, in the same precision. Columns: causal
self-attention and self-attention of padded rows, in a training without attention dropout; GPU: in bfloat16, where flex
and varlen work; scoring has no gradient. On a CPU dropout, and few keys in bfloat16, take the written-out path, which
is faster there. "long" is 2,048 tokens. A run logs its own choices with their reasons.

{kernels}
"""


def main(arguments: list[str]) -> int:
    """Write docs/combinations.md, or with --check say whether it is up to date."""
    document = Path(__file__).resolve().parents[2] / "docs" / "combinations.md"
    return renew(arguments, module="headloom.combinations", document=document, render=lambda _: markdown())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
