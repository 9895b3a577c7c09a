"""Options of how a model writes: the search and its limits."""

from dataclasses import dataclass
from enum import Enum

from omegaconf import MISSING

from headloom.config import rules


class DecodingKind(Enum):
    greedy = "greedy"
    beam = "beam"


@dataclass(kw_only=True)
class DecodingConfig:
    """How the model writes its output."""

    kind: DecodingKind = MISSING
    """The search; set by decoding=."""
    max_length: int = 256
    """Longest output, in tokens with eos counted."""
    max_ratio: float = 3.0
    """Longest output for one sentence: this many times its source tokens, and 10 more."""
    max_tokens: int = 8192
    """Most tokens of a batch: rows times beam times longest output."""

    def __post_init__(self) -> None:
        rules.follows_group("decoding", "kind", self)
        rules.at_least("decoding.max_length", self.max_length, 1)
        rules.above_zero("decoding.max_ratio", self.max_ratio)
        rules.at_least("decoding.max_tokens", self.max_tokens, 1)


@dataclass(kw_only=True)
class GreedyConfig(DecodingConfig):
    """The likeliest token at every step."""

    kind: DecodingKind = DecodingKind.greedy
    """The search; set by decoding=."""


@dataclass(kw_only=True)
class BeamConfig(DecodingConfig):
    """Beam search: the best outputs grow side by side."""

    kind: DecodingKind = DecodingKind.beam
    """The search; set by decoding=."""
    beam_size: int = 5
    """Outputs that grow side by side."""
    length_penalty: float = 1.0
    """Exponent a of the score log p / ((5 + length) / 6)^a: Wu et al. (2016), equation 14. 0: none; larger: longer
    output."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.at_least("decoding.beam_size", self.beam_size, 1)
        rules.finite("decoding.length_penalty", self.length_penalty)
