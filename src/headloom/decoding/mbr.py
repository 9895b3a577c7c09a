"""Minimum-Bayes-risk decoding: the candidate that is most like all candidates."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

MutualSimilarity = Callable[[Sequence[str]], NDArray[np.float64]]
"""Of each text as a hypothesis (rows) with each as a reference (columns), larger for more alike."""


def expected_utilities(texts: Sequence[str], weights: Sequence[float], similarity: MutualSimilarity) -> list[float]:
    """Of each text, its mean similarity to all of them, itself among them, each counted by its weight.

    The texts stand for what the model could have meant: samples with equal
    weights (Eikema and Aziz 2020, section 5), or hypotheses weighted by their
    probabilities (Kumar and Byrne 2004, section 2). Pairs of equal texts are
    compared once.
    """
    weight_of: dict[str, float] = {}
    for text, weight in zip(texts, weights, strict=True):
        weight_of[text] = weight_of.get(text, 0.0) + weight
    if not weight_of:
        return []
    weights_R = np.array(list(weight_of.values()))
    utilities_H = similarity(list(weight_of)) @ weights_R / weights_R.sum()
    utility_of = dict(zip(weight_of, utilities_H.tolist(), strict=True))
    return [utility_of[text] for text in texts]
