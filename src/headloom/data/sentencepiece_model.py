"""Reading and extending a SentencePiece model file without the protobuf package.

A model file is one protobuf message, `ModelProto`. Two properties of the wire
format make it easy to extend: a repeated field that is written again gets one
more element, and an embedded message that is written again is merged into the
first. So a piece, or another name for the unknown surface, is added by
appending bytes, and every other field stays as its author wrote it.

Field numbers: sentencepiece_model.proto of the SentencePiece repository.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

import sentencepiece

from headloom.errors import DataError

UNKNOWN_SURFACE = "\u2047"
"""What an unknown piece reads as in decoded text: without the spaces that SentencePiece puts around it by default."""


LINE_END = "\n"
"""The piece of a line end in a tokenizer of running text."""


class PieceType(Enum):
    """SentencePiece.Type."""

    normal = 1
    unknown = 2
    control = 3
    user_defined = 4
    unused = 5
    byte = 6


class Piece(NamedTuple):
    """An entry of the vocabulary; its id is its place."""

    text: str
    score: float
    type: PieceType


_PIECES, _TRAINER_SPEC, _NORMALIZER_SPEC = 1, 2, 3  # fields of ModelProto
_PIECE, _SCORE, _TYPE = 1, 2, 3  # fields of ModelProto.SentencePiece
_MODEL_TYPE, _UNK_SURFACE = 3, 44  # fields of TrainerSpec
_CHARACTER_MAP, _ADD_DUMMY_PREFIX, _REMOVE_EXTRA_WHITESPACES, _ESCAPE_WHITESPACES = 2, 3, 4, 5  # of NormalizerSpec
_NORMALIZER_FLAGS = {
    _ADD_DUMMY_PREFIX: "adds_space",
    _REMOVE_EXTRA_WHITESPACES: "removes_spaces",
    _ESCAPE_WHITESPACES: "escapes_spaces",
}
_SPECIAL_NAMES = {"bos": 46, "eos": 47, "pad": 48}  # TrainerSpec.{bos,eos,pad}_piece: the name the special is found by
_DEFAULT_NAMES = {"bos": "<s>", "eos": "</s>", "pad": "<pad>"}
_KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types


def load_processor(model: bytes, *, name: str) -> sentencepiece.SentencePieceProcessor:
    """The processor of a serialized model.

    Raises:
        DataError: `model` is no SentencePiece model; the message names it `name`.
    """
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except (RuntimeError, ValueError, OSError) as error:
        reason = str(error).split("\n")[0]
        raise DataError(
            f"{name} is not a SentencePiece model ({reason}); give a .model file that spm_train wrote"
        ) from error


def with_special_pieces(model: bytes, *, name: str) -> bytes:
    """`model` with a piece for each of pad, bos and eos, and an unknown surface without spaces.

    SentencePiece's default model has no pad (its id is -1, which an embedding
    would take for the last piece). A special that is missing is appended as a
    new control piece, so no id of the original changes its meaning.

    Raises:
        DataError: `model` is no SentencePiece model.
    """
    processor = load_processor(model, name=name)
    spec = _field(_UNK_SURFACE, _BYTES, UNKNOWN_SURFACE.encode("utf-8"))
    pieces = b""
    present = {processor.id_to_piece(i) for i in range(processor.get_piece_size())}
    for special, field in _SPECIAL_NAMES.items():
        if getattr(processor, f"{special}_id")() >= 0:
            continue
        piece = _DEFAULT_NAMES[special]
        while piece in present:
            piece = f"<{piece}>"  # the model uses the name for a piece that text can contain
        present.add(piece)
        pieces += _new_piece(piece, PieceType.control)
        spec += _field(field, _BYTES, piece.encode("utf-8"))
    return model + pieces + _field(_TRAINER_SPEC, _BYTES, spec)


def for_running_text(model: bytes) -> bytes:
    """A valid `model` that keeps line ends and blanks of running text, with the options of `train_tokenizer` for it.

    A line end gets a piece where it has none, as the last id; no space is added
    before a text or taken from it. Its folding of characters stays.
    """
    has_line_end = any(piece == (LINE_END, piece.score, PieceType.user_defined) for piece in read_pieces(model))
    added = b"" if has_line_end else _new_piece(LINE_END, PieceType.user_defined)
    spec = _field(_ADD_DUMMY_PREFIX, _VARINT, _varint(0)) + _field(_REMOVE_EXTRA_WHITESPACES, _VARINT, _varint(0))
    return model + added + _field(_NORMALIZER_SPEC, _BYTES, spec)


def _new_piece(text: str, kind: PieceType) -> bytes:
    """A field of ModelProto: one more entry of the vocabulary."""
    body = (
        _field(_PIECE, _BYTES, text.encode("utf-8"))
        + _field(_SCORE, _FIXED32, bytes(4))
        + _field(_TYPE, _VARINT, _varint(kind.value))
    )
    return _field(_PIECES, _BYTES, body)


def model_kind(model: bytes) -> str:
    """The algorithm of a valid model: "unigram", "bpe", "word" or "char"."""
    kind = 1  # the default of TrainerSpec.model_type
    for number, value in _fields(model):
        if number == _TRAINER_SPEC and isinstance(value, bytes):
            for inner, inner_value in _fields(value):
                if inner == _MODEL_TYPE and isinstance(inner_value, int):
                    kind = inner_value
    return _KINDS[kind]


@dataclass(frozen=True)
class Normalization:
    """What a model does to text before it cuts it into pieces."""

    character_map: bytes = b""
    """Which characters become which, as SentencePiece compiles it; none: they stay."""
    adds_space: bool = True
    """A space goes before every text."""
    removes_spaces: bool = True
    """Spaces at the ends go, several become one."""
    escapes_spaces: bool = True
    """A space is U+2581 in pieces."""


def read_normalization(model: bytes) -> Normalization:
    """That of a valid model."""
    found = Normalization()
    for number, value in _fields(model):
        if number == _NORMALIZER_SPEC and isinstance(value, bytes):
            for inner, inner_value in _fields(value):
                if inner == _CHARACTER_MAP and isinstance(inner_value, bytes):
                    found = replace(found, character_map=inner_value)
                elif inner in _NORMALIZER_FLAGS:
                    flag: dict[str, Any] = {_NORMALIZER_FLAGS[inner]: bool(inner_value)}
                    found = replace(found, **flag)
    return found


def read_pieces(model: bytes) -> list[Piece]:
    """The vocabulary of a valid model, in the order of ids."""
    pieces = []
    for number, value in _fields(model):
        if number == _PIECES and isinstance(value, bytes):
            text, score, kind = b"", bytes(4), PieceType.normal.value
            for inner, inner_value in _fields(value):
                if inner == _PIECE and isinstance(inner_value, bytes):
                    text = inner_value
                elif inner == _SCORE and isinstance(inner_value, bytes):
                    score = inner_value
                elif inner == _TYPE and isinstance(inner_value, int):
                    kind = inner_value
            pieces.append(Piece(text.decode("utf-8"), struct.unpack("<f", score)[0], PieceType(kind)))
    return pieces


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    position = 0
    while position < len(message):
        key, position = _read_varint(message, position)
        number, wire_type = key >> 3, key & 7
        if wire_type == _VARINT:
            value, position = _read_varint(message, position)
            yield number, value
            continue
        if wire_type == _BYTES:
            size, position = _read_varint(message, position)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}[wire_type]
        yield number, message[position : position + size]
        position += size


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _field(number: int, wire_type: int, payload: bytes) -> bytes:
    size = _varint(len(payload)) if wire_type == _BYTES else b""
    return _varint(number << 3 | wire_type) + size + payload


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
