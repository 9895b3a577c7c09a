"""Tokenizers that are SentencePiece models (Kudo and Richardson 2018)."""

import hashlib
import math
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from headloom.data.sentencepiece_model import UNKNOWN_SURFACE, load_processor, model_kind, read_pieces
from headloom.data.subword_sampling import BpeDropout, SubwordSampler, UnigramSampling
from headloom.data.tokenizer_base import Tokenizer
from headloom.errors import ConfigError

KINDS_THAT_SAMPLE = ("bpe", "unigram")
_BLANK = "\u2581"  # of pieces


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model: byte-pair encoding (Sennrich et al. 2016), unigram (Kudo 2018), characters or words.

    `sample` is BPE-dropout (Provilkov et al. 2020, section 3) with probability
    `sampling` for bpe, and subword regularization (Kudo 2018, section 3.2) over
    all segmentations with inverse temperature `sampling` for unigram.

    `model` is what `with_special_pieces` made of a model file; `load_tokenizer`
    and `train_tokenizer` see to that.

    Raises:
        DataError: `model` is no SentencePiece model; the message names it `name`.
        ConfigError: `sampling` is below 0 or, of bpe, above 1, or the model's kind has nothing to sample.
    """

    def __init__(self, model: bytes, *, sampling: float = 0.0, name: str = "the tokenizer's model") -> None:
        self._model = model
        self._processor = load_processor(model, name=name)
        self.kind = model_kind(self._model)
        if not 0.0 <= sampling <= (1.0 if self.kind == "bpe" else math.inf):
            raise ConfigError(f"the tokenizer's sampling strength ({sampling}) must be from 0 to 1")
        if sampling and self.kind not in KINDS_THAT_SAMPLE:
            raise ConfigError(
                f"{name} is a {self.kind} model, which has nothing to sample; set the sampling strength to 0"
            )
        self.sampling = float(sampling)
        self._sampler: SubwordSampler | None = None  # made at the first use: most tokenizers never sample
        self.vocab_size = self._processor.get_piece_size()
        self.pad_id, self.unk_id = self._processor.pad_id(), self._processor.unk_id()
        self.bos_id, self.eos_id = self._processor.bos_id(), self._processor.eos_id()
        specials = {self.pad_id, self.unk_id, self.bos_id, self.eos_id}
        assert len(specials) == 4
        assert min(specials) >= 0
        self.fingerprint = hashlib.sha256(self._model).hexdigest()
        every_id = range(self.vocab_size)
        self._control = frozenset(i for i in every_id if self._processor.is_control(i))
        self._byte_of_id = {
            i: int(self._processor.id_to_piece(i)[1:-1], 16) for i in every_id if self._processor.is_byte(i)
        }
        self._id_of_byte = {byte: i for i, byte in self._byte_of_id.items()}

    def encode_arrays(self, texts: Sequence[str]) -> list[np.ndarray]:
        arrays: list[np.ndarray] = self._processor.encode(list(texts), out_type="numpy", num_threads=-1)
        return arrays

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        ids: list[list[int]] = self._processor.encode(list(texts), out_type=int, num_threads=-1)
        return ids

    def written(self) -> list[bytes]:
        texts = [piece.replace(_BLANK, " ").encode("utf-8") for piece in self.pieces(range(self.vocab_size))]
        for i, byte in self._byte_of_id.items():
            texts[i] = bytes([byte])
        for i in self._control:
            texts[i] = b""
        texts[self.unk_id] = UNKNOWN_SURFACE.encode("utf-8")
        return texts

    def as_written(self, text: str) -> str:
        return str(self._processor.normalize(text)).replace(_BLANK, " ")

    def unknown(self, text: str) -> list[str]:
        [ids], pieces = self.encode([text]), self._processor.encode(text, out_type=str)
        return [piece for i, piece in zip(ids, pieces, strict=True) if i == self.unk_id]

    def sample(self, texts: Sequence[str], *, seed: int) -> list[list[int]]:
        if not self.sampling:
            raise ConfigError("the tokenizer's sampling strength is 0: it has one segmentation only")
        if self._sampler is None:
            pieces = read_pieces(self._model)
            if self.kind == "bpe":
                self._sampler = BpeDropout(pieces, probability=self.sampling)
            else:
                self._sampler = UnigramSampling(pieces, alpha=self.sampling)
        random = Random(seed)
        return [self._sampler.sample(text, random) for text in self._processor.normalize(list(texts))]

    def _decode(self, ids: list[int]) -> str:
        text = [i for i in ids if i not in self._control]
        if not self._byte_of_id.keys().isdisjoint(text):
            text = self._without_broken_bytes(text)
        decoded: str = self._processor.decode(text)
        return decoded

    def _without_broken_bytes(self, ids: list[int]) -> list[int]:
        kept: list[int] = []
        run = bytearray()  # the byte pieces since the last other piece
        for i in [*ids, None]:
            byte = None if i is None else self._byte_of_id.get(i)
            if byte is not None:
                run.append(byte)
                continue
            kept.extend(self._id_of_byte[b] for b in run.decode("utf-8", errors="ignore").encode("utf-8"))
            run.clear()
            if i is not None:
                kept.append(i)
        return kept

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._processor.id_to_piece(int(i)) for i in ids]

    def state(self) -> dict[str, Any]:
        return {"kind": self.kind, "model": self._model, "sampling": self.sampling, "fingerprint": self.fingerprint}
