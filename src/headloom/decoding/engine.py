"""Another program that searches in place of our own: what a translator asks of it."""

from collections.abc import Sequence
from typing import Protocol

from headloom.data.tokenizer_base import Tokenizer
from headloom.decoding.requests import Search
from headloom.decoding.search import Hypothesis
from headloom.decoding.searcher import Sentence


class BatchSearch(Protocol):
    """Searches batch by batch: `searcher.Searcher` is one."""

    def search(self, sentences: Sequence[Sentence]) -> list[list[Hypothesis]]:
        """The hypotheses of each sentence, best first and of distinct texts; `[NOTHING]` where there are none."""
        ...


class Engine(Protocol):
    """A model in the hands of another program."""

    max_length: int | None
    """Longest source or target in tokens, bos and eos included; None: any."""

    num_sentences: int
    """Sentences of similar length that it is given at once: many, so that few of its own batches are not full."""

    def searching(
        self,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        *,
        search: Search,
        no_repeat_ngram: int | None,
    ) -> BatchSearch:
        """Its search with these options.

        Raises:
            ConfigError: it has no such search; the message names the option.
        """
        ...
