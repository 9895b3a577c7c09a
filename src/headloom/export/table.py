"""The table of docs/export.md: which choices of every group each format holds.

`python -m headloom.export.table` writes it into the file; see config/generated.py.
"""

import itertools
import sys
from dataclasses import replace
from pathlib import Path

from headloom.combinations import GROUPS, families
from headloom.config.generated import renew
from headloom.config.schema import TrainConfig
from headloom.config.schema_labelled import ClassifierConfig, PoolingKind
from headloom.export.base import Format
from headloom.export.ctranslate2 import CTranslate2
from headloom.export.huggingface.format import HuggingFace
from headloom.export.onnx import Onnx
from headloom.export.safetensors import Safetensors

FORMATS: list[Format] = [Safetensors(), CTranslate2(), Onnx(), HuggingFace()]
"""Every format, in the order of the columns."""
BEGIN, END = "<!-- python -m headloom.export.table -->\n", "<!-- the end of the table -->\n"


def table() -> str:
    """A row for each choice, a column for each format and family of which it holds anything."""
    columns = _columns()
    rows = ["| | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
    somehow = {head: _held_somehow(*column) for head, column in columns.items()}
    for group, choices in GROUPS.items():
        for choice, make in choices.items():
            cells = [
                "yes"
                if format.obstacle(replace(config, **{group: make()})) is None
                else "some"
                if choice in somehow[head]
                else "no"
                for head, (format, config) in columns.items()
            ]
            rows.append(f"| `{choice}` | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def _columns() -> dict[str, tuple[Format, TrainConfig]]:
    """Heads, and the plain configuration of which a choice is changed: with a head on the first position where a format
    holds no other."""
    found: dict[str, tuple[Format, TrainConfig]] = {}
    for format in FORMATS:
        for family, config in families().items():
            head = f"`format={format.name}` `model={family}`"
            if format.obstacle(config) is None:
                found[head] = format, config
            elif isinstance(config.model, ClassifierConfig):
                other = replace(config, model=replace(config.model, pooling=PoolingKind.cls))
                if format.obstacle(other) is None:
                    found[f"{head} `model.pooling=cls`"] = format, other
    return found


def _held_somehow(format: Format, config: TrainConfig) -> set[str]:
    """Choices that a format holds with some choice of every other group, and with or without biases."""
    found: set[str] = set()
    for bias in (True, False):
        with_bias = replace(config, model=replace(config.model, bias=bias))
        for choices in itertools.product(*GROUPS.values()):
            if not found.issuperset(choices):
                sections = {group: GROUPS[group][choice]() for group, choice in zip(GROUPS, choices, strict=True)}
                if format.obstacle(replace(with_bias, **sections)) is None:
                    found.update(choices)
    return found


def with_table(text: str) -> str:
    """The document with the table of today between its two marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


def main(arguments: list[str]) -> int:
    """Write the table into docs/export.md, or with --check say whether it is up to date."""
    document = Path(__file__).resolve().parents[3] / "docs" / "export.md"
    return renew(arguments, module="headloom.export.table", document=document, render=with_table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
