"""Token ids of a corpus on disk, encoded once and mapped into memory.

A store is a folder: per side one flat file of ids and one of offsets, the
lengths of the rows, and which pair of the text each row is. Its name is a hash
of all that decides the ids (text, tokenizers, limits, format), so that a
changed corpus or tokenizer never meets old ids. It is written beside that name
and renamed when whole.
"""

import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from headloom.bar import progress_bar
from headloom.data.mapped import MappedArray, Ranges
from headloom.data.text import TextPairs, checked_row
from headloom.data.tokenizer_base import Tokenizer
from headloom.data.whole_files import folder_written_beside
from headloom.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

_FORMAT = 1
_CHUNK_PAIRS = 1 << 16  # pairs encoded at once ...
_CHUNK_CHARACTERS = 1 << 24  # ... or fewer, where lines are long
META = "store.json"


MANY_DROPPED = 0.05
MANY_UNKNOWN = 0.01
_LOOKED_AT = 1 << 20  # ids, for the share of unknown ones


class TokenPairs:
    """Source and target ids of the pairs that are kept, memory-mapped.

    `source`, `target` and `text` read one row; `load` many at once, with few
    pages of the files counted as memory of the process meanwhile.

    Raises:
        DataError: the folder is no whole store.
    """

    source_lengths: np.ndarray
    """int32 per row: ids of the source, eos counted."""
    target_lengths: np.ndarray
    """int32 per row: ids of the target, eos counted."""
    num_pairs: int
    """Pairs of the text, dropped ones counted."""
    num_dropped: int
    """Pairs that are no row: too long, or with an empty side."""
    num_truncated: int
    """Rows that were cut to the longest length allowed."""

    def __init__(self, folder: Path, pairs: TextPairs) -> None:
        self._pairs = pairs
        try:
            meta: dict[str, Any] = json.loads((folder / META).read_bytes())
            self.num_pairs, self.num_truncated = meta["num_pairs"], meta["num_truncated"]
            self.num_long, self.num_empty = meta["num_long"], meta["num_empty"]
            self.num_dropped = self.num_long + self.num_empty
            self._rows = MappedArray(folder / "rows", "<i8", meta["num_rows"])
            self.source_side = _MappedSide(folder, "source", meta)
            self.target_side = _MappedSide(folder, "target", meta)
        except (OSError, KeyError, ValueError) as error:
            raise DataError(f"the token store {folder} is damaged ({error}); delete the folder") from error
        self.source_lengths = self.source_side.lengths.array
        self.target_lengths = self.target_side.lengths.array

    def __len__(self) -> int:
        return len(self._rows)

    def source(self, row: int) -> np.ndarray:
        """Ids of the source, eos last, no bos."""
        return self.source_side[row]

    def target(self, row: int) -> np.ndarray:
        """Ids of the target, eos last, no bos."""
        return self.target_side[row]

    def text(self, row: int) -> tuple[str, str]:
        """The raw pair, uncut."""
        return self._pairs[int(self._rows.array[row])]

    def load(self, rows: np.ndarray) -> tuple[Ranges, Ranges]:
        """A copy of the sources and the targets of `rows`; quick where `rows` ascend."""
        return self.source_side.load(rows), self.target_side.load(rows)


class _MappedSide:
    def __init__(self, folder: Path, name: str, meta: dict[str, Any]) -> None:
        num_rows = meta["num_rows"]
        self._ids = MappedArray(folder / f"{name}_ids", meta[f"{name}_dtype"], meta[f"num_{name}_ids"])
        self._offsets = MappedArray(folder / f"{name}_offsets", "<i8", num_rows + 1)
        self.lengths = MappedArray(folder / f"{name}_lengths", "<i4", num_rows)

    def __getitem__(self, row: int) -> np.ndarray:
        start, end = self._offsets.array[checked_row(row, len(self.lengths)) :][:2].tolist()
        return self._ids.array[start:end]

    def share_of(self, token: int) -> float:
        """How large a share of the first ids it is."""
        ids = self._ids.array[:_LOOKED_AT]
        return float(np.count_nonzero(ids == token)) / max(1, len(ids))

    def load(self, rows: np.ndarray) -> Ranges:
        return self._ids.ranges(self._offsets[rows], self.lengths[rows])


def tokenize_pairs(
    pairs: TextPairs,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    *,
    folder: Path,
    max_length: int,
    truncate: bool = False,
    description: str,
) -> TokenPairs:
    """The ids of `pairs`, from the store below `folder` or encoded now.

    `max_length` counts all ids a model sees in one row: pieces and eos on the
    source side, pieces and bos (as input) or eos (as target) on the target
    side; so a side has room for `max_length - 1` pieces. Without `truncate`
    (training) a pair is dropped when a side is longer, or has no piece at all.
    With it (validation, test) every pair stays and a longer side is cut, with
    its eos. Either way one warning has the counts. `description` names the
    split on the progress bar and in messages.

    Raises:
        DataError: there is no pair, or none that can be kept.
        ConfigError: `max_length` is below 2.
    """
    if max_length < 2:
        raise ConfigError(f"data.max_length={max_length} has no room for a piece and eos; set 2 at least")
    if len(pairs) == 0:
        raise DataError(f"{description}: {pairs.name} holds no pair of lines; it must hold at least one")
    content = [pairs.fingerprint, source_tokenizer.fingerprint, target_tokenizer.fingerprint]
    key = hashlib.sha256(json.dumps([_FORMAT, *content, max_length, truncate]).encode("utf-8")).hexdigest()[:32]
    store = folder / f"tokens-{key}"
    if not (store / META).exists():
        folder.mkdir(parents=True, exist_ok=True)
        with folder_written_beside(store, complete=store / META) as partial:
            _Writer(partial, source_tokenizer, target_tokenizer, max_length, truncate).write(pairs, description)
    tokens = TokenPairs(store, pairs)
    _report(tokens, description, max_length)
    return tokens


def warn_of_unknown(tokens: TokenPairs, source: Tokenizer, target: Tokenizer, description: str) -> None:
    """One warning a side whose text has pieces that its tokenizer does not know, in earnest."""
    for name, side, tokenizer in (("source", tokens.source_side, source), ("target", tokens.target_side, target)):
        share = side.share_of(tokenizer.unk_id)
        if share > MANY_UNKNOWN:
            logger.warning(
                "%s: of the %s tokens %.1f%% are unknown to the tokenizer: one with tokenizer.byte_fallback=true "
                "knows all text, one trained on this text most of it",
                description, name, 100 * share,
            )  # fmt: skip


def _report(tokens: TokenPairs, description: str, max_length: int) -> None:
    if tokens.num_dropped:
        logger.warning(
            "%s: %d of %d pairs are left out: %d longer than %d tokens (data.max_length), %d with an empty side%s",
            description, tokens.num_dropped, tokens.num_pairs, tokens.num_long, max_length, tokens.num_empty,
            f"; more than {MANY_DROPPED:.0%}: is that meant?" if tokens.num_dropped > MANY_DROPPED * tokens.num_pairs
            else "",
        )  # fmt: skip
    if tokens.num_truncated:
        logger.warning(
            "%s: %d of %d pairs are cut to %d tokens a side (data.max_length)",
            description, tokens.num_truncated, tokens.num_pairs, max_length,
        )  # fmt: skip


class SideWriter:
    """The files of one side while they are written; `files` closes them."""

    def __init__(self, folder: Path, name: str, dtype: str, files: ExitStack) -> None:
        self.dtype = dtype
        self.num_ids = 0
        self._ids = files.enter_context((folder / f"{name}_ids").open("wb"))
        self._offsets = files.enter_context((folder / f"{name}_offsets").open("wb"))
        self._lengths = files.enter_context((folder / f"{name}_lengths").open("wb"))
        np.zeros(1, "<i8").tofile(self._offsets)

    def append(self, rows: list[np.ndarray]) -> None:
        """Add the rows as they are."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        self._append(np.concatenate(rows).astype(self.dtype), lengths)

    def append_cut(self, rows: list[np.ndarray], max_pieces: int, *, eos: int) -> None:
        """Add the rows, each cut to `max_pieces` and followed by `eos`."""
        lengths = np.fromiter((min(len(row), max_pieces) for row in rows), np.int64, len(rows)) + 1
        ends = np.cumsum(lengths)
        flat = np.empty(int(ends[-1]) if len(ends) else 0, self.dtype)
        is_eos = np.zeros(len(flat), bool)
        is_eos[ends - 1] = True
        flat[is_eos] = eos
        flat[~is_eos] = np.concatenate([row[:max_pieces] for row in rows]) if rows else 0
        self._append(flat, lengths)

    def _append(self, flat: np.ndarray, lengths: np.ndarray) -> None:
        flat.tofile(self._ids)
        (np.cumsum(lengths) + self.num_ids).astype("<i8").tofile(self._offsets)
        lengths.astype("<i4").tofile(self._lengths)
        self.num_ids += len(flat)


class _Writer:
    def __init__(
        self, folder: Path, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer, max_length: int, truncate: bool
    ) -> None:
        self._folder = folder
        self._tokenizers = source_tokenizer, target_tokenizer
        self._max_pieces = max_length - 1
        self._truncate = truncate
        self._num_pairs = self._num_rows = self._num_long = self._num_empty = self._num_truncated = 0

    def write(self, pairs: TextPairs, description: str) -> None:
        with (
            ExitStack() as files,
            (self._folder / "rows").open("wb") as rows,
            progress_bar(total=len(pairs), desc=f"tokenising {description}", unit=" pairs") as progress,
        ):
            source, target = (
                SideWriter(self._folder, name, id_type(tokenizer), files)
                for name, tokenizer in zip(("source", "target"), self._tokenizers, strict=True)
            )
            for sources, targets in chunks(pairs):
                self._append(sources, targets, source, target).astype("<i8").tofile(rows)
                progress.update(len(sources))
        if self._num_rows == 0:
            raise DataError(
                f"{description}: none of the {self._num_pairs} pairs of {pairs.name} can be used: {self._num_long} are "
                f"longer than data.max_length={self._max_pieces + 1} tokens, {self._num_empty} have an empty side"
            )
        meta = {
            "num_pairs": self._num_pairs,
            "num_rows": self._num_rows,
            "num_long": self._num_long,
            "num_empty": self._num_empty,
            "num_truncated": self._num_truncated,
            "num_source_ids": source.num_ids,
            "num_target_ids": target.num_ids,
            "source_dtype": source.dtype,
            "target_dtype": target.dtype,
        }
        (self._folder / META).write_text(json.dumps(meta), encoding="utf-8", newline="\n")

    def _append(self, sources: list[str], targets: list[str], source: SideWriter, target: SideWriter) -> np.ndarray:
        """Encode and write one chunk; the rows of the text that were kept."""
        source_tokenizer, target_tokenizer = self._tokenizers
        source_rows = source_tokenizer.encode_arrays(sources)
        target_rows = target_tokenizer.encode_arrays(targets)
        source_lengths = np.fromiter(map(len, source_rows), np.int64, len(source_rows))
        target_lengths = np.fromiter(map(len, target_rows), np.int64, len(target_rows))
        long = np.maximum(source_lengths, target_lengths) > self._max_pieces
        kept = np.arange(len(sources))
        if self._truncate:
            self._num_truncated += int(long.sum())
        else:
            empty = np.minimum(source_lengths, target_lengths) == 0
            kept = np.flatnonzero(~(long | empty))
            self._num_empty += int(empty.sum())
            self._num_long += int((long & ~empty).sum())
        source.append_cut([source_rows[i] for i in kept], self._max_pieces, eos=source_tokenizer.eos_id)
        target.append_cut([target_rows[i] for i in kept], self._max_pieces, eos=target_tokenizer.eos_id)
        rows = kept + self._num_pairs
        self._num_pairs += len(sources)
        self._num_rows += len(kept)
        return rows


def id_type(tokenizer: Tokenizer) -> str:
    """The type in which ids of `tokenizer` are kept."""
    return "<u2" if tokenizer.vocab_size <= 1 << 16 else "<i4"


def chunks(pairs: TextPairs) -> Iterator[tuple[list[str], list[str]]]:
    """Sources and targets of as many pairs as are encoded at once."""
    sources: list[str] = []
    targets: list[str] = []
    num_characters = 0
    for source, target in pairs:
        sources.append(source)
        targets.append(target)
        num_characters += len(source) + len(target)
        if len(sources) >= _CHUNK_PAIRS or num_characters >= _CHUNK_CHARACTERS:
            yield sources, targets
            sources, targets, num_characters = [], [], 0
    if sources:
        yield sources, targets
