"""What every tokenizer offers."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

# Whatever some program takes for a line end: LF, VT, FF, CR, the separators FS GS RS, NEL, U+2028, U+2029.
_LINE_ENDS = dict.fromkeys([0x0A, 0x0B, 0x0C, 0x0D, 0x1C, 0x1D, 0x1E, 0x85, 0x2028, 0x2029], " ")


class Tokenizer(ABC):
    """Text to ids and back; `vocab_size` counts every id, the four specials included."""

    kind: str
    vocab_size: int
    pad_id: int
    unk_id: int
    bos_id: int
    eos_id: int
    fingerprint: str
    """SHA-256 of what decides the ids, in hexadecimal: equal for two tokenizers that encode alike."""
    sampling: float = 0.0
    """Strength of `sample`: dropout probability of merges (bpe) or inverse temperature (unigram); 0: none."""

    @abstractmethod
    def encode_arrays(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each text as an int32 array, without bos and eos. Blank text may give none."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text as a list, without bos and eos. Blank text may give none."""
        return [ids.tolist() for ids in self.encode_arrays(texts)]

    @abstractmethod
    def written(self) -> list[bytes]:
        """What each id adds to a text, in UTF-8: maybe a part of a character.

        Nothing for one that `decode` leaves out. Joined, they are the text of ids, but for a blank before it.
        """

    def as_written(self, text: str) -> str:
        """`text` in the characters that `written` has: folded as this tokenizer does before it cuts."""
        return text

    def unknown(self, text: str) -> list[str]:
        """The parts of `text` for which there are no ids but unk, as far as they stand in a row."""
        return []

    @abstractmethod
    def sample(self, texts: Sequence[str], *, seed: int) -> list[list[int]]:
        """One random segmentation of each text; the same seed gives the same ids in any process.

        Raises:
            ConfigError: this tokenizer has one segmentation only.
        """

    @abstractmethod
    def _decode(self, ids: list[int]) -> str:
        """The text of `ids`, which are all below `vocab_size`; no exception for any sequence."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, as one line.

        Specials and values that are no id are left out, so are bytes that do
        not form a character (a model may stop in the middle of one). A line
        end becomes a space. An unknown piece reads as U+2047.
        """
        return self.decode_text(ids).translate(_LINE_ENDS)

    def decode_text(self, ids: Sequence[int]) -> str:
        """The text of `ids` with its line ends: what `decode` gives otherwise."""
        return self._decode([int(i) for i in ids if 0 <= i < self.vocab_size])

    @abstractmethod
    def pieces(self, ids: Sequence[int]) -> list[str]:
        """A name to show for each id; not for joining into text, which `decode` does."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Plain values and bytes from which `tokenizer_from_state` makes an equal tokenizer."""
