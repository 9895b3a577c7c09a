"""Lines of a filter, read: text or JSON Lines, good ones and bad ones, with what is asked of a predictor."""

import codecs
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, BinaryIO, Generic, Protocol, TypeVar

from headloom.data.files import GZIP
from headloom.errors import DataError


class Format(Enum):
    text = "text"
    jsonl = "jsonl"


class OnBadLine(Enum):
    fail = "fail"
    skip = "skip"
    replace = "replace"


@dataclass(frozen=True)
class Reply:
    """What a line gets: a line of text or, in JSON Lines, fields that are added to its own."""

    text: str
    fields: Mapping[str, Any]
    num_tokens: int = 0
    """Tokens that the model wrote, for the report."""


Item = TypeVar("Item")


class Predictor(Protocol[Item]):
    """What a checkpoint does with lines."""

    def read(self, line: str | Mapping[str, Any]) -> Item:
        """What is asked of the model: `line` is text, or the fields of a line of JSON.

        Raises:
            DataError: the line does not hold what is needed; the message says what, without the place.
        """
        ...

    def answer(self, items: Sequence[Item]) -> Iterator[tuple[int, Reply]]:
        """Of each item its place in `items` and the reply, in any order, as soon as they are there."""
        ...

    def finish(self) -> None:
        """Called once, at the end: what there is to warn of."""
        ...


@dataclass(frozen=True)
class Bad:
    """A line that cannot be used, why, and its fields where it is a JSON object."""

    reason: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Read(Generic[Item]):
    """A line that can be used, and in JSON Lines its fields."""

    item: Item
    fields: Mapping[str, Any] = field(default_factory=dict)


def read_items(
    stream: BinaryIO, name: str, predictor: Predictor[Item], line_format: Format, on_bad_line: OnBadLine
) -> Iterator[Read[Item] | Bad]:
    """Only a line feed ends a line, a carriage return just before it belongs to it, and a byte order mark is dropped
    at the start.

    Raises:
        DataError: a line is bad, and not to be skipped; or they are compressed, whatever is to be done with bad ones.
    """
    for number, raw in enumerate(stream, start=1):
        if number == 1:
            if raw.startswith(GZIP):
                raise DataError(f"{name} is compressed: unpack it, as in gunzip -c FILE.gz | python translate.py ...")
            raw = raw.removeprefix(codecs.BOM_UTF8)
        if raw.endswith(b"\n"):
            raw = raw[:-2] if raw.endswith(b"\r\n") else raw[:-1]
        fields: Mapping[str, Any] = {}
        try:
            text = _decoded(raw, on_bad_line)
            if line_format is Format.jsonl:
                fields = _fields(text)
            yield Read(predictor.read(fields if line_format is Format.jsonl else text), fields)
        except DataError as error:
            reason = f"{name}: line {number} {error}"
            if on_bad_line is not OnBadLine.skip:
                raise DataError(reason) from None
            yield Bad(reason, fields)


def _decoded(raw: bytes, on_bad_line: OnBadLine) -> str:
    try:
        return raw.decode("utf-8", errors="replace" if on_bad_line is OnBadLine.replace else "strict")
    except UnicodeDecodeError as error:
        raise DataError(
            f"is not UTF-8 (byte 0x{raw[error.start]:02X}); convert the text, or set on_bad_line=skip or replace"
        ) from None


def _fields(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text, parse_constant=_no_number, parse_float=_finite, object_pairs_hook=_distinct)
    except ValueError as error:
        raise DataError(f"is not JSON ({error})") from None
    except RecursionError:
        raise DataError("is not JSON that can be read: it is nested too deep") from None
    if not isinstance(fields, dict):
        raise DataError("is not a JSON object")
    return fields


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"it has {name!r} twice, of which one would be lost")
        fields[name] = value
    return fields


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    return value if math.isfinite(value := float(text)) else _no_number(text)


def text_of(fields: Mapping[str, Any], name: str, *, default: str | None = None) -> str:
    """The text of a field of a JSON line; without `default` it must be there. null is as none.

    Raises:
        DataError: it is missing, or no text.
    """
    value = fields.get(name)
    value = default if value is None else value
    if not isinstance(value, str):
        raise DataError(f"has {'no text in' if name in fields else 'no'} field {name!r}")
    # Half of a surrogate pair, which JSON can write, is no character.
    return value.encode("utf-8", errors="replace").decode("utf-8")


def texts_of(fields: Mapping[str, Any], name: str) -> list[str]:
    """The texts of a field of a JSON line that holds a list; none where it is missing or null."""
    values = fields.get(name)
    values = [] if values is None else values
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise DataError(f"has no list of texts in field {name!r}")
    return [text_of({name: value}, name) for value in values]


def whole_number_of(fields: Mapping[str, Any], name: str) -> int | None:
    """The whole number, 0 or more, of a field of a JSON line; None where it is missing or null."""
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise DataError(f"has no whole number from 0 on in field {name!r}")
    return value
