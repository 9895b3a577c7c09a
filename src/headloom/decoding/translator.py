"""From lines of text to lines of text: what validation, evaluate.py and translate.py share.

B sentences of a batch, S source length, T target length.
"""

import hashlib
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from headloom.bar import progress_bar
from headloom.data.tokenizer_base import Tokenizer
from headloom.decoding.alignment import Alignment, word_alignment, words_of
from headloom.decoding.counts import NOT_FINITE, UNMET, Counts
from headloom.decoding.engine import BatchSearch, Engine
from headloom.decoding.forbidden import phrase_text
from headloom.decoding.memory import in_halves
from headloom.decoding.phrases import check_phrases
from headloom.decoding.requests import Limits, MinimumBayesRisk, Output, Request, Sample, Search
from headloom.decoding.search import NOTHING, Hypothesis
from headloom.decoding.searcher import Searcher, Sentence
from headloom.models.seq2seq import Seq2Seq
from headloom.nn.evaluating import evaluating_in
from headloom.nn.packing import packed_weights

logger = logging.getLogger(__name__)

SPARE_TOKENS = 10
"""Tokens an output may have whatever its source; `max_ratio` says how many more for each token of the source."""


class Translator:
    """Translates lines with a model and the two tokenizers it was trained with, or with several such models.

    `limits` bound an output: its longest length is at most `max_length` tokens,
    `max_ratio` times the tokens of its source and SPARE_TOKENS more, and the
    positions of the model; what a request wants in an output always fits, but
    for the last limit. A source of more than `max_source_length` tokens (None: no
    limit), or than the model has positions, is cut, eos counted. A batch has at
    most `max_tokens` tokens: sentences times rows of the search times longest
    possible output, which is what the key/value cache holds; where that is more
    than the memory holds, it is split. The result of a line depends on nothing
    but the line and, within the rounding of the model's arithmetic, on no batch.

    `forbidden` phrases and `required` ones are those of every line; those of a
    request are to be such that `phrases` has nothing against them. Word
    alignments cost a second pass over each output (`with_alignments`). An
    `engine` searches in place of the models, of which there are none then.

    The models are on `device`, and stay in the mode they are in.

    Raises:
        ConfigError: a phrase of every line cannot be asked of an output.
    """

    def __init__(
        self,
        models: Seq2Seq | Sequence[Seq2Seq],
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        *,
        search: Search,
        limits: Limits,
        max_tokens: int,
        device: torch.device,
        autocast_dtype: torch.dtype | None,
        max_source_length: int | None = None,
        no_repeat_ngram: int | None = None,
        forbidden: Sequence[str] = (),
        required: Sequence[str] = (),
        with_alignments: bool = False,
        engine: Engine | None = None,
    ) -> None:
        self.models = nn.ModuleList([models] if isinstance(models, Seq2Seq) else models)
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.method = search
        self.limits = limits
        self.max_tokens = max_tokens
        self.device = device
        self.autocast_dtype = autocast_dtype
        self.max_source_length = max_source_length
        self.with_alignments = with_alignments
        self.searcher = Searcher(
            list(self.models),  # type: ignore[arg-type]  # a ModuleList forgets what it holds
            source_tokenizer,
            target_tokenizer,
            search=search,
            no_repeat_ngram=no_repeat_ngram,
            device=device,
        )
        self.batch_search: BatchSearch = self.searcher
        if engine is not None:
            self.batch_search = engine.searching(
                source_tokenizer, target_tokenizer, search=search, no_repeat_ngram=no_repeat_ngram
            )
        self.engine = engine
        check_phrases(target_tokenizer, required=required, forbidden=forbidden)
        self.forbidden = [phrase_text(target_tokenizer, phrase) for phrase in forbidden]
        self.required = required
        self._required_ids = self._phrases(required)
        holders = self.searcher.models if engine is None else [engine]
        positions = [holder.max_length for holder in holders if holder.max_length is not None]
        self.positions = min(positions) if positions else None
        self.max_length = limits.max_length
        if self.positions is not None:
            if limits.max_length > self.positions:
                logger.warning(
                    "outputs end at %d tokens, the positions of the model (decoding.max_length is %d)",
                    self.positions,
                    limits.max_length,
                )
            self.max_length = min(limits.max_length, self.positions)
            self.max_source_length = min(max_source_length or self.positions, self.positions)

    def translate(self, lines: Sequence[str], *, description: str | None = None) -> list[str]:
        """The translation of each line, in the order of `lines`, each one line.

        A line of nothing but white space (of any script), or that the tokenizer
        makes nothing of, gives "", or its prefix, and does not reach the model. With a
        `description` a progress bar of that name counts the sentences on
        stderr, if that is a terminal.
        """
        texts = [""] * len(lines)
        counts = Counts()
        requests = [Request(source=line) for line in lines]
        with (
            self.computing(),  # around all batches: leaving it drops the packed weights
            progress_bar(total=len(lines), desc=description, unit="line", is_wanted=description is not None) as bar,
        ):
            for row, [best, *_] in self.answers(requests, counts):
                texts[row] = best.text
                bar.update(1)
        counts.report()
        return texts

    def answers(self, requests: Sequence[Request], counts: Counts) -> Iterator[tuple[int, list[Output]]]:
        """The row of each request and its outputs, best first and at least one, batch by batch, in no order."""
        counts.lines += len(requests)
        written = [row for row, request in enumerate(requests) if request.source.strip()]
        encoded = self.source_tokenizer.encode([requests[row].source for row in written])
        sentences: dict[int, Sentence] = {}
        for row, ids in zip(written, encoded, strict=True):
            if ids:
                sentences[row] = self._sentence(self.cut(ids, counts), requests[row])
        for row, request in enumerate(requests):
            if row not in sentences:
                [prefix] = self.target_tokenizer.encode([request.prefix])
                yield row, [Output(self.target_tokenizer.decode(prefix))]
        rows = list(sentences)
        for places, hypotheses in self.batches(list(sentences.values())):
            for place, some in zip(places, hypotheses, strict=True):
                sentence = sentences[rows[place]]
                if some == [NOTHING]:
                    yield rows[place], [Output("", error=self._why_nothing(sentence, counts))]
                else:
                    yield rows[place], self._outputs(sentence, some)

    def _why_nothing(self, sentence: Sentence, counts: Counts) -> str:
        """A sentence has no output: because of what is asked of it, unless its logits are not even finite."""
        if self.batch_search is self.searcher:
            with self.computing():
                [(log_prob_T, _)] = self.searcher.force([sentence.source], [sentence.prefix])
            if not np.isfinite(log_prob_T).all():
                counts.without_output += 1
                return NOT_FINITE
        counts.unmet += 1
        return UNMET

    def search(self, sources: Sequence[Sequence[int]]) -> list[list[Hypothesis]]:
        """The hypotheses of each source, best first, in the order of `sources`: ids without eos, none of them empty."""
        found: list[list[Hypothesis]] = [[] for _ in sources]
        for places, hypotheses in self.batches([self._sentence(source, Request(source="")) for source in sources]):
            for place, some in zip(places, hypotheses, strict=True):
                found[place] = some
        return found

    def batches(self, sentences: Sequence[Sentence]) -> Iterator[tuple[Sequence[int], Sequence[list[Hypothesis]]]]:
        """Places in `sentences` and what was found for them; similar lengths together, the longest first."""
        for batch in self._batches(sentences):
            yield from in_halves(batch, lambda places: self._search([sentences[place] for place in places]))

    def _search(self, sentences: Sequence[Sentence]) -> list[list[Hypothesis]]:
        with self.computing():
            return self.batch_search.search(sentences)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """The models in evaluation mode, in their precision, without gradients; may be nested."""
        dtype = self.autocast_dtype
        with evaluating_in(self.models, self.device, dtype), packed_weights(self.models, dtype or torch.float32):
            yield

    def _outputs(self, sentence: Sentence, hypotheses: Sequence[Hypothesis]) -> list[Output]:
        alignments: Sequence[Alignment | None] = [None] * len(hypotheses)
        if self.with_alignments:
            alignments = self._alignments(sentence, hypotheses)
        decode = self.target_tokenizer.decode
        return [
            Output(decode(h.ids), len(h.ids) + 1, h.score, h.log_probability, alignment)
            for h, alignment in zip(hypotheses, alignments, strict=True)
        ]

    def _alignments(self, sentence: Sentence, hypotheses: Sequence[Hypothesis]) -> list[Alignment]:
        with self.computing():
            forced = self.searcher.force([sentence.source] * len(hypotheses), [h.ids for h in hypotheses])
        source_words = words_of(self.source_tokenizer, sentence.source)
        return [
            word_alignment(attention_TS, source_words, words_of(self.target_tokenizer, hypothesis.ids))
            for hypothesis, (_, attention_TS) in zip(hypotheses, forced, strict=True)
        ]

    def cut(self, ids: list[int], counts: Counts) -> list[int]:
        """As much of a source as the model takes."""
        if self.max_source_length is None or len(ids) < self.max_source_length:
            return ids
        counts.longest_source = self.max_source_length
        counts.cut += 1
        return ids[: self.max_source_length - 1]  # room for eos

    def _sentence(self, source: Sequence[int], request: Request) -> Sentence:
        [prefix] = self.target_tokenizer.encode([request.prefix]) if request.prefix else [[]]
        required = [*self._required_ids, *self._phrases(request.required)]
        longest = min(self.max_length, int(self.limits.max_ratio * len(source)) + SPARE_TOKENS)
        longest = max(longest, len(prefix) + sum(map(len, required)) + 1)
        longest = longest if self.positions is None else min(longest, self.positions)
        seed = request.seed
        if seed is None:
            seed = _seed(self.method, source, prefix)
        return Sentence(
            source=source,
            longest=longest,
            shortest=min(longest, max(self.limits.min_length, math.ceil(self.limits.min_ratio * len(source)))),
            seed=seed,
            prefix=prefix,
            required=required,
            forbidden=(*self.forbidden, *(phrase_text(self.target_tokenizer, text) for text in request.forbidden)),
        )

    def _phrases(self, texts: Sequence[str]) -> list[list[int]]:
        # Nearly every line has none, and asking the tokenizer of nothing costs a line more than all else here.
        return [ids for ids in self.target_tokenizer.encode(list(texts)) if ids] if texts else []

    def _batches(self, sentences: Sequence[Sentence]) -> Iterator[list[int]]:
        rows = self.method.rows_a_sentence
        lengths = [len(sentence.source) for sentence in sentences]
        if self.engine is not None:
            return in_batches(lengths, [1] * len(lengths), self.engine.num_sentences)
        return in_batches(lengths, [rows * max(len(s.source) + 1, s.longest) for s in sentences], self.max_tokens)


def in_batches(lengths: Sequence[int], tokens: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Places of each batch, the longest first: as many as have `max_tokens` if all are as large as the largest."""
    batch: list[int] = []
    tokens_a_place = 0
    for place in sorted(range(len(lengths)), key=lambda place: (-lengths[place], place)):
        if batch and (len(batch) + 1) * max(tokens_a_place, tokens[place]) > max_tokens:
            yield batch
            batch, tokens_a_place = [], 0
        tokens_a_place = max(tokens_a_place, tokens[place])
        batch.append(place)
    if batch:
        yield batch


def _seed(method: Search, source: Sequence[int], prefix: Sequence[int]) -> int:
    """Of the content of a sentence, so that its samples are the same wherever it stands."""
    sampled = method.candidates if isinstance(method, MinimumBayesRisk) else method
    if not isinstance(sampled, Sample):
        return 0
    content = np.array([sampled.seed, len(source), *source, *prefix], dtype="<i8").tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
