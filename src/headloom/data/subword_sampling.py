"""Random segmentation of words into the pieces of a SentencePiece model.

SentencePiece can sample too, but from a generator that is salted anew in each
process (version 0.2.3), so that a resumed run would read other ids than the
one it continues. Here a draw is a function of the model, the text and the
`random.Random` that is handed in. `tests/data/test_subword_sampling.py` holds
both against SentencePiece where nothing is left to chance.
"""

import math
import re
import sys
from abc import ABC, abstractmethod
from bisect import bisect
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from random import Random
from typing import NamedTuple

from headloom.data.sentencepiece_model import Piece, PieceType

SPACE = "\u2581"  # what SentencePiece writes for a space
_CACHED_WORDS = 1 << 16
_CACHED_LENGTH = 32  # characters; longer words are rare, and large once prepared
_UNKNOWN_PENALTY = 10.0  # how far below the worst piece an unknown character scores: kUnkPenalty of SentencePiece


class SubwordSampler(ABC):
    """Draws segmentations of normalized text, a word at a time where no piece spans two words."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._ids = {
            piece.text: i for i, piece in enumerate(pieces) if piece.type in (PieceType.normal, PieceType.user_defined)
        }
        self._scores = {piece.text: piece.score for piece in pieces if piece.type is PieceType.normal}
        self._unknown = next(i for i, piece in enumerate(pieces) if piece.type is PieceType.unknown)
        self._bytes = {int(piece.text[1:-1], 16): i for i, piece in enumerate(pieces) if piece.type is PieceType.byte}
        self._user_defined = {piece.text for piece in pieces if piece.type is PieceType.user_defined}
        longest_first = sorted(self._user_defined, key=len, reverse=True)
        self._symbol = re.compile("|".join([*map(re.escape, longest_first), "."]), re.DOTALL)
        self._by_word = not any(SPACE in text[1:] for text in self._ids)

    def sample(self, normalized: str, random: Random) -> list[int]:
        """Ids of one segmentation of a text that the model has normalized."""
        words = [normalized]
        if self._by_word:
            first, *others = normalized.split(SPACE)
            words = [first] * bool(first) + [SPACE + word for word in others]
        ids: list[int] = []
        for word in words:
            for i in self._sample_word(word, random):
                if i == self._unknown and ids and ids[-1] == i:
                    continue  # neighbouring unknown characters are one unknown piece
                ids.append(i)
        return ids

    @abstractmethod
    def _sample_word(self, word: str, random: Random) -> list[int]: ...

    def _ids_of(self, symbol: str) -> list[int]:
        known = self._ids.get(symbol)
        if known is not None:
            return [known]
        if self._bytes:
            return [self._bytes[byte] for byte in symbol.encode("utf-8")]
        return [self._unknown]


class _Merges(NamedTuple):
    """A word before any merge, and what the plain encoding makes of it."""

    symbols: list[str]
    costs: list[float]  # of merging each symbol with the next; infinite where that is no piece
    places: list[int]  # of the merges of the plain encoding, in order
    ids: list[int]  # after them


class BpeDropout(SubwordSampler):
    """BPE-dropout (Provilkov et al. 2020, algorithm 1).

    At each step every possible merge is dropped with `probability` and the
    best of the others is made; a word ends when none is left. Which of the
    merges, from the best on, is the first that is kept has a geometric
    distribution, and so has the number of steps before a best merge is first
    dropped: one draw tells for most words that nothing is dropped that counts.
    """

    def __init__(self, pieces: Sequence[Piece], *, probability: float) -> None:
        super().__init__(pieces)
        self._probability = probability
        self._log_dropped, self._log_kept = _log(probability), _log(1.0 - probability)
        self._costs = {text: -score for text, score in self._scores.items()}
        self._prepared = lru_cache(_CACHED_WORDS)(self._prepare)

    def _sample_word(self, word: str, random: Random) -> list[int]:
        plain = self._prepared(word) if len(word) <= _CACHED_LENGTH else self._prepare(word)
        num_kept = _run_length(random, self._log_kept)
        if num_kept >= len(plain.places):
            return plain.ids
        symbols, costs = list(plain.symbols), list(plain.costs)
        for at in plain.places[:num_kept]:
            self._merge(symbols, costs, at)
        best = _best_after(costs, 1 + _run_length(random, self._log_dropped))
        while best < math.inf:
            self._merge(symbols, costs, costs.index(best))
            if random.random() >= self._probability:
                best = min(costs, default=math.inf)
            else:
                best = _best_after(costs, 1 + _run_length(random, self._log_dropped))
        return [i for symbol in symbols for i in self._ids_of(symbol)]

    def _prepare(self, word: str) -> _Merges:
        symbols = self._symbol.findall(word)
        costs = [self._cost(left, right) for left, right in pairwise(symbols)]
        merged, left_over, places = list(symbols), list(costs), []
        while (best := min(left_over, default=math.inf)) < math.inf:
            places.append(left_over.index(best))
            self._merge(merged, left_over, places[-1])
        return _Merges(symbols, costs, places, [i for symbol in merged for i in self._ids_of(symbol)])

    def _merge(self, symbols: list[str], costs: list[float], at: int) -> None:
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        del costs[at]
        if at > 0:
            costs[at - 1] = self._cost(symbols[at - 1], symbols[at])
        if at < len(costs):
            costs[at] = self._cost(symbols[at], symbols[at + 1])

    def _cost(self, left: str, right: str) -> float:
        if self._user_defined and not self._user_defined.isdisjoint((left, right)):
            return math.inf
        return self._costs.get(left + right, math.inf)


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf


def _run_length(random: Random, log_probability: float) -> int:
    """How often in a row something of this probability happens before it first does not."""
    if log_probability == 0:
        return sys.maxsize
    return int(math.log(1.0 - random.random()) / log_probability)


def _best_after(costs: list[float], num_dropped: int) -> float:
    """The lowest finite cost when that many of the lowest are left out; infinite when none is left."""
    candidates = sorted(cost for cost in costs if cost < math.inf)
    return candidates[num_dropped] if num_dropped < len(candidates) else math.inf


class UnigramSampling(SubwordSampler):
    """Subword regularization over all segmentations (Kudo 2018, section 3.2, with l = infinity).

    A segmentation has a probability in proportion to P(segmentation)^alpha.
    It is drawn exactly: sums over all ways to reach each position going
    forward, then piece by piece going back.
    """

    def __init__(self, pieces: Sequence[Piece], *, alpha: float) -> None:
        super().__init__(pieces)
        self._alpha = alpha
        scores = list(self._scores.values())
        self._unknown_score = min(scores) - _UNKNOWN_PENALTY
        for text in self._user_defined:  # as SentencePiece scores them: ahead of any other way
            self._scores[text] = len(text.encode("utf-8")) * max(scores) - 0.1
        self._longest = max(map(len, self._ids))
        self._prepared = lru_cache(_CACHED_WORDS)(self._prepare)

    def _sample_word(self, word: str, random: Random) -> list[int]:
        lattice = self._prepared(word) if len(word) <= _CACHED_LENGTH else self._prepare(word)
        pieces: list[str] = []
        end = len(word)
        while end:
            starts, cumulative = lattice[end]
            chosen = bisect(cumulative, random.random() * cumulative[-1], hi=len(starts) - 1)
            pieces.append(word[starts[chosen] : end])
            end = starts[chosen]
        return [i for piece in reversed(pieces) for i in self._ids_of(piece)]

    def _prepare(self, word: str) -> list[tuple[list[int], list[float]]]:
        """For each end of a piece: where it may start, and the cumulated weights of the starts."""
        lattice: list[tuple[list[int], list[float]]] = [([], [])]
        log_sums = [0.0]  # of the weights of all ways to each position
        for end in range(1, len(word) + 1):
            starts, weights = [], []
            for start in range(max(0, end - self._longest), end):
                score = self._scores.get(word[start:end])
                if score is None:
                    if end - start > 1:
                        continue
                    score = self._unknown_score
                starts.append(start)
                weights.append(self._alpha * score + log_sums[start])
            top = max(weights)
            cumulative, total = [], 0.0
            for weight in weights:
                total += math.exp(weight - top)
                cumulative.append(total)
            lattice.append((starts, cumulative))
            log_sums.append(top + math.log(total))
        return lattice
