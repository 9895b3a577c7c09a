"""Scores of translations, as sacreBLEU gives them; of classes, tags and numbers, counted here.

`bleu`, `chrf` and `ter` take detokenised text, cased, one reference each, and
give what `sacrebleu REFERENCES < HYPOTHESES -m bleu chrf ter` prints: the
signature says how to repeat it.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric


@dataclass(frozen=True)
class Score:
    """A score of a whole corpus, from 0 to 100 (ter may exceed it), and sacreBLEU's signature of how it was made."""

    value: float
    signature: str | None


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """BLEU of the corpus (Papineni et al. 2002) with the 13a tokenizer and exponential smoothing (Post 2018).

    Raises:
        ValueError: the two differ in number, or there are none.
    """
    return _corpus_score(_metric("bleu"), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """chrF2 of the corpus (Popovic 2015): character 1- to 6-grams, recall counts twice.

    Raises:
        ValueError: the two differ in number, or there are none.
    """
    return _corpus_score(_metric("chrf"), hypotheses, references)


def ter(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Translation edit rate of the corpus (Snover et al. 2006): edits for each 100 words of the references, in lower
    case. Lower is better.

    Raises:
        ValueError: the two differ in number, or there are none.
    """
    return _corpus_score(_metric("ter"), hypotheses, references)


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Percentage of hypotheses that are their reference, character by character.

    Raises:
        ValueError: the two differ in number, or there are none.
    """
    _check_numbers(hypotheses, references)
    num_equal = sum(hypothesis == reference for hypothesis, reference in zip(hypotheses, references, strict=True))
    return Score(100 * num_equal / len(references), None)


TRANSLATION_SCORES: Mapping[str, Callable[[Sequence[str], Sequence[str]], Score]] = {
    "bleu": bleu,
    "chrf": chrf,
    "ter": ter,
    "exact_match": exact_match,
}
"""What is said of translations, in the order in which it is said."""
QUICK_SCORES = ("bleu", "chrf")
"""Those of them that a validation waits for: the edits of a model that is not trained yet take long to count."""


def translation_scores(
    hypotheses: Sequence[str], references: Sequence[str], names: Sequence[str] = tuple(TRANSLATION_SCORES)
) -> dict[str, Score]:
    """The scores called `names`: the one place where validation and evaluate.py have them from.

    Raises:
        ValueError: the two differ in number, or there are none.
    """
    return {name: TRANSLATION_SCORES[name](hypotheses, references) for name in names}


@dataclass(frozen=True)
class Resampled:
    """A score with what paired bootstrap resampling says of it: `mean` and `interval` (half of the 95 % confidence
    interval) of the resamples, and the `p_value` of the difference to the first system, None of that one itself."""

    value: float
    mean: float
    interval: float
    p_value: float | None


def paired_bootstrap(
    systems: Sequence[tuple[str, Sequence[str]]], references: Sequence[str], *, num_resamples: int, seed: int
) -> tuple[dict[str, list[Resampled]], dict[str, str]]:
    """BLEU, chrF and TER of named hypotheses, each system tested against the first (Koehn 2004), and the signatures.

    sacreBLEU's own test: `sacrebleu REFERENCES -i A B --paired-bs` with SACREBLEU_SEED=`seed`, which is 1 or more; but
    a system that scores as the first in every resample has p 1, where sacreBLEU says 1 / (num_resamples + 1).
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER
    from sacrebleu.significance import PairedTest

    assert seed > 0, "sacreBLEU takes 0 for no seed"
    for _, hypotheses in systems:
        _check_numbers(hypotheses, references)
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)  # it has no argument for it
    try:
        test = PairedTest(
            [(name, list(hypotheses)) for name, hypotheses in systems],
            {"bleu": BLEU(force=True), "chrf": CHRF(), "ter": TER()},
            [list(references)],
            test_type="bs",
            n_samples=num_resamples,
        )
        signatures, found = test()
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before
    ours = dict(zip(("bleu", "chrf", "ter"), signatures, strict=True))  # it renames metrics: chrF2
    resampled: dict[str, list[Resampled]] = {}
    for name, theirs in ours.items():
        results: list[Any] = found[theirs]
        first, *others = (Resampled(float(r.score), float(r.mean), float(r.ci), r.p_value) for r in results)
        # The first has no p: one that differs from it in that alone scores as it does.
        resampled[name] = [
            first,
            *(replace(r, p_value=1.0) if replace(r, p_value=None) == first else r for r in others),
        ]
    return resampled, {name: str(signatures[theirs]) for name, theirs in ours.items()}


def mutual_chrf(texts: Sequence[str]) -> NDArray[np.float64]:
    """chrF2 of each text, a sentence (rows), against each as its reference (columns), from 0 to 100.

    The numbers of sacreBLEU's `sentence_score`, with the n-grams of a text counted once and not for every pair.
    """
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.helpers import extract_all_char_ngrams

    metric = _metric("chrf")
    assert isinstance(metric, CHRF)
    counts_by_text = [extract_all_char_ngrams(text, metric.char_order, metric.whitespace) for text in texts]
    precision, recall, num_orders = np.zeros((3, len(texts), len(texts)))
    for counts in zip(*counts_by_text, strict=True):  # of one order
        column = {ngram: place for place, ngram in enumerate(dict.fromkeys(chain.from_iterable(counts)))}
        table = np.zeros((len(texts), len(column)), dtype=np.int32)
        for row, of_text in enumerate(counts):
            table[row, [column[ngram] for ngram in of_text]] = list(of_text.values())
        total = table.sum(1)
        matches = np.stack([np.minimum(table, row).sum(1) for row in table])
        both = (total[:, None] > 0) & (total > 0)
        precision += np.divide(matches, total[:, None], out=np.zeros(matches.shape), where=both)
        recall += np.divide(matches, total, out=np.zeros(matches.shape), where=both)
        num_orders += both
    precision, recall = (x / np.maximum(num_orders, 1) for x in (precision, recall))
    factor = metric.beta**2
    below = factor * precision + recall
    return 100 * np.divide((1 + factor) * precision * recall, below, out=np.zeros(below.shape), where=below > 0)


def mutual_bleu(texts: Sequence[str]) -> NDArray[np.float64]:
    """As `mutual_chrf`, BLEU over the n-gram orders that a sentence has, with exponential smoothing."""
    metric = _metric("sentence_bleu")
    return np.array([[metric.sentence_score(text, [reference]).score for reference in texts] for text in texts])


@cache
def _metric(name: str) -> "Metric":
    from sacrebleu.metrics.bleu import BLEU  # loaded here: a translation starts without it
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    match name:
        case "bleu":
            return BLEU(force=True)  # says nothing of text that looks tokenized, three lines at each validation
        case "sentence_bleu":
            return BLEU(effective_order=True)
        case "ter":
            return TER()
        case _:
            return CHRF()


def _check_numbers(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    # sacreBLEU cuts to the shorter of the two without a word in some versions.
    if len(hypotheses) != len(references) or not references:
        raise ValueError(
            f"{len(hypotheses)} hypotheses and {len(references)} references: line n of one must translate what line n "
            "of the other does, and there must be one"
        )


def _corpus_score(metric: "Metric", hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    _check_numbers(hypotheses, references)
    score = metric.corpus_score(hypotheses, [references])
    return Score(float(score.score), str(metric.get_signature()))


@dataclass(frozen=True)
class ClassScore:
    """How one class, tag or kind of entity was found; shares from 0 to 1, and 0 where there is nothing to divide by."""

    name: str
    precision: float
    recall: float
    f1: float
    num_gold: int
    num_predicted: int


def _class_score(name: str, num_correct: int, num_gold: int, num_predicted: int) -> ClassScore:
    precision = num_correct / num_predicted if num_predicted else 0.0
    recall = num_correct / num_gold if num_gold else 0.0
    f1 = 2 * num_correct / (num_gold + num_predicted) if num_gold + num_predicted else 0.0
    return ClassScore(name, precision, recall, f1, num_gold, num_predicted)


def confusion_matrix(gold: np.ndarray, predicted: np.ndarray, *, num_classes: int) -> np.ndarray:
    """How often each class (row) was taken for each (column), as int64."""
    counts = np.bincount(gold.astype(np.int64) * num_classes + predicted, minlength=num_classes * num_classes)
    return counts.reshape(num_classes, num_classes)


def class_scores(confusion: np.ndarray, names: Sequence[str]) -> list[ClassScore]:
    """Precision, recall and F1 of each class, in the order of `names`."""
    correct, gold, predicted = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    return [_class_score(name, int(correct[i]), int(gold[i]), int(predicted[i])) for i, name in enumerate(names)]


def macro_f1(scores: Sequence[ClassScore]) -> float:
    """The mean F1 of the classes that occur in the gold labels or in the predictions; 0 where none does."""
    occurring = [score.f1 for score in scores if score.num_gold + score.num_predicted]
    return sum(occurring) / len(occurring) if occurring else 0.0


def not_bio(tags: Iterable[str]) -> str | None:
    """The first of `tags` that `entities` would not understand: other than O and B or I with the kind behind a dash."""
    return next((tag for tag in tags if tag != "O" and tag.partition("-")[0] not in ("B", "I")), None)


def entities(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """First word, word after the last, and kind of each entity of a sentence tagged with BIO.

    As in the evaluation of CoNLL 2000 (Tjong Kim Sang and Buchholz 2000): an
    entity begins at B-, and at an I- that continues none of its kind.
    """
    found = set()
    start = 0
    kind: str | None = None
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-")
        if kind is not None and (prefix != "I" or name != kind):
            found.add((start, place, kind))
            kind = None
        if prefix in ("B", "I") and kind is None:
            start, kind = place, name
    return found


def entity_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> list[ClassScore]:
    """Scores over all entities of the sentences, named `all`, and then of each kind; one is right when its
    words and its kind are.

    Raises:
        ValueError: a sentence has not one tag for each word on both sides.
    """
    counts: dict[str, list[int]] = {}
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        if len(gold_tags) != len(predicted_tags):
            raise ValueError(f"{len(gold_tags)} gold tags and {len(predicted_tags)} predicted ones for one sentence")
        gold_found, predicted_found = entities(gold_tags), entities(predicted_tags)
        for column, found in enumerate((gold_found & predicted_found, gold_found, predicted_found)):
            for *_, kind in found:
                counts.setdefault(kind, [0, 0, 0])[column] += 1
    total = [sum(column) for column in zip(*counts.values(), strict=True)] or [0, 0, 0]
    return [_class_score("all", *total), *(_class_score(kind, *counts[kind]) for kind in sorted(counts))]


def pearson(first: np.ndarray, second: np.ndarray) -> float:
    """Correlation of two lists of numbers; NaN where one of them does not vary."""
    x, y = (side.astype(np.float64) - side.mean(dtype=np.float64) for side in (first, second))
    norm = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / norm if norm > 0 else math.nan


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Correlation of ranks, equal numbers sharing the mean of theirs (Spearman 1904)."""
    return pearson(_ranks(first), _ranks(second))


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((last - counts + 1 + last) / 2)[place]
