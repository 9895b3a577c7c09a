"""The labels of a training text, in one order, and how often each occurs.

The order is that of their characters' code points, so it is the same in every
process and whatever order the rows are in. It is stored in a checkpoint, and a
class is its place there ever after.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headloom.bar import progress_bar
from headloom.data.files import written_beside
from headloom.data.text import TextPairs, content_hash
from headloom.errors import DataError

MAX_LABELS = 10_000
"""A column with more different labels than this is taken for the wrong one."""

MAX_LISTED = 20
"""Labels that a message lists."""
MAX_SHOWN = 60
"""Characters that it shows of each."""

_FORMAT = "1"


@dataclass(frozen=True)
class Labels:
    """The names of the classes or tags in their order, and how often each occurs in the training text."""

    names: list[str]
    counts: list[int]

    def __len__(self) -> int:
        return len(self.names)


def shortened(label: str) -> str:
    """A label as a message shows it: a wrong column may hold whole texts."""
    return label if len(label) <= MAX_SHOWN else f"{label[:MAX_SHOWN]}..."


def listed(names: Sequence[str]) -> str:
    """The first of `names` as a message lists them."""
    shown = [shortened(name) for name in names[:MAX_LISTED]]
    return ", ".join([*shown, "..."] if len(names) > MAX_LISTED else shown)


def find_labels(pairs: TextPairs, *, per_word: bool, cache: Path) -> Labels:
    """The labels of `pairs`, or with `per_word` the tags of their words. One pass, whose result is kept in `cache`.

    Raises:
        DataError: there is one label only, or more than MAX_LABELS, or more labels than texts.
    """
    key = content_hash(["labels", _FORMAT, pairs.fingerprint, str(per_word)])
    path = cache / f"{key[:40]}.labels"
    if not path.exists():
        counts = Counter(_labels(pairs, per_word=per_word))
        if not per_word:
            _refuse_labels_for_texts(pairs, counts)
        cache.mkdir(parents=True, exist_ok=True)
        with written_beside(path) as partial:
            partial.write_text(json.dumps(sorted(counts.items())), encoding="utf-8", newline="\n")
    found = json.loads(path.read_bytes())
    labels = Labels([name for name, _ in found], [count for _, count in found])
    if len(labels) < 2:
        only = shortened(labels.names[0])
        raise DataError(f"{pairs.name}: every row has the label {only!r}; there must be two labels at least")
    return labels


def _labels(pairs: TextPairs, *, per_word: bool) -> Iterator[str]:
    seen: set[str] = set()
    for _, label in progress_bar(pairs, desc="looking for labels", unit=" rows", total=len(pairs)):
        for name in label.split(" ") if per_word else (label,):
            seen.add(name)
            if len(seen) > MAX_LABELS:
                raise DataError(
                    f"{pairs.name} has more than {MAX_LABELS:,} different labels, such as {shortened(label)!r}: "
                    "name the right column with data.label, or predict numbers with task=regression"
                )
            yield name


def _refuse_labels_for_texts(pairs: TextPairs, counts: Counter[str]) -> None:
    """Of few different texts, with more different labels, the texts are the labels."""
    texts: set[str] = set()
    for text, _ in pairs:
        texts.add(text)
        if len(texts) >= len(counts):
            return
    raise DataError(
        f"{pairs.name} has {len(counts):,} different labels, such as {shortened(min(counts))!r}, but {len(texts):,} "
        f"different texts, such as {shortened(min(texts))!r}: name the columns of text and label with data.text and "
        "data.label"
    )


def find_spread(pairs: TextPairs) -> tuple[float, float]:
    """Mean and standard deviation of labels that are numbers. One pass.

    Raises:
        DataError: a label is no finite number, or all are the same.
    """
    num_rows, mean, squares = 0, 0.0, 0.0  # Welford (1962): exact also where the mean is large
    for row, (_, label) in enumerate(progress_bar(pairs, desc="looking at values", unit=" rows", total=len(pairs))):
        try:
            value = float(label)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise DataError(
                f"{pairs.place(row)}: label {shortened(label)!r} is no finite number, which task=regression needs"
            )
        num_rows += 1
        step = value - mean
        mean += step / num_rows
        squares += step * (value - mean)
    if num_rows == 0 or squares == 0:
        raise DataError(f"{pairs.name}: all values are {mean:g}; there must be two at least")
    return mean, math.sqrt(squares / num_rows)
