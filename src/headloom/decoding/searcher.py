"""One batch of sentences through one or more encoder-decoders: searched, forced, or looked at.

B sentences of a batch, S source length, T target length.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headloom import metrics
from headloom.data.tokenizer_base import Tokenizer
from headloom.decoding.beam import beam_search
from headloom.decoding.constraints import Constraints
from headloom.decoding.ensemble import Ensemble, Watched
from headloom.decoding.forbidden import ForbiddenPhrases, vocabulary_of
from headloom.decoding.forced import alignment_attention, forced_log_probabilities
from headloom.decoding.mbr import expected_utilities
from headloom.decoding.requests import Beam, Greedy, MinimumBayesRisk, Sample, Search, Utility
from headloom.decoding.sampling import sample_search
from headloom.decoding.search import NOTHING, Hypothesis, StepFunction, greedy_search
from headloom.models.seq2seq import Seq2Seq
from headloom.nn.attention import recording_attention

_SIMILARITY = {Utility.chrf: metrics.mutual_chrf, Utility.bleu: metrics.mutual_bleu}


@dataclass(frozen=True)
class Sentence:
    """A source and what its output must be like, in ids without bos and eos; lengths count eos.

    `forbidden`: texts as `forbidden.phrase_text` gives them.
    """

    source: Sequence[int]
    longest: int
    shortest: int = 0
    seed: int = 0
    prefix: Sequence[int] = ()
    required: Sequence[Sequence[int]] = ()
    forbidden: tuple[str, ...] = ()


class Searcher:
    """The models, which share their tokenizers, and the search.

    The models are on `device`; whoever calls sees to their mode, to autocast and
    to gradients.
    """

    def __init__(
        self,
        models: Sequence[Seq2Seq],
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        *,
        search: Search,
        no_repeat_ngram: int | None,
        device: torch.device,
    ) -> None:
        self.models = models
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.method = search
        self.no_repeat_ngram = no_repeat_ngram
        self.device = device

    def search(self, sentences: Sequence[Sentence]) -> list[list[Hypothesis]]:
        """The hypotheses of each sentence, best first and of distinct texts; `[NOTHING]` where there are none."""
        return self._search(sentences, self.method)

    def _search(self, sentences: Sequence[Sentence], method: Search) -> list[list[Hypothesis]]:
        match method:
            case Greedy():
                found = [[best] for best in self._run(sentences, method, greedy_search)]
            case Beam():
                found = self._run(
                    sentences,
                    method,
                    beam_search,
                    beam_size=method.beam_size,
                    ranking=method.ranking,
                    num_best=method.num_best,
                    source_lengths=[len(sentence.source) for sentence in sentences],
                    key=self.target_tokenizer.decode,
                )
            case Sample():
                samples = self._sample(sentences, method)
                found = [self._distinct(some, len(some)) for some in samples]
            case MinimumBayesRisk():
                found = self._least_risk(sentences, method)
            case _:
                assert_never(method)
        return found

    def _least_risk(self, sentences: Sequence[Sentence], method: MinimumBayesRisk) -> list[list[Hypothesis]]:
        alike = _SIMILARITY[method.utility]
        if isinstance(method.candidates, Sample):
            candidates = self._sample(sentences, method.candidates)
        else:
            candidates = self._search(sentences, replace(method.candidates, num_best=method.candidates.beam_size))
        found = []
        for some in candidates:
            usable = [hypothesis for hypothesis in some if hypothesis is not NOTHING]
            texts = [self.target_tokenizer.decode(hypothesis.ids) for hypothesis in usable]
            highest = max((hypothesis.log_probability for hypothesis in usable), default=0.0)
            by_probability = isinstance(method.candidates, Beam)
            weights = [math.exp(h.log_probability - highest) if by_probability else 1.0 for h in usable]
            utilities = expected_utilities(texts, weights, alike)
            scored = [replace(h, score=utility) for h, utility in zip(usable, utilities, strict=True)]
            found.append(self._distinct(scored, method.num_best))
        return found

    def _distinct(self, hypotheses: Sequence[Hypothesis], num: int) -> list[Hypothesis]:
        """The `num` best, one of each text."""
        by_text: dict[str, Hypothesis] = {}
        for hypothesis in sorted(hypotheses, key=lambda h: (-h.score, -h.log_probability)):
            if hypothesis is not NOTHING:
                by_text.setdefault(self.target_tokenizer.decode(hypothesis.ids), hypothesis)
        return list(by_text.values())[:num] or [NOTHING]

    def _sample(self, sentences: Sequence[Sentence], method: Sample) -> list[list[Hypothesis]]:
        return self._run(
            sentences,
            method,
            sample_search,
            num_samples=method.num_samples,
            truncation=method.truncation,
            seeds=[sentence.seed for sentence in sentences],
        )

    def _run(
        self,
        sentences: Sequence[Sentence],
        method: Greedy | Beam | Sample,
        search: Callable[..., Any],
        **options: Any,
    ) -> Any:
        if isinstance(method, Greedy | Sample):
            penalty = method.repetition_penalty
            coverage = False
        else:
            penalty, coverage = 1.0, method.ranking.coverage_penalty > 0
        with ExitStack() as stack:
            step = self._start(sentences, method.rows_a_sentence, stack, watched=coverage)
            return search(
                step,
                num_sentences=len(sentences),
                bos_id=self.target_tokenizer.bos_id,
                eos_id=self.target_tokenizer.eos_id,
                pad_id=self.target_tokenizer.pad_id,
                max_lengths=[sentence.longest for sentence in sentences],
                constraints=self._constraints(sentences, penalty),
                device=self.device,
                **options,
            )

    def _constraints(self, sentences: Sequence[Sentence], repetition_penalty: float) -> Constraints | None:
        phrases = {
            some: ForbiddenPhrases(vocabulary_of(self.target_tokenizer), some)
            for some in {s.forbidden for s in sentences}
            if some
        }
        constraints = Constraints(
            min_lengths=[s.shortest for s in sentences] if any(s.shortest > 1 for s in sentences) else None,
            prefixes=[s.prefix for s in sentences],
            forbidden=[phrases.get(s.forbidden) for s in sentences],
            required=[s.required for s in sentences],
            no_repeat_ngram=self.no_repeat_ngram,
            repetition_penalty=repetition_penalty,
        )
        return constraints if constraints.edit_steps or any(constraints.required or ()) else None

    def _start(
        self, sentences: Sequence[Sentence], rows_a_sentence: int, stack: ExitStack, *, watched: bool
    ) -> StepFunction:
        source_BS, allowed_BS = self.padded_sources([sentence.source for sentence in sentences])
        longest = max(sentence.longest for sentence in sentences)
        weights = [stack.enter_context(recording_attention(alignment_attention(m))) for m in self.models if watched]
        states: list[StepFunction] = [
            model.start(model.encode(source_BS, allowed_BS), allowed_BS, beam_size=rows_a_sentence, max_length=longest)
            for model in self.models
        ]
        step = states[0] if len(states) == 1 else Ensemble(states)
        return Watched(step, weights) if watched else step

    def force(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Of each pair the log-probability (nats) of every target token and of the eos, and what each attended to.

        attention_TS has a row for each of those, and a column for each source token and the eos.
        """
        tokenizer = self.target_tokenizer
        width = max(map(len, targets)) + 1
        target_BT = torch.tensor(
            [[*ids, tokenizer.eos_id, *[tokenizer.pad_id] * (width - 1 - len(ids))] for ids in targets],
            device=self.device,
        )
        bos_B1 = torch.full((len(targets), 1), tokenizer.bos_id, device=self.device)
        source_BS, allowed_BS = self.padded_sources(sources)
        log_prob_BT, attention_BTS = forced_log_probabilities(
            self.models, source_BS, allowed_BS, torch.cat([bos_B1, target_BT[:, :-1]], dim=1), target_BT
        )
        log_prob = log_prob_BT.double().cpu().numpy()
        attention = attention_BTS.double().cpu().numpy()
        return [
            (log_prob[b, : len(target) + 1], attention[b, : len(target) + 1, : len(source) + 1])
            for b, (source, target) in enumerate(zip(sources, targets, strict=True))
        ]

    def padded_sources(self, sources: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None]:
        """source_BS with eos, and what is real of it; None if all is."""
        tokenizer = self.source_tokenizer
        width = max(map(len, sources)) + 1
        padded = [[*source, tokenizer.eos_id, *[tokenizer.pad_id] * (width - 1 - len(source))] for source in sources]
        source_BS = torch.tensor(padded, device=self.device)
        length_B = torch.tensor([len(source) + 1 for source in sources], device=self.device)
        if int(min(map(len, sources))) + 1 == width:
            return source_BS, None
        return source_BS, torch.arange(width, device=self.device) < length_B[:, None]
