"""What a linear model reaches on the same rows: what a user would pick instead.

TF-IDF and logistic regression (ridge regression for numbers) by scikit-learn,
the extra `headloom[baseline]`. Features are words and pairs of words, or
character n-grams; which of them, and how strong the penalty is, is chosen on
the validation rows, so that the baseline is as well tuned as a linear model of
an afternoon. Two texts of a row are described by the TF-IDF values that they
share and those in which they differ. Tagging takes each word with its
neighbours, their endings and shapes.
"""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from headloom import metrics
from headloom.config import schema_labelled
from headloom.config.schema import TrainConfig
from headloom.data.labelled import split_texts
from headloom.data.text import TextPairs
from headloom.errors import ConfigError

logger = logging.getLogger(__name__)

MAX_FEATURES = 200_000
FEATURES = {
    "words": {"analyzer": "word", "ngram_range": (1, 2), "token_pattern": r"\S+"},
    "characters": {"analyzer": "char_wb", "ngram_range": (1, 4)},
}
STRENGTHS = (1.0, 10.0)
"""Inverse strengths of the penalty."""


def require_baseline() -> None:
    """Raises ConfigError where scikit-learn is missing."""
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise ConfigError(
            "baseline=true needs scikit-learn, which is not installed: pip install 'headloom[baseline]'"
        ) from None


def baseline_scores(config: TrainConfig, train: TextPairs, valid: TextPairs, scored: TextPairs) -> dict[str, Any]:
    """Scores of the linear model on `scored`, by the names that the task gives them; `chosen` says what was chosen."""
    match config.task:
        case schema_labelled.ClassificationConfig():
            return _classification(list(train), list(valid), list(scored))
        case schema_labelled.RegressionConfig():
            return _regression(list(train), list(valid), list(scored))
        case schema_labelled.TaggingConfig():
            return _tagging(list(train), list(valid), list(scored))
        case _:
            raise AssertionError(config.task)


Rows = Sequence[tuple[str, str]]


def _logistic(strength: float) -> Any:
    """One logistic regression a class, each against all others: by far the quickest for sparse features."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    return OneVsRestClassifier(LogisticRegression(C=strength, solver="liblinear"))


def _classification(train: Rows, valid: Rows, scored: Rows) -> dict[str, Any]:
    def fitted(x: Any, strength: float) -> Any:
        return _logistic(strength).fit(x, _labels(train))

    def quality(labels: Sequence[str], predicted: Sequence[str]) -> float:
        return float(np.mean([a == b for a, b in zip(labels, predicted, strict=True)]))

    predicted, chosen = _best(train, valid, scored, fitted, lambda rows, out: quality(_labels(rows), out))
    labels = _labels(scored)
    names = sorted({*labels, *predicted})
    number = {name: i for i, name in enumerate(names)}
    gold_N, predicted_N = (np.array([number[name] for name in side]) for side in (labels, predicted))
    confusion = metrics.confusion_matrix(gold_N, predicted_N, num_classes=len(names))
    return {
        "accuracy": quality(labels, predicted),
        "macro_f1": metrics.macro_f1(metrics.class_scores(confusion, names)),
        "chosen": chosen,
    }


def _regression(train: Rows, valid: Rows, scored: Rows) -> dict[str, Any]:
    from sklearn.linear_model import Ridge

    def values(rows: Rows) -> np.ndarray:
        return np.array([float(label) for label in _labels(rows)])

    def fitted(x: Any, strength: float) -> Any:
        return Ridge(alpha=1 / strength).fit(x, values(train))

    def quality(rows: Rows, out: Sequence[float]) -> float:
        found = metrics.pearson(values(rows), np.asarray(out))
        return -1.0 if np.isnan(found) else found

    predicted, chosen = _best(train, valid, scored, fitted, quality)
    gold, out = values(scored), np.asarray(predicted)
    return {
        "mse": float(np.square(gold - out).mean()),
        "pearson": metrics.pearson(gold, out),
        "spearman": metrics.spearman(gold, out),
        "chosen": chosen,
    }


def _best(
    train: Rows,
    valid: Rows,
    scored: Rows,
    fitted: Callable[[Any, float], Any],
    quality: Callable[[Rows, Any], float],
) -> tuple[Any, str]:
    """What the model that does best on `valid` says of `scored`, and which it is."""
    best, answer, chosen = -np.inf, None, ""
    for name, options in FEATURES.items():
        vectors = _vectors(options, train)
        x_train, x_valid, x_scored = (vectors(rows) for rows in (train, valid, scored))
        for strength in STRENGTHS:
            model = fitted(x_train, strength)
            found = quality(valid, model.predict(x_valid))
            logger.info("baseline: %s, C=%g: %.4f on the validation rows", name, strength, found)
            if found > best:
                best, answer, chosen = found, model.predict(x_scored), f"TF-IDF of {name}, C={strength:g}"
    return answer, chosen


def _vectors(options: dict[str, Any], train: Rows) -> Callable[[Rows], Any]:
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(sublinear_tf=True, min_df=2, max_features=MAX_FEATURES, **options)
    vectorizer.fit(text for source, _ in train for text in split_texts(source))

    def vectors(rows: Rows) -> Any:
        texts = [split_texts(source) for source, _ in rows]
        sides = [vectorizer.transform(side) for side in zip(*texts, strict=True)]
        if len(sides) == 1:
            return _narrow(sides[0])
        shared = sides[0].multiply(sides[1])
        # The two sums tell what no single feature does: how much of all is shared.
        sums = shared.sum(1), (sides[0] - sides[1]).power(2).sum(1)
        return _narrow(hstack([shared, abs(sides[0] - sides[1]), *sums]).tocsr())

    return vectors


def _narrow(x: Any) -> Any:
    """`x` with 32-bit indices: liblinear takes no others."""
    x.indices, x.indptr = x.indices.astype(np.int32), x.indptr.astype(np.int32)
    return x


def _tagging(train: Rows, valid: Rows, scored: Rows) -> dict[str, Any]:
    from sklearn.feature_extraction import DictVectorizer

    vectorizer = DictVectorizer()
    x_train = _narrow(vectorizer.fit_transform(_word_features(train)))
    tags = [tag for _, label in train for tag in label.split(" ")]

    headline = "f1" if metrics.not_bio(tags) is None else "accuracy"

    def scores(model: Any, rows: Rows) -> dict[str, float]:
        found = model.predict(_narrow(vectorizer.transform(_word_features(rows)))).tolist()
        gold = [label.split(" ") for _, label in rows]
        accuracy = float(np.mean([a == b for a, b in zip(found, chain.from_iterable(gold), strict=True)]))
        if headline == "accuracy":
            return {"accuracy": accuracy}
        out = iter(found)
        of_all = metrics.entity_scores(gold, [[next(out) for _ in sentence] for sentence in gold])[0]
        return {"accuracy": accuracy, "precision": of_all.precision, "recall": of_all.recall, "f1": of_all.f1}

    best, chosen = None, ""
    for strength in STRENGTHS:
        model = _logistic(strength).fit(x_train, tags)
        found = scores(model, valid)[headline]
        logger.info("baseline: words, C=%g: %s %.4f on the validation rows", strength, headline, found)
        if best is None or found > best[0]:
            best, chosen = (found, model), f"each word with its neighbours, C={strength:g}"
    assert best is not None
    return {**scores(best[1], scored), "chosen": chosen}


def _word_features(rows: Rows) -> Iterator[dict[str, Any]]:
    for source, _ in rows:
        words = ["<s>", *source.split(" "), "</s>"]
        for before, word, after in zip(words[:-2], words[1:-1], words[2:], strict=True):
            yield {
                "lower": word.lower(),
                "shape": re.sub(r"[0-9]", "0", re.sub(r"[a-z]+", "a", re.sub(r"[A-Z]+", "A", word))),
                "end": word[-3:].lower(),
                "start": word[:3].lower(),
                "before": before.lower(),
                "after": after.lower(),
                "before is upper": before[0].isupper(),
                "after is upper": after[0].isupper(),
                "is first": before == "<s>",
            }


def _labels(rows: Rows) -> list[str]:
    return [label for _, label in rows]
