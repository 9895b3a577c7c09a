"""Token ids of running text on disk, encoded once and mapped into memory.

The documents lie one behind the other, each followed by eos: one stream of
targets. What a model sees before a target is the id before it, with bos in
place of eos, so that a document begins after bos and ends in eos wherever it
stands in the stream. The file has one eos more, at its start, so that the first
document is no exception.

A store is a folder named by a hash of all that decides the ids, as in
`headloom.data.token_store`.
"""

import hashlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from headloom.bar import progress_bar
from headloom.data.mapped import MappedArray, Ranges
from headloom.data.running_text import Piece, RunningText
from headloom.data.tokenizer_base import Tokenizer
from headloom.data.whole_files import folder_written_beside
from headloom.errors import DataError

logger = logging.getLogger(__name__)

_FORMAT = 1
_CHUNK_CHARACTERS = 1 << 22  # encoded at once
_META = "store.json"


class TextTokens:
    """The ids of a text, memory-mapped: a stream of `len(self)` targets.

    Raises:
        DataError: the folder is no whole store.
    """

    num_documents: int
    num_characters: int
    """Of the text of the documents, in code points: what bits per character are counted by."""
    num_bytes: int
    """The same in bytes of UTF-8."""
    num_unknown: int
    """Targets that the tokenizer does not know."""

    def __init__(self, folder: Path, *, name: str) -> None:
        self.name = name
        try:
            meta: dict[str, Any] = json.loads((folder / _META).read_bytes())
            self.eos_id: int = meta["eos_id"]
            self.num_documents = meta["num_documents"]
            self.num_characters, self.num_bytes = meta["num_characters"], meta["num_bytes"]
            self.num_unknown = meta["num_unknown"]
            self._num_targets: int = meta["num_targets"]
            self._ids = MappedArray(folder / "ids", meta["dtype"], self._num_targets + 1)
            self.document_ends = MappedArray(folder / "document_ends", "<i8", self.num_documents)
            """Place behind the last target, its eos, of each document."""
        except (OSError, KeyError, ValueError) as error:
            raise DataError(f"the token store {folder} is damaged ({error}); delete the folder") from error

    def __len__(self) -> int:
        return self._num_targets

    def load(self, starts: np.ndarray, lengths: np.ndarray) -> Ranges:
        """A copy of the targets from each of `starts` on, each range led by the id before it: `lengths` + 1 ids."""
        return self._ids.ranges(starts, lengths + 1)

    def targets(self, start: int, stop: int) -> np.ndarray:
        """A copy of some targets that lie together."""
        return np.array(self._ids.array[start + 1 : stop + 1])

    def documents(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Start and length of the documents `first` to `last` - 1 in the stream, eos counted."""
        ends = np.array(self.document_ends.array[max(first - 1, 0) : last])
        starts = np.concatenate([[0], ends[:-1]]) if first == 0 else ends[:-1]
        ends = ends if first == 0 else ends[1:]
        return starts.astype(np.int64), (ends - starts).astype(np.int64)


def tokenize_text(text: RunningText, tokenizer: Tokenizer, *, folder: Path, description: str) -> TextTokens:
    """The ids of `text`, from the store below `folder` or encoded now. `description` names it in messages.

    Raises:
        DataError: the text holds no document.
    """
    content = json.dumps([_FORMAT, "text", text.fingerprint, tokenizer.fingerprint])
    store = folder / f"tokens-{hashlib.sha256(content.encode('utf-8')).hexdigest()[:32]}"
    if not (store / _META).exists():
        folder.mkdir(parents=True, exist_ok=True)
        with folder_written_beside(store, complete=store / _META) as partial:
            _write(partial, text, tokenizer, description)
    tokens = TextTokens(store, name=text.name)
    if tokens.num_unknown:
        logger.warning(
            "%s: %d of %d tokens are unknown to the tokenizer: they are trained on and scored as one piece",
            description, tokens.num_unknown, len(tokens),
        )  # fmt: skip
    return tokens


def _write(folder: Path, text: RunningText, tokenizer: Tokenizer, description: str) -> None:
    dtype = "<u2" if tokenizer.vocab_size <= 1 << 16 else "<i4"
    num_targets = num_documents = num_characters = num_bytes = num_unknown = 0
    with (
        (folder / "ids").open("wb") as ids,
        (folder / "document_ends").open("wb") as ends,
        progress_bar(total=text.num_bytes, desc=f"tokenising {description}", unit="B", unit_scale=True) as progress,
    ):
        _append(ids, np.array([tokenizer.eos_id]), dtype)
        for pieces in _chunks(text):
            encoded = tokenizer.encode_arrays([piece.text for piece in pieces])
            lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
            lengths += np.fromiter((piece.ends_document for piece in pieces), np.int64, len(pieces))
            place_of_end = np.cumsum(lengths)[[piece.ends_document for piece in pieces]]
            flat = np.full(int(lengths.sum()), tokenizer.eos_id, dtype=np.int64)
            is_text = np.ones(len(flat), bool)
            is_text[place_of_end - 1] = False
            flat[is_text] = np.concatenate(encoded)
            num_unknown += int((flat == tokenizer.unk_id).sum())
            _append(ids, flat, dtype)
            _append(ends, place_of_end + num_targets, "<i8")
            num_targets += len(flat)
            num_documents += len(place_of_end)
            num_characters += sum(len(piece.text) for piece in pieces)
            num_read = sum(len(piece.text.encode("utf-8")) for piece in pieces)
            num_bytes += num_read
            progress.update(num_read)
    if num_documents == 0:
        raise DataError(f"{description}: {text.name} holds no document; it must hold some text")
    meta = {
        "eos_id": tokenizer.eos_id,
        "num_targets": num_targets,
        "num_documents": num_documents,
        "num_characters": num_characters,
        "num_bytes": num_bytes,
        "num_unknown": num_unknown,
        "dtype": dtype,
    }
    (folder / _META).write_text(json.dumps(meta), encoding="utf-8", newline="\n")


def _append(stream: BinaryIO, values: np.ndarray, dtype: str) -> None:
    values.astype(dtype).tofile(stream)


def _chunks(text: RunningText) -> Iterator[list[Piece]]:
    pieces: list[Piece] = []
    num_characters = 0
    for piece in text.pieces():
        pieces.append(piece)
        num_characters += len(piece.text)
        if num_characters >= _CHUNK_CHARACTERS:
            yield pieces
            pieces, num_characters = [], 0
    if pieces:
        yield pieces
