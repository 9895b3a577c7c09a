"""A checkpoint as a runtime: what every export is compared with.

Shapes: B rows, T length, V vocabulary.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from headloom import build, build_language
from headloom.config.schema_decoding import BeamConfig, DecodingConfig, GreedyConfig
from headloom.data.tokenizer_base import Tokenizer
from headloom.decoding.beam import beam_search
from headloom.decoding.continuation import Prompt
from headloom.decoding.search import StepFunction
from headloom.decoding.searcher import Sentence
from headloom.models.classifier import Classifier
from headloom.models.embedder import Embedder
from headloom.models.lm import LanguageModel
from headloom.models.masked import MaskedLanguageModel
from headloom.models.seq2seq import Seq2Seq
from headloom.nn.evaluating import evaluating
from headloom.work.base import Trained
from headloom.work.running_text import saved_tokenizer
from headloom.work.translation_use import translator_of

SPARE_TOKENS, MAX_TOKENS = 10, 256


def own_runtime(trained: Trained) -> "OwnTranslation | OwnContinuation | OwnOutputs":
    match trained.model:
        case Seq2Seq():
            return OwnTranslation(trained)
        case LanguageModel():
            return OwnContinuation(trained)
        case _:
            return OwnOutputs(trained)


def _decoding(beam_size: int, max_length: int) -> DecodingConfig:
    if beam_size == 1:
        return GreedyConfig(max_length=max_length)
    return BeamConfig(max_length=max_length, beam_size=beam_size, length_penalty=0.0)


class _Divided:
    """A step function in which `never` has no probability: the other tokens have it."""

    def __init__(self, step: StepFunction, never: Sequence[int]) -> None:
        self.whole = step
        self.never = list(never)

    def step(self, token_N: torch.Tensor) -> torch.Tensor:
        logits_NV = self.whole.step(token_N)
        logits_NV[:, self.never] = -math.inf
        return logits_NV

    def reorder(self, index_N: torch.Tensor) -> None:
        self.whole.reorder(index_N)


def _divided_search(
    state: StepFunction, first_id: int, tokenizer: Tokenizer, beam_size: int, max_length: int
) -> list[int]:
    [[best, *_]] = beam_search(
        _Divided(state, [tokenizer.pad_id, tokenizer.bos_id]),
        num_sentences=1,
        beam_size=beam_size,
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        pad_id=tokenizer.pad_id,
        max_lengths=[max_length],
        start_ids=[first_id],
    )
    return best.ids


class OwnTranslation:
    """See `base.Writer`; `tokenizer` is that of what it writes."""

    def __init__(self, trained: Trained) -> None:
        assert isinstance(trained.model, Seq2Seq)
        self.trained = trained
        self.model = trained.model
        _, self.tokenizer = build.saved_tokenizers(trained.contents["tokenizers"])

    def max_length(self, sources: Sequence[Sequence[int]]) -> int:
        """Tokens of an output, eos counted, that are enough for any line of a sample and that the model can place."""
        enough = min(2 * max(map(len, sources)) + SPARE_TOKENS, MAX_TOKENS)
        return enough if self.model.max_length is None else min(enough, self.model.max_length)

    def search(self, sources: Sequence[Sequence[int]], *, beam_size: int, max_length: int) -> list[list[int]]:
        translator = translator_of(self.trained, _decoding(beam_size, max_length))
        found: list[list[int]] = [[] for _ in sources]
        for places, hypotheses in translator.batches([Sentence(source, max_length) for source in sources]):
            for place, [best, *_] in zip(places, hypotheses, strict=True):
                found[place] = best.ids
        return found

    def divided_search(self, source: Sequence[int], *, beam_size: int, max_length: int) -> list[int]:
        """`search` of one source where the probability of pad and bos is divided among the other tokens."""
        source_1S, _ = translator_of(self.trained, GreedyConfig()).searcher.padded_sources([source])
        with evaluating(self.model):
            memory_1SD = self.model.encode(source_1S, None)
            state = self.model.start(memory_1SD, None, beam_size=beam_size, max_length=max_length)
            return _divided_search(state, self.tokenizer.bos_id, self.tokenizer, beam_size, max_length)

    def log_probabilities(self, source: Sequence[int], target: Sequence[int]) -> list[float]:
        """Of each id of `target`, and of the eos behind it, in nats."""
        translator = translator_of(self.trained, GreedyConfig())
        with translator.computing():
            [(log_prob_T, _)] = translator.searcher.force([source], [target])
        return [float(log_prob) for log_prob in log_prob_T]


class OwnContinuation:
    """See `base.Writer`; `tokenizer` is that of what it writes."""

    def __init__(self, trained: Trained) -> None:
        assert isinstance(trained.model, LanguageModel)
        self.trained = trained
        self.model = trained.model
        self.tokenizer = saved_tokenizer(trained.contents)

    def max_length(self, sources: Sequence[Sequence[int]]) -> int:
        """Tokens of an output, eos counted, with which no text is longer than those of the training."""
        return min(MAX_TOKENS, self.trained.config.data.max_length - 1 - max(map(len, sources)))

    def search(self, sources: Sequence[Sequence[int]], *, beam_size: int, max_length: int) -> list[list[int]]:
        continuer = build_language.build_continuer(
            _decoding(beam_size, max_length),
            self.model,
            self.tokenizer,
            context_length=self.trained.config.data.max_length,
            device=self.trained.device,
            autocast_dtype=self.trained.dtype,
        )
        found: list[list[int]] = [[] for _ in sources]
        for place, [best, *_] in continuer.continued([Prompt(source) for source in sources]):
            found[place] = best.ids
        return found

    def divided_search(self, source: Sequence[int], *, beam_size: int, max_length: int) -> list[int]:
        """`search` of one prompt where the probability of pad and bos is divided among the other tokens."""
        read = [self.tokenizer.bos_id, *source]
        with evaluating(self.model):
            state = self.model.start(torch.tensor([read[:-1]] * beam_size), max_length=len(read) + max_length)
            return _divided_search(state, read[-1], self.tokenizer, beam_size, max_length)

    def log_probabilities(self, source: Sequence[int], target: Sequence[int]) -> list[float]:
        """Of each id of `target`, and of the eos behind it, in nats."""
        tokenizer = self.tokenizer
        token_1T = torch.tensor([[tokenizer.bos_id, *source, *target]])
        target_T = torch.tensor([*target, tokenizer.eos_id])
        with evaluating(self.model):
            logits_TV = self.model.logits(self.model(token_1T)[0, len(source) :])
        return [float(p) for p in logits_TV.double().log_softmax(-1).gather(-1, target_T[:, None])[:, 0]]


class OwnOutputs:
    """See `base.Reader`."""

    def __init__(self, trained: Trained) -> None:
        assert trained.model is not None
        self.model = trained.model

    def outputs(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        with evaluating(self.model):
            return [self._output(torch.tensor([list(row)])).numpy() for row in rows]

    def _output(self, token_1T: torch.Tensor) -> torch.Tensor:
        match self.model:
            case Classifier() | Embedder():
                return self.model(token_1T, None)[0]
            case MaskedLanguageModel():
                return (self.model(token_1T, None) @ self.model.output_weight.T)[0]
            case _:
                raise AssertionError(type(self.model))
