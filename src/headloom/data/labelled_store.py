"""Labelled text as ids: what a row of an encoder is, and the store that keeps them.

A row is bos, the pieces of the text, eos; of two texts bos, the first, eos, the
second, eos. So a text without any piece is a row of two ids, and gets an answer
like any other. With each row go its targets: the number of its class, its
value, or for tagging a tag for the first piece of each word and IGNORE for
every other id.
"""

import hashlib
import json
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from headloom.bar import progress_bar
from headloom.data.labelled import split_texts
from headloom.data.labels import listed, shortened
from headloom.data.text import TextPairs
from headloom.data.token_store import META, SideWriter, TokenPairs, chunks, id_type
from headloom.data.tokenizer_base import Tokenizer
from headloom.data.whole_files import folder_written_beside
from headloom.errors import DataError
from headloom.nn.loss import IGNORE

logger = logging.getLogger(__name__)

_FORMAT = 1

Segment = Callable[[Sequence[str]], Sequence[Sequence[int] | np.ndarray]]
"""Pieces of texts: a tokenizer's `encode_arrays`, or one random segmentation."""


class BadTarget(ValueError):
    """A label that is none here; `index` is its place among those that were given."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(message)
        self.index = index


@dataclass(frozen=True)
class Rows:
    """Some rows of ids."""

    ids: list[np.ndarray]
    is_cut: np.ndarray
    words: list[np.ndarray] | None = None
    """For tagging: where in each row the first pieces of its words stand, of those words that fit."""


class RowEncoder(ABC):
    """Texts as rows of ids, labels as targets."""

    target_type: str
    """NumPy's name of the type in which targets are kept."""

    def __init__(self, tokenizer: Tokenizer, *, max_length: int) -> None:
        """`max_length` counts every id of a row, bos and eos too; a longer one is cut."""
        self.tokenizer = tokenizer
        self.max_length = max_length

    @abstractmethod
    def rows(self, sources: Sequence[str], segment: Segment | None = None) -> Rows:
        """The rows of `sources`, in pieces as `segment` cuts them; None: the tokenizer's plain encoding."""

    def variant(self, sources: Sequence[str], number: int) -> Rows:
        """The rows of `sources` in segmentation `number`: 0 the plain one, each other one drawn as in training.

        A draw is a function of the text and `number`: it is the same whatever stands beside the text, in any process.
        """
        return self.rows(sources, None if number == 0 else partial(_drawn, self.tokenizer, number))

    @abstractmethod
    def targets(self, rows: Rows, labels: Sequence[str]) -> list[np.ndarray]:
        """The targets of each row.

        Raises:
            BadTarget: a label is none here.
        """

    @abstractmethod
    def recipe(self) -> list[object]:
        """All that decides rows and targets, as plain values."""


class _TextRows(RowEncoder):
    def rows(self, sources: Sequence[str], segment: Segment | None = None) -> Rows:
        segment = segment or self.tokenizer.encode_arrays
        texts = [split_texts(source) for source in sources]
        pieces = iter(segment([text for row in texts for text in row]))
        bos, eos = np.array([self.tokenizer.bos_id]), np.array([self.tokenizer.eos_id])
        ids: list[np.ndarray] = []
        is_cut = np.zeros(len(texts), bool)
        for i, row in enumerate(texts):
            own = [np.asarray(next(pieces), dtype=np.int64) for _ in row]
            kept = _shares([len(part) for part in own], self.max_length - 1 - len(own))
            is_cut[i] = any(len(part) > share for part, share in zip(own, kept, strict=True))
            parts = [bos]
            for part, share in zip(own, kept, strict=True):
                parts += [part[:share], eos]
            ids.append(np.concatenate(parts))
        return Rows(ids, is_cut)


class ClassRows(_TextRows):
    """Rows of one or two texts that belong to a class; classes are numbered in the order of `names`."""

    target_type = "<i4"

    def __init__(self, tokenizer: Tokenizer, names: Sequence[str], *, max_length: int) -> None:
        super().__init__(tokenizer, max_length=max_length)
        self.names = list(names)
        self._numbers = {name: number for number, name in enumerate(names)}

    def targets(self, rows: Rows, labels: Sequence[str]) -> list[np.ndarray]:
        return [np.array([_number(self._numbers, label, index, "label")]) for index, label in enumerate(labels)]

    def recipe(self) -> list[object]:
        return ["class", self.tokenizer.fingerprint, self.max_length, self.names]


class ValueRows(_TextRows):
    """Rows of one or two texts that have a number for a label."""

    target_type = "<f4"

    def targets(self, rows: Rows, labels: Sequence[str]) -> list[np.ndarray]:
        return [np.array([_value(label, index)]) for index, label in enumerate(labels)]

    def recipe(self) -> list[object]:
        return ["value", self.tokenizer.fingerprint, self.max_length]


class TagRows(RowEncoder):
    """Rows of words with blanks between them, each of which has a tag; tags are numbered in the order of `names`."""

    target_type = "<i2"

    def __init__(self, tokenizer: Tokenizer, names: Sequence[str], *, max_length: int) -> None:
        super().__init__(tokenizer, max_length=max_length)
        self.names = list(names)
        self._numbers = {name: number for number, name in enumerate(names)}

    def rows(self, sources: Sequence[str], segment: Segment | None = None) -> Rows:
        segment = segment or self.tokenizer.encode_arrays
        words = [source.split(" ") for source in sources]
        pieces = iter(segment([word for row in words for word in row]))
        rows: list[np.ndarray] = []
        places: list[np.ndarray] = []
        is_cut = np.zeros(len(words), bool)
        for i, row in enumerate(words):
            ids, starts = [self.tokenizer.bos_id], []
            for _ in row:
                starts.append(len(ids))
                # A lone zero-width space, for one, has no piece.
                ids += [int(piece) for piece in next(pieces)] or [self.tokenizer.unk_id]
            is_cut[i] = len(ids) >= self.max_length
            ids = ids[: self.max_length - 1]
            rows.append(np.array([*ids, self.tokenizer.eos_id], dtype=np.int64))
            places.append(np.array([start for start in starts if start < len(ids)], dtype=np.int64))
        return Rows(rows, is_cut, places)

    def targets(self, rows: Rows, labels: Sequence[str]) -> list[np.ndarray]:
        assert rows.words is not None
        targets = []
        for index, (label, ids, places) in enumerate(zip(labels, rows.ids, rows.words, strict=True)):
            numbers = [_number(self._numbers, tag, index, "tag") for tag in label.split(" ")]
            target = np.full(len(ids), IGNORE, np.int64)
            target[places] = numbers[: len(places)]
            targets.append(target)
        return targets

    def recipe(self) -> list[object]:
        return ["tag", self.tokenizer.fingerprint, self.max_length, self.names]


def _number(numbers: Mapping[str, int], name: str, index: int, what: str) -> int:
    if name not in numbers:
        known = f"{len(numbers)} of the training ({listed(list(numbers))})"
        raise BadTarget(index, f"{what} {shortened(name)!r} is none of the {known}")
    return numbers[name]


def _value(label: str, index: int) -> float:
    try:
        value = float(label)
    except ValueError:
        value = math.nan
    if not abs(value) <= float(np.finfo(np.float32).max):
        raise BadTarget(index, f"label {shortened(label)!r} is no finite number, which task=regression needs")
    return value


def _drawn(tokenizer: Tokenizer, number: int, texts: Sequence[str]) -> list[list[int]]:
    drawn = []
    for text in texts:
        digest = hashlib.blake2b(f"{number} {text}".encode(), digest_size=8).digest()
        drawn += tokenizer.sample([text], seed=int.from_bytes(digest, "little"))
    return drawn


def _shares(lengths: list[int], room: int) -> list[int]:
    """How many pieces of each text stay: all where there is room; of two texts the longer one is cut first."""
    if sum(lengths) <= room:
        return lengths
    if len(lengths) == 1:
        return [room]
    first, second = lengths
    half = room // 2
    if first <= half:
        return [first, room - first]
    return [room - second, second] if second <= half else [room - half, half]


def tokenize_rows(pairs: TextPairs, encoder: RowEncoder, *, folder: Path, description: str) -> TokenPairs:
    """Rows and targets of `pairs` as sources and targets, from the store below `folder` or encoded now.

    Every row stays; one warning says how many were cut. `description` names
    the split on the progress bar and in messages.

    Raises:
        DataError: there is no row, or a label is none here; the message has its row and the label.
    """
    if len(pairs) == 0:
        raise DataError(f"{description}: {pairs.name} holds no row; it must hold at least one")
    content = json.dumps(["labelled", _FORMAT, pairs.fingerprint, encoder.recipe()])
    store = folder / f"tokens-{hashlib.sha256(content.encode('utf-8')).hexdigest()[:32]}"
    if not (store / META).exists():
        folder.mkdir(parents=True, exist_ok=True)
        with folder_written_beside(store, complete=store / META) as unfinished:
            _write(unfinished, pairs, encoder, description)
    tokens = TokenPairs(store, pairs)
    if tokens.num_truncated:
        logger.warning(
            "%s: %d of %d rows are cut to %d tokens (data.max_length)",
            description, tokens.num_truncated, tokens.num_pairs, encoder.max_length,
        )  # fmt: skip
    return tokens


def _write(folder: Path, pairs: TextPairs, encoder: RowEncoder, description: str) -> None:
    num_rows = num_truncated = 0
    with (
        ExitStack() as files,
        progress_bar(total=len(pairs), desc=f"tokenising {description}", unit=" rows") as progress,
    ):
        source = SideWriter(folder, "source", id_type(encoder.tokenizer), files)
        target = SideWriter(folder, "target", encoder.target_type, files)
        for texts, labels in chunks(pairs):
            rows = encoder.rows(texts)
            source.append(rows.ids)
            try:
                target.append(encoder.targets(rows, labels))
            except BadTarget as error:
                raise DataError(f"{pairs.place(num_rows + error.index)}: {error}") from None
            num_truncated += int(rows.is_cut.sum())
            num_rows += len(texts)
            progress.update(len(texts))
    np.arange(num_rows, dtype="<i8").tofile(folder / "rows")
    meta = {
        "num_pairs": num_rows,
        "num_rows": num_rows,
        "num_long": 0,
        "num_empty": 0,
        "num_truncated": num_truncated,
        "num_source_ids": source.num_ids,
        "num_target_ids": target.num_ids,
        "source_dtype": source.dtype,
        "target_dtype": target.dtype,
    }
    (folder / META).write_text(json.dumps(meta), encoding="utf-8", newline="\n")
