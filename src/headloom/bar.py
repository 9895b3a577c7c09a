"""Progress bars for a person at a terminal."""

import os
import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm


def progress_bar(items: Iterable[Any] | None = None, *, is_wanted: bool = True, **options: Any) -> "tqdm[Any]":
    """tqdm on stderr, there only when stderr is a terminal and TQDM_DISABLE is not set.

    So a log file or a pipe gets no carriage return. `options` are tqdm's. (tqdm
    itself reads TQDM_DISABLE only where nobody asks about the terminal.)
    """
    is_hidden = os.environ.get("TQDM_DISABLE", "") not in ("", "0") or not sys.stderr.isatty()
    return tqdm(items, file=sys.stderr, disable=is_hidden or not is_wanted, dynamic_ncols=True, **options)
