"""From text to ids and back.

Two kinds of tokenizer share one face: SentencePiece models (bpe, unigram, char)
and plain UTF-8 bytes. To add another, subclass `Tokenizer` and give it an arm
in `tokenizer_from_state`.

What is true of every tokenizer:

* pad, unk, bos and eos are distinct ids from 0 on, whatever the model file says;
* text never becomes a special id: "</s>" in a line is encoded as its letters;
* ids become one line: no line end of any alphabet is in decoded text.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headloom.data.sentencepiece_model import for_running_text, with_special_pieces
from headloom.data.sentencepiece_tokenizer import SentencePieceTokenizer
from headloom.data.tokenizer_base import Tokenizer
from headloom.data.tokenizer_training import train_tokenizer
from headloom.errors import CheckpointError, ConfigError, DataError

__all__ = [
    "ByteTokenizer",
    "SentencePieceTokenizer",
    "Tokenizer",
    "load_tokenizer",
    "tokenizer_from_state",
    "train_tokenizer",
]


class ByteTokenizer(Tokenizer):
    """UTF-8 bytes: id 4 + b for byte b, after pad 0, unk 1, bos 2 and eos 3. Needs no training, knows every text."""

    kind = "byte"
    pad_id, unk_id, bos_id, eos_id = 0, 1, 2, 3
    _FIRST = 4
    vocab_size = _FIRST + 256
    fingerprint = hashlib.sha256(b"headloom byte tokenizer 1").hexdigest()

    def encode_arrays(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int32) + self._FIRST for text in texts]

    def written(self) -> list[bytes]:
        return [*[b""] * self._FIRST, *(bytes([byte]) for byte in range(256))]

    def sample(self, texts: Sequence[str], *, seed: int) -> list[list[int]]:
        raise ConfigError("a byte tokenizer has one segmentation only; set the sampling strength to 0")

    def _decode(self, ids: list[int]) -> str:
        return bytes(i - self._FIRST for i in ids if i >= self._FIRST).decode("utf-8", errors="ignore")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._piece(int(i)) for i in ids]

    def _piece(self, i: int) -> str:
        if i < self._FIRST:
            return ("<pad>", "<unk>", "<s>", "</s>")[i]
        byte = i - self._FIRST
        return chr(byte) if 0x21 <= byte <= 0x7E else f"<0x{byte:02X}>"

    def state(self) -> dict[str, Any]:
        return {"kind": self.kind, "fingerprint": self.fingerprint}


def tokenizer_from_state(state: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer whose `state()` this is.

    Raises:
        CheckpointError: the kind is one this version does not know, or the content is not what the fingerprint says.
    """
    tokenizer: Tokenizer
    match state.get("kind"):
        case "byte":
            tokenizer = ByteTokenizer()
        case "bpe" | "unigram" | "char" | "word":
            try:
                tokenizer = SentencePieceTokenizer(state["model"], sampling=state["sampling"])
            except (DataError, KeyError) as error:
                raise CheckpointError(f"the saved tokenizer cannot be read: {error}") from error
        case kind:
            raise CheckpointError(f"the saved tokenizer is of an unknown kind ({kind!r}); upgrade to read it")
    if state.get("fingerprint") != tokenizer.fingerprint:
        raise CheckpointError("the saved tokenizer is damaged: its content does not give its fingerprint")
    return tokenizer


def load_tokenizer(path: Path, *, sampling: float = 0.0, running_text: bool = False) -> SentencePieceTokenizer:
    """The tokenizer of a SentencePiece model file; specials that it lacks get new ids at its end.

    `running_text`: made to keep line ends and blanks, see `for_running_text`.

    Raises:
        DataError: there is no such file, or it is no SentencePiece model.
        ConfigError: as `SentencePieceTokenizer`.
    """
    try:
        model = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"the tokenizer model {path} cannot be read: {error.strerror}") from error
    complete = with_special_pieces(model, name=str(path))
    if running_text:
        complete = for_running_text(complete)
    return SentencePieceTokenizer(complete, sampling=sampling, name=str(path))
