"""The table of docs/export.md: which choices of every group each format holds.

`python -m headloom.export.table` writes it into the file; see config/generated.py.
"""

import sys
from dataclasses import replace
from pathlib import Path

from headloom.combinations import GROUPS, families
from headloom.config.generated import renew
from headloom.export.base import Format
from headloom.export.ctranslate2 import CTranslate2
from headloom.export.onnx import Onnx
from headloom.export.safetensors import Safetensors

FORMATS: list[Format] = [Safetensors(), CTranslate2(), Onnx()]
"""Every format, in the order of the columns."""
BEGIN, END = "<!-- python -m headloom.export.table -->\n", "<!-- the end of the table -->\n"


def table() -> str:
    """A row for each choice, a column for each format and family of which it holds anything."""
    configs = families()
    columns = [
        (format, family) for format in FORMATS for family, config in configs.items() if format.obstacle(config) is None
    ]
    heads = [f"`format={format.name}` `model={family}`" for format, family in columns]
    rows = ["| | " + " | ".join(heads) + " |", "| --- |" + " --- |" * len(columns)]
    for group, choices in GROUPS.items():
        for choice, make in choices.items():
            held = [
                "yes" if format.obstacle(replace(configs[family], **{group: make()})) is None else "no"
                for format, family in columns
            ]
            rows.append(f"| `{choice}` | " + " | ".join(held) + " |")
    return "\n".join(rows) + "\n"


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
