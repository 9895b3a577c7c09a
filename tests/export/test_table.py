"""docs/export.md says what the formats hold."""

from pathlib import Path

from headloom.config.schema_export import ExportFormat
from headloom.export.table import FORMATS, table, with_table

DOCUMENT = Path(__file__).parents[2] / "docs" / "export.md"


def test_the_table_is_what_the_formats_say():
    """If this fails, run `python -m headloom.export.table` and commit docs/export.md."""
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == with_table(text)


def test_every_format_is_in_the_table_and_in_the_text():
    assert [format.name for format in FORMATS] == [format.name for format in ExportFormat]
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [format.name for format in ExportFormat if f"| `{format.name}` |" not in text] == []
    assert "| `norm=deepnorm norm.kind=layer` | yes | yes | yes | yes | yes |" in table()
    assert "| `position=alibi` | yes | yes | yes | no | yes |" in table()
