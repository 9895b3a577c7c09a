"""Scores of translations, as sacreBLEU gives them.

Both take detokenised text, cased, one reference each, and give what
`sacrebleu REFERENCES < HYPOTHESES` prints: the signature says how to repeat it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF


@dataclass(frozen=True)
class Score:
    """A score of a whole corpus, from 0 to 100, and sacreBLEU's signature of how it was made."""

    value: float
    signature: str


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """BLEU of the corpus (Papineni et al. 2002) with the 13a tokenizer and exponential smoothing (Post 2018).

    Raises:
        ValueError: the two differ in number, or there are none.
    """
    return _corpus_score(BLEU(), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """chrF2 of the corpus (Popovic 2015): character 1- to 6-grams, recall counts twice.

    Raises:
        ValueError: the two differ in number, or there are none.
    """
    return _corpus_score(CHRF(), hypotheses, references)


def sentence_chrf(hypothesis: str, reference: str) -> float:
    """chrF2 of one sentence, from 0 to 100."""
    return float(_SENTENCE_CHRF.sentence_score(hypothesis, [reference]).score)


def sentence_bleu(hypothesis: str, reference: str) -> float:
    """BLEU of one sentence, from 0 to 100, over the n-gram orders that it has, with exponential smoothing."""
    return float(_SENTENCE_BLEU.sentence_score(hypothesis, [reference]).score)


_SENTENCE_CHRF, _SENTENCE_BLEU = CHRF(), BLEU(effective_order=True)


def _corpus_score(metric: Metric, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    # sacreBLEU cuts to the shorter of the two without a word in some versions.
    if len(hypotheses) != len(references) or not references:
        raise ValueError(
            f"{len(hypotheses)} hypotheses and {len(references)} references: line n of one must translate what line n "
            "of the other does, and there must be one"
        )
    score = metric.corpus_score(hypotheses, [references])
    return Score(float(score.score), str(metric.get_signature()))
