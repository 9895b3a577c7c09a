"""Word alignments from attention.

S source tokens, T target tokens.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headloom.data.tokenizer_base import Tokenizer

Alignment = list[tuple[int, int]]
"""Source word and target word that belong together, counted from 0, words divided by white space."""


def word_alignment(
    attention_TS: NDArray[np.float64], source_word_S: Sequence[int], target_word_T: Sequence[int]
) -> Alignment:
    """For each target word the source word that its tokens attend to most, in the order of the target.

    The attention of a word is the sum over its tokens, and so is the attention to
    a word.
    """
    if not len(source_word_S) or not len(target_word_T):
        return []
    num_source, num_target = max(source_word_S) + 1, max(target_word_T) + 1
    to_word_TW = np.zeros((len(target_word_T), num_source))
    for place, word in enumerate(source_word_S):
        to_word_TW[:, word] += attention_TS[: len(target_word_T), place]
    by_word_UW = np.zeros((num_target, num_source))
    for place, word in enumerate(target_word_T):
        by_word_UW[word] += to_word_TW[place]
    return [(int(by_word_UW[word].argmax()), word) for word in sorted(set(target_word_T))]


def words_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """The word, counted from 0 and divided by white space, that each token of a text belongs to.

    A token belongs to the word in which the text up to it ends, so that it
    holds for every tokenizer.
    """
    return [max(len(tokenizer.decode(ids[: place + 1]).split()) - 1, 0) for place in range(len(ids))]
