"""What is asked of a translator, and what it answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from headloom.decoding.alignment import Alignment
from headloom.decoding.ranking import BY_PROBABILITY, Ranking
from headloom.decoding.sampling import UNCHANGED, Truncation


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Tokens of an output, eos counted, absolute and as a multiple of the tokens of its source."""

    max_length: int
    max_ratio: float
    min_length: int = 0
    min_ratio: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Greedy:
    repetition_penalty: float = 1.0

    @property
    def rows_a_sentence(self) -> int:
        return 1


@dataclass(frozen=True, kw_only=True)
class Beam:
    beam_size: int
    ranking: Ranking = BY_PROBABILITY
    num_best: int = 1

    @property
    def rows_a_sentence(self) -> int:
        return self.beam_size


@dataclass(frozen=True, kw_only=True)
class Sample:
    """`seed` is mixed with the content of each sentence, unless its request brings a seed of its own."""

    num_samples: int = 1
    truncation: Truncation = UNCHANGED
    seed: int = 1
    repetition_penalty: float = 1.0

    @property
    def rows_a_sentence(self) -> int:
        return self.num_samples


class Utility(Enum):
    chrf = "chrf"
    bleu = "bleu"


@dataclass(frozen=True, kw_only=True)
class MinimumBayesRisk:
    """Of the `candidates` of another search, those that are most like the others: see mbr.py."""

    candidates: Sample | Beam
    utility: Utility = Utility.chrf
    num_best: int = 1

    @property
    def rows_a_sentence(self) -> int:
        return self.candidates.rows_a_sentence


Search = Greedy | Beam | Sample | MinimumBayesRisk


@dataclass(frozen=True, kw_only=True)
class Request:
    """A line to translate. `seed`: of its samples, instead of one that follows from its text."""

    source: str
    prefix: str = ""
    """What the output begins with."""
    required: Sequence[str] = ()
    forbidden: Sequence[str] = ()
    seed: int | None = None


@dataclass(frozen=True)
class Output:
    """A translation, one line. Scores are None where the model was not asked, or gave nothing."""

    text: str
    num_tokens: int = 0
    score: float | None = None
    log_probability: float | None = None
    alignment: Alignment | None = None
    error: str | None = None
    """Why there is none, of a line that should have one."""
