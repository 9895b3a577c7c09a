"""evaluation.json and its like."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headloom.data.whole_files import written_beside


def write_results(path: Path, results: Mapping[str, Any]) -> None:
    """`results` as a JSON object, with null for a number that is not finite, which JSON does not have."""
    text = json.dumps(_finite(results), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with written_beside(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {name: _finite(item) for name, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case _:
            return value
