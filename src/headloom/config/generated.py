"""How a document that is generated is renewed: `python -m MODULE`, or compared with `--check`."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def renew(arguments: Sequence[str], *, module: str, document: Path, render: Callable[[str], str]) -> int:
    """Write `document`, or with --check say whether it is up to date; the exit status.

    `render` makes the text of it from the one that is there ("" where there is none).

    Raises:
        SystemExit: with status 2 where an argument is unknown or this is no checkout; with 0 after --help.
    """
    name = f"{document.parent.name}/{document.name}"
    parser = argparse.ArgumentParser(f"python -m {module}", description=f"Renew {name}, which is generated.")
    parser.add_argument("--check", action="store_true", help="only compare, and end with status 1 where it is stale")
    only_compare = parser.parse_args(arguments).check
    if not document.parent.is_dir():
        parser.error(f"{document.parent} does not exist: run it in a checkout of the repository")
    found = document.read_text(encoding="utf-8") if document.is_file() else ""
    text = render(found)
    if not only_compare:
        document.write_text(text, encoding="utf-8", newline="\n")
    elif text != found:
        sys.stderr.write(f"{name} is stale: run python -m {module}\n")
        return 1
    return 0
