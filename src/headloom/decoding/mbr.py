"""Minimum-Bayes-risk decoding: the candidate that is most like all candidates."""

from collections.abc import Callable, Sequence

Similarity = Callable[[str, str], float]
"""Of a hypothesis and a reference, larger for more alike."""


def expected_utilities(texts: Sequence[str], weights: Sequence[float], similarity: Similarity) -> list[float]:
    """Of each text, its mean similarity to all of them, itself among them, each counted by its weight.

    The texts stand for what the model could have meant: samples with equal
    weights (Eikema and Aziz 2020, section 5), or hypotheses weighted by their
    probabilities (Kumar and Byrne 2004, section 2). Pairs of equal texts are
    compared once.
    """
    weight_of: dict[str, float] = {}
    for text, weight in zip(texts, weights, strict=True):
        weight_of[text] = weight_of.get(text, 0.0) + weight
    total = sum(weight_of.values())
    utility_of = {
        text: sum(weight * similarity(text, reference) for reference, weight in weight_of.items()) / total
        for text in weight_of
    }
    return [utility_of[text] for text in texts]
