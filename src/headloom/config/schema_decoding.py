"""Options of how a model writes: the search, its limits and what an output must and must not hold."""

from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from enum import Enum

from omegaconf import MISSING

from headloom.config import rules
from headloom.errors import ConfigError


class DecodingKind(Enum):
    greedy = "greedy"
    beam = "beam"
    sample = "sample"
    mbr = "mbr"
    score = "score"


class DecodingEngine(Enum):
    auto = "auto"
    headloom = "headloom"
    ctranslate2 = "ctranslate2"


class LengthPenaltyForm(Enum):
    gnmt = "gnmt"  # ((5 + length) / 6) ** a
    power = "power"  # length ** a


class CandidateKind(Enum):
    sample = "sample"
    beam = "beam"


class UtilityKind(Enum):
    chrf = "chrf"
    bleu = "bleu"


@dataclass(kw_only=True)
class DecodingConfig:
    """How the model writes its output, or scores what is written."""

    kind: DecodingKind = MISSING
    """The search; set by decoding=."""
    max_tokens: int = 8192
    """Most tokens of a batch: lines times rows of the search times longest output."""
    engine: DecodingEngine = DecodingEngine.auto
    """What searches: headloom, or ctranslate2 (extra headloom[ctranslate2]), for which a translation checkpoint is
    exported once, in float32, to a folder beside it. auto: of a checkpoint headloom, of a folder that python -m
    headloom.export wrote the program it was written for."""

    def __post_init__(self) -> None:
        rules.follows_group("decoding", "kind", self)
        rules.at_least("decoding.max_tokens", self.max_tokens, 1)


OF_THE_MACHINE = ("max_tokens", "engine")
"""Options that say how it is computed, and change nothing of what is written."""


SMALLEST, LARGEST = 1e-9, 1e9
"""Of factors; beyond them logits, lengths and scores are no longer finite."""
MOST_LENGTH_PENALTY = 10.0
"""Or less than minus that: CTranslate2 has 4096^10 in float32, and little more."""


@dataclass(kw_only=True)
class SearchConfig(DecodingConfig):
    """What every search has: limits and constraints. Lengths are in tokens, eos counted."""

    max_length: int = 256
    """Longest output."""
    max_ratio: float = 3.0
    """Longest output for one sentence: this many times its source tokens, and 10 more."""
    min_length: int = 0
    """Shortest output, where the longest is not shorter."""
    min_ratio: float = 0.0
    """Shortest output for one sentence: this many times its source tokens."""
    no_repeat_ngram: int | None = None
    """No output holds the same this many tokens in a row twice. null: it may."""
    forbidden: list[str] = field(default_factory=list)
    """Phrases that no output holds from the beginning of a word on, in whatever tokens it might spell them: "cat" is
    kept out of "category" too, but not out of "bobcat", and capitals are other letters. In JSON Lines a line adds its
    own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.at_least("decoding.max_length", self.max_length, 1)
        rules.within("decoding.max_ratio", self.max_ratio, SMALLEST, LARGEST)
        rules.at_least("decoding.min_length", self.min_length, 0)
        rules.at_least("decoding.min_ratio", self.min_ratio, 0)
        rules.at_least("decoding.no_repeat_ngram", self.no_repeat_ngram, 1)
        for option in ("forbidden", "required"):
            if "" in getattr(self, option, []):
                raise ConfigError(f"decoding.{option} holds an empty phrase: remove it")
        if self.min_length > self.max_length:
            raise ConfigError(
                f"decoding.min_length={self.min_length} passes decoding.max_length={self.max_length}: lower it"
            )
        if self.min_ratio > self.max_ratio:
            raise ConfigError(
                f"decoding.min_ratio={self.min_ratio} passes decoding.max_ratio={self.max_ratio}: change one of them"
            )


@dataclass(kw_only=True)
class GreedyConfig(SearchConfig):
    """The likeliest token at every step."""

    kind: DecodingKind = DecodingKind.greedy
    """The search; set by decoding=."""
    repetition_penalty: float = 1.0
    """Logits of tokens that the output (or its prompt) already holds are divided by this, negative ones multiplied:
    Keskar et al. (2019), section 4.1. Above 1: less repetition."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.within("decoding.repetition_penalty", self.repetition_penalty, SMALLEST, LARGEST)


@dataclass(kw_only=True)
class BeamConfig(SearchConfig):
    """Beam search: the best outputs grow side by side."""

    kind: DecodingKind = DecodingKind.beam
    """The search; set by decoding=."""
    beam_size: int = 5
    """Outputs that grow side by side."""
    length_penalty: float = 1.0
    """Exponent a of the score, log p divided by the form below. 0: none; larger: longer output; negative: shorter."""
    length_penalty_form: LengthPenaltyForm = LengthPenaltyForm.gnmt
    """gnmt: ((5 + length) / 6)^a, Wu et al. (2016), equation 14; power: length^a."""
    coverage_penalty: float = 0.0
    """Weight b of b * sum over source tokens of log(min(attention received, 1)), added to the score: Wu et al. (2016),
    equation 14. Larger: outputs that leave no part of the source out. Costs the fused kernel of one attention layer
    and a transfer of its weights each step: 2 to 4 % of the time of a small model on a CPU. Encoder-decoders only."""
    num_best: int = 1
    """Outputs of each line, best first and of different texts; divided by tabs. At most beam_size."""
    required: list[str] = field(default_factory=list)
    """Phrases that every output holds, in the tokens that the tokenizer makes of each: Post and Vilar (2018). In JSON
    Lines a line adds its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.at_least("decoding.beam_size", self.beam_size, 1)
        rules.within("decoding.length_penalty", self.length_penalty, -MOST_LENGTH_PENALTY, MOST_LENGTH_PENALTY)
        rules.within("decoding.coverage_penalty", self.coverage_penalty, 0, LARGEST)
        rules.at_least("decoding.num_best", self.num_best, 1)
        if self.num_best > self.beam_size:
            raise ConfigError(
                f"decoding.num_best={self.num_best} passes decoding.beam_size={self.beam_size}: "
                "a beam finds no more outputs than it is wide; raise decoding.beam_size"
            )
        for option in ("required", "coverage_penalty"):
            if getattr(self, option) and self.beam_size == 1:
                raise rules.no_effect(f"decoding.{option}", "decoding.beam_size=1, which takes the likeliest token")


@dataclass(kw_only=True)
class SamplingOptions(SearchConfig):
    """What drawing has: which tokens are drawn from, and how evenly. In the order of the options, each after the one
    before."""

    temperature: float = 1.0
    """Logits are divided by this. Below 1: likelier tokens more often."""
    top_k: int | None = None
    """Only this many likeliest tokens are drawn from. null: all."""
    top_p: float | None = None
    """Only the fewest likeliest tokens that together hold this share of the probability, in (0, 1]: Holtzman et al.
    (2020), section 3.1. null: all."""
    min_p: float | None = None
    """Only tokens at least this share as likely as the likeliest, in (0, 1]: Nguyen et al. (2024), section 3. null:
    all."""
    seed: int = 1
    """Of what is drawn, with the content of each line: a line gets the same output wherever it stands. In JSON Lines a
    line may bring a seed of its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.within("decoding.temperature", self.temperature, SMALLEST, LARGEST)
        rules.at_least("decoding.top_k", self.top_k, 1)
        rules.share("decoding.top_p", self.top_p, with_zero=False, with_one=True)
        rules.share("decoding.min_p", self.min_p, with_zero=False, with_one=True)
        rules.seed("decoding.seed", self.seed)


@dataclass(kw_only=True)
class SampleConfig(SamplingOptions):
    """Tokens drawn at random by their probability."""

    kind: DecodingKind = DecodingKind.sample
    """The search; set by decoding=."""
    num_best: int = 1
    """Outputs drawn for each line; those of different texts are written, likeliest first and divided by tabs."""
    repetition_penalty: float = 1.0
    """Logits of tokens that the output (or its prompt) already holds are divided by this, negative ones multiplied:
    Keskar et al. (2019), section 4.1. Above 1: less repetition."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.at_least("decoding.num_best", self.num_best, 1)
        rules.within("decoding.repetition_penalty", self.repetition_penalty, SMALLEST, LARGEST)


@dataclass(kw_only=True)
class MbrConfig(SamplingOptions):
    """Minimum Bayes risk: of many candidates the one most like the others (Eikema and Aziz 2020). Slow."""

    kind: DecodingKind = DecodingKind.mbr
    """The search; set by decoding=."""
    candidates: CandidateKind = CandidateKind.sample
    """sample: drawn, counted alike; beam: the hypotheses of a beam as wide, counted by their probability."""
    num_candidates: int = 16
    """How many; each is compared with each."""
    utility: UtilityKind = UtilityKind.chrf
    """What likeness is: sentence chrF or sentence BLEU, of sacreBLEU."""
    num_best: int = 1
    """Outputs of each line, best first and of different texts; divided by tabs. At most num_candidates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.at_least("decoding.num_candidates", self.num_candidates, 1)
        rules.at_least("decoding.num_best", self.num_best, 1)
        if self.num_best > self.num_candidates:
            raise ConfigError(
                f"decoding.num_best={self.num_best} passes decoding.num_candidates={self.num_candidates}: lower it"
            )
        if self.candidates is CandidateKind.beam:
            for option in ("temperature", "top_k", "top_p", "min_p", "seed"):
                if getattr(self, option) != getattr(type(self), option):
                    raise rules.no_effect(f"decoding.{option}", "decoding.candidates=beam, which draws nothing")


@dataclass(kw_only=True)
class ScoreConfig(DecodingConfig):
    """Nothing is searched: lines hold a source, a tab and a target, and get the target's log-probability (nats), a tab
    and those of its tokens, eos last. translate.py only."""

    kind: DecodingKind = DecodingKind.score
    """The search; set by decoding=."""


def option_that_was_set(decoding: DecodingConfig) -> str | None:
    """An option that is not what a command does by itself (decoding=beam), with its value; None: there is none."""
    return next(iter(differences(decoding, BeamConfig())), None)


def differences(decoding: DecodingConfig, other: DecodingConfig) -> list[str]:
    """What a command line would set to make `other` out of what it is into `decoding`."""
    chosen = [] if type(decoding) is type(other) else [f"decoding={decoding.kind.name}"]
    base = other if not chosen else type(decoding)()
    values = {f.name: getattr(decoding, f.name) for f in fields(base) if f.name != "kind"}
    changed = {name: value for name, value in values.items() if value != getattr(base, name)}
    return chosen + [f"decoding.{n}={v.name if isinstance(v, Enum) else v}" for n, v in changed.items()]


def as_trained(asked: DecodingConfig, trained: DecodingConfig, given: Collection[str]) -> DecodingConfig:
    """`asked`, with every option that a command line has not set as the validations of the training had it.

    `given`: what the command line sets, such as "decoding.beam_size". With "decoding" among it, or where an option is
    set that the search of the training does not have, `asked` stays as it is.

    Raises:
        ConfigError: the two do not go together; the message names the options.
    """
    if "decoding" in given:
        return asked
    set_here = {name.removeprefix("decoding.") for name in given if name.startswith("decoding.")}
    if not set_here <= {f.name for f in fields(trained)}:
        return asked
    return replace(trained, **{name: getattr(asked, name) for name in {*set_here, *OF_THE_MACHINE}})


def check_search(command: str, decoding: DecodingConfig) -> None:
    """`command` needs outputs, which scoring does not give."""
    if isinstance(decoding, ScoreConfig):
        raise ConfigError(f"decoding=score writes no output and is for translate.py: choose a search for {command}")


def check_engine(decoding: DecodingConfig) -> None:
    """CTranslate2 can search as `decoding` says.

    Raises:
        ConfigError: it has not the search, or an option of it.
    """
    if not isinstance(decoding, GreedyConfig | BeamConfig):
        raise ConfigError(f"CTranslate2 has no decoding={decoding.kind.name}: choose greedy or beam")
    if decoding.max_tokens != DecodingConfig.max_tokens:
        raise rules.no_effect(f"decoding.max_tokens={decoding.max_tokens}", "CTranslate2, which makes its own batches")
    for option in ("repetition_penalty", "coverage_penalty", "required"):
        value = getattr(decoding, option, None)
        if value != getattr(type(decoding)(), option, None):
            raise ConfigError(
                f"CTranslate2 has no decoding.{option}={value}: remove it, or name the checkpoint's own file with "
                "decoding.engine=headloom"
            )
