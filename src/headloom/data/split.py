"""Setting pairs aside for validation and test, the same ones in every run and on every machine.

Which pair is set aside is a matter of hashes of its text: not of its place in
the file, of a random state, or of how many pairs there are beside it.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from headloom.bar import progress_bar
from headloom.data.files import written_beside
from headloom.data.text import Subset, TextPairs, checked_row, content_hash
from headloom.errors import DataError

_FORMAT = "1"  # of the row files; also the version of `normalised` and of the hash
_NOT_WORD = re.compile(r"\W+")
_DIGITS = re.compile(r"\d+")


def normalised(text: str) -> str:
    """`text` without what near-copies differ in: case, punctuation, and which number it is."""
    return _DIGITS.sub("0", _NOT_WORD.sub(" ", text.casefold()).strip())


def masked(text: str) -> str:
    """As `normalised`, with words that begin with a capital masked too, except the first.

    In English these are mostly names: "Set up your X account" is one text for
    all X.
    """
    first, *rest = text.split() or [""]
    return normalised(" ".join([first, *("X" if word[0].isupper() else word for word in rest)]))


def hold_out(
    pairs: Sequence[tuple[str, str]], *, min_words: int, max_pairs: int
) -> tuple[list[tuple[str, str]], list[tuple[str, str]], list[tuple[str, str]]]:
    """The pairs in three parts: train, valid and test, without near-copies between them.

    Valid and test get `max_pairs` each, or a tenth of those that qualify where
    that is fewer. A pair qualifies when its source has `min_words` words and
    neither its normalised source, nor its masked source, nor its normalised
    target is that of any other pair. They are taken in the order of the SHA-256
    of the source; train keeps the order of `pairs`.
    """
    keys = [(normalised(source), masked(source), normalised(target)) for source, target in pairs]
    counts = [Counter(column) for column in zip(*keys, strict=True)]
    qualified = [
        row
        for row, row_keys in enumerate(keys)
        if len(pairs[row][0].split()) >= min_words
        and all(count[key] == 1 for count, key in zip(counts, row_keys, strict=True))
    ]
    qualified.sort(key=lambda row: hashlib.sha256(pairs[row][0].encode()).digest())
    num_each = min(max_pairs, len(qualified) // 10)
    test, valid = qualified[:num_each], qualified[num_each : 2 * num_each]
    out = set(test + valid)
    return (
        [pair for row, pair in enumerate(pairs) if row not in out],
        [pairs[row] for row in valid],
        [pairs[row] for row in test],
    )


def split_off(pairs: TextPairs, share: float, *, cache: Path) -> tuple[TextPairs, TextPairs]:
    """`pairs` in two parts, train and valid; about `share` of the pairs, in (0, 1), are valid.

    A pair is valid when the hash of its normalised source is small, so pairs
    with one source lie on one side, and a pair stays where it is when others
    are added. Near-copies on the target side alone are not looked for. Takes
    one pass, whose result is kept in `cache`; memory grows with the number of
    valid pairs, 8 bytes each.

    Raises:
        DataError: a part is empty.
    """
    key = content_hash(["split", _FORMAT, pairs.fingerprint, repr(share)])
    path = cache / f"{key[:40]}.rows"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with written_beside(path) as partial:
            _valid_rows(pairs, share).tofile(partial)
    rows = np.fromfile(path, dtype="<i8")
    if not 0 < len(rows) < len(pairs):
        which, remedy = ("validation", "raise it") if len(rows) == 0 else ("training", "lower it")
        different = {normalised(source): source for source, _ in pairs}
        if 2 * len(different) < len(pairs):
            remedy = (
                f"they have {len(different)} different texts, such as {next(iter(different.values()))!r}, where "
                "numbers, capitals and punctuation make no difference, and equal ones stay together; choose the column "
                "of the text (data.text, data.source_column or data.source_field)"
            )
        raise DataError(
            f"data.valid_share={share:g} of the {len(pairs):,} pairs of {pairs.name} leaves no {which} pair: "
            f"{remedy}, or give validation files"
        )
    valid = Subset(pairs, rows, name=f"{pairs.name}, {share:g} split off for validation")
    return _Rest(pairs, rows), valid


def _valid_rows(pairs: TextPairs, share: float) -> np.ndarray:
    limit = int(share * 2**64)
    rows = [
        row
        for row, (source, _) in enumerate(progress_bar(pairs, desc="splitting", unit=" pairs", total=len(pairs)))
        if int.from_bytes(hashlib.blake2b(normalised(source).encode(), digest_size=8).digest(), "little") < limit
    ]
    return np.array(rows, dtype="<i8")


class _Rest(TextPairs):
    """All rows of other pairs but some, in their order; only the rows left out take memory."""

    def __init__(self, pairs: TextPairs, left_out: np.ndarray) -> None:
        """`left_out` holds ascending row numbers."""
        self._pairs = pairs
        self._left_out = left_out
        self._kept_before = left_out - np.arange(len(left_out))
        self.name = pairs.name
        left_out_hash = hashlib.blake2b(left_out.tobytes(), digest_size=32).hexdigest()
        self.fingerprint = content_hash(["rest", pairs.fingerprint, left_out_hash])

    def __len__(self) -> int:
        return len(self._pairs) - len(self._left_out)

    def __getitem__(self, row: int) -> tuple[str, str]:
        return self._pairs[self._row(checked_row(row, len(self)))]

    def place(self, row: int) -> str:
        return self._pairs.place(self._row(row))

    def __iter__(self) -> Iterator[tuple[str, str]]:
        left_out = iter(self._left_out.tolist())
        next_out = next(left_out, None)
        for row, pair in enumerate(self._pairs):
            if row == next_out:
                next_out = next(left_out, None)
            else:
                yield pair

    def _row(self, row: int) -> int:
        return row + int(np.searchsorted(self._kept_before, row, side="right"))
