"""The manual is generated: it says what the schema says."""

from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from headloom.config import options
from headloom.config.schema import CHOICES, ROOTS
from headloom.config.schema_training import TrainerConfig

ROOT = Path(__file__).parents[2]


def test_the_manual_is_what_the_schema_says() -> None:
    """If this fails, run `python -m headloom.config.options` and commit docs/options.md."""
    assert (ROOT / "docs" / "options.md").read_text(encoding="utf-8") == options.markdown(ROOT / "conf")


def test_every_option_has_a_meaning() -> None:
    schemas = [schema for choices in CHOICES.values() for schema in choices.values()]
    for schema in [*schemas, *ROOTS.values(), TrainerConfig]:
        for field in fields(schema):
            assert is_dataclass(field.type) or options.meaning(schema, field.name).endswith("."), (schema, field.name)


@pytest.mark.parametrize("name", ROOTS)
def test_the_help_names_groups_choices_and_examples(name: str) -> None:
    text = options.help_text(name, ROOT / "conf")
    assert f"python {name}.py" in text
    assert "  decoding=     beam* greedy mbr sample score" in text.split("\n")
    assert max(map(len, text.split("\n"))) <= 120
    if name == "train":
        assert "  size=         base big mini small* tiny" in text
