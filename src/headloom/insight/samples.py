"""The same few sentences at every validation: source, reference, translation."""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """One sentence pair and what the model makes of its source. Each text is one line."""

    source: str
    reference: str
    translation: str


def sample_rows(num_rows: int, *, num_samples: int = 10) -> list[int]:
    """Row numbers spread evenly over a split: the same ones whenever they are asked for."""
    num_samples = min(num_rows, num_samples)
    return [index * num_rows // num_samples for index in range(num_samples)]


NAMES = ("source", "reference", "translation")
"""What the three texts of a sample are called where they are shown."""


def as_text(samples: Sequence[Sample], names: tuple[str, str, str] = NAMES) -> str:
    """Three labelled lines a sentence and an empty line between sentences."""
    width = max(map(len, names)) + 2
    blocks = [
        "".join(
            f"{name + ':':<{width}}{text}\n"
            for name, text in zip(names, (sample.source, sample.reference, sample.translation), strict=True)
        )
        for sample in samples
    ]
    return "\n".join(blocks)


def as_markdown(samples: Sequence[Sample], names: tuple[str, str, str] = NAMES) -> str:
    """A Markdown table, one sentence a row; characters that Markdown or HTML would act on are shown as they are."""
    rows = [
        f"| {_literal(sample.source)} | {_literal(sample.reference)} | {_literal(sample.translation)} |"
        for sample in samples
    ]
    return "\n".join([f"| {' | '.join(names)} |", "| --- | --- | --- |", *rows])


def _literal(text: str) -> str:
    """`text` for a table cell: line ends become spaces, active characters their entities."""
    escaped = html.escape(" ".join(text.split("\n")).replace("\r", " "), quote=False)
    return re.sub(r"[\\`*_{}\[\]()+\-.!|~$^:=]|(?<!&)#", lambda match: f"&#{ord(match[0])};", escaped)
