"""Phrases that no output holds from the beginning of a word on, whatever tokens spell them.

They are looked for in the text of an output and not among its ids: many sequences of ids spell one text, and a phrase
may end inside of a token, as "cat" does in "▁category". What is compared is text as ids write it (`as_written`), in
UTF-8, where one byte may be a token. A word begins behind a blank and at the beginning of an output, which is therefore
read as if a blank stood before it. Blanks in a row are one, and bytes that form no character are not there.
"""

import codecs
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from headloom.data.tokenizer_base import Tokenizer

_BLANKS = re.compile(r"\s+")
_BLANK = ord(" ")
_AFTER_EVERY_TEXT = b"\xff"  # no byte of UTF-8


def with_single_blanks(text: str) -> str:
    return _BLANKS.sub(" ", text)


class WrittenVocabulary:
    """What each id of a vocabulary adds to a text, to be found by how it begins.

    `written` has the bytes of each id, none for an id that is not text.
    """

    def __init__(self, written: Iterable[bytes]) -> None:
        self.written = [_piece_with_single_blanks(text) for text in written]
        ids = sorted(range(len(self.written)), key=self.written.__getitem__)
        self._id = np.array(ids, dtype=np.int64)
        self._sorted = [self.written[i] for i in ids]
        self._with_inner_blank = [i for i, text in enumerate(self.written) if b" " in text[1:]]

    def beginning_with(self, text: bytes) -> NDArray[np.int64]:
        return self._id[bisect_left(self._sorted, text) : bisect_left(self._sorted, text + _AFTER_EVERY_TEXT)]

    def equal_to(self, text: bytes) -> NDArray[np.int64]:
        return self._id[bisect_left(self._sorted, text) : bisect_right(self._sorted, text)]

    def holding(self, phrase: bytes) -> NDArray[np.int64]:
        """Ids with all of `phrase`, which begins with a blank."""
        inside = [i for i in self._with_inner_blank if phrase in self.written[i]]
        return np.concatenate([self.beginning_with(phrase), np.array(inside, dtype=np.int64)])

    def ending_with(self, text: bytes) -> NDArray[np.int64]:
        """Ids that end with `text`, which begins with a blank."""
        inside = [i for i in self._with_inner_blank if self.written[i].endswith(text) and self.written[i] != text]
        return np.concatenate([self.equal_to(text), np.array(inside, dtype=np.int64)])


@lru_cache(maxsize=4)
def vocabulary_of(tokenizer: Tokenizer) -> WrittenVocabulary:
    return WrittenVocabulary(tokenizer.written())


def phrase_text(tokenizer: Tokenizer, phrase: str) -> str:
    """`phrase` as it is looked for, from the blank before its first word on; a single blank: there is nothing in it."""
    return " " + with_single_blanks(tokenizer.as_written(phrase)).strip()


State = tuple[str, bytes]
"""The end of a text, and the bytes behind it that the next token may complete to a character."""


class ForbiddenPhrases:
    """What a text must not go on with. `phrases`: each as `phrase_text` gives it, and none of them blank."""

    start: State = (" ", b"")

    def __init__(self, vocabulary: WrittenVocabulary, phrases: Iterable[str]) -> None:
        self.vocabulary = vocabulary
        self.phrases = [phrase.encode("utf-8") for phrase in phrases]
        self._longest = max(map(len, self.phrases))
        self._whole = [vocabulary.holding(phrase) for phrase in self.phrases]
        self._beginnings = frozenset(phrase[:size] for phrase in self.phrases for size in range(1, len(phrase)))
        self._banned: dict[frozenset[bytes], NDArray[np.int64]] = {}

    def after(self, state: State, token: int) -> State:
        tail, pending = state
        decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        text = tail + decoder.decode(pending + self.vocabulary.written[token])
        return with_single_blanks(text)[-self._longest :], decoder.getstate()[0]

    def banned(self, state: State) -> NDArray[np.int64]:
        """The ids that would end a phrase."""
        tail = state[0].encode("utf-8")
        texts = (tail, tail + state[1]) if state[1] else (tail,)
        ends = frozenset(text[place:] for text in texts for place, byte in enumerate(text) if byte == _BLANK)
        begun = ends & self._beginnings  # mostly none
        if begun not in self._banned:
            found = [
                self.vocabulary.beginning_with(rest)
                for phrase in self.phrases
                for size in range(1, len(phrase))
                if phrase[:size] in begun
                for rest in _rests(phrase, size, len(phrase))
            ]
            self._banned[begun] = np.unique(np.concatenate([*self._whole, *found]))
        return self._banned[begun]

    def found_in(self, ids: Sequence[int]) -> tuple[int, ...] | None:
        """The few of `ids` in a row that hold the first forbidden phrase in their text; None: there is none."""
        state = self.start
        for stop, token in enumerate(ids, start=1):
            if token in self.banned(state):
                return next(
                    (tuple(ids[start:stop]) for start in range(stop - 1, 0, -1) if self._hold(ids[start:stop])),
                    tuple(ids[:stop]),
                )
            state = self.after(state, token)
        return None

    def _hold(self, ids: Sequence[int]) -> bool:
        text = b"".join(self.vocabulary.written[i] for i in ids).decode("utf-8", errors="ignore")
        return any(phrase in with_single_blanks(text).encode("utf-8") for phrase in self.phrases)

    def sequences(self, limit: int) -> list[tuple[int, ...]]:
        """Ids in a row of which the last ends a phrase, for a search that knows no text: `limit` of the shortest."""
        found: list[tuple[int, ...]] = [(int(i),) for ids in self._whole for i in ids]
        begun: list[tuple[bytes, tuple[int, ...], int]] = [
            (phrase, (int(i),), size)
            for phrase in self.phrases
            for size in range(1, len(phrase))
            for i in self.vocabulary.ending_with(phrase[:size])
        ]
        while begun and len(found) < limit:
            longer = []
            for phrase, ids, size in begun[:limit]:
                for rest in _rests(phrase, size, len(phrase)):
                    found += [(*ids, int(i)) for i in self.vocabulary.beginning_with(rest)]
                longer += [
                    (phrase, (*ids, int(i)), stop)
                    for stop in range(size + 1, len(phrase))
                    for rest in _rests(phrase, size, stop)
                    for i in self.vocabulary.equal_to(rest)
                ]
            begun = longer
        return found[:limit]


def _rests(phrase: bytes, start: int, stop: int) -> list[bytes]:
    """That part of `phrase`, also behind one more blank where it follows one."""
    part = phrase[start:stop]
    return [part, b" " + part] if phrase[start - 1 : start] == b" " else [part]


def _piece_with_single_blanks(text: bytes) -> bytes:
    try:
        return with_single_blanks(text.decode("utf-8")).encode("utf-8")
    except UnicodeDecodeError:  # a byte of a character
        return text
