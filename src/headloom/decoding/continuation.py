"""What a language model writes behind a prompt.

B prompts of a batch, N rows of a search.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headloom.data.tokenizer_base import Tokenizer
from headloom.decoding.beam import beam_search
from headloom.decoding.constraints import Constraints
from headloom.decoding.forbidden import ForbiddenPhrases, phrase_text, vocabulary_of
from headloom.decoding.memory import in_halves
from headloom.decoding.phrases import check_phrases
from headloom.decoding.requests import Beam, Greedy, Sample
from headloom.decoding.sampling import sample_search
from headloom.decoding.search import Hypothesis, greedy_search
from headloom.models.lm import LanguageModel
from headloom.nn.evaluating import evaluating_in


@dataclass(frozen=True)
class Prompt:
    """Ids without bos; none: the start of a text. `seed`: of its samples, instead of one that follows from its ids."""

    ids: Sequence[int]
    seed: int | None = None


class Continuer:
    """Continues prompts with a language model and the tokenizer it was trained with.

    An output ends in eos or has `max_length` tokens, eos counted. Prompt and
    output together may be longer than `context_length`, the longest text that
    the model has seen: the model then goes on from the last half of that length
    (see `LanguageModelState`), and reads no more than the end of a prompt. A
    batch has prompts of one length, and at most `max_tokens` tokens: prompts
    times rows of the search times the longest text, which is what the key/value
    cache holds. The result of a prompt depends on nothing else and, within the
    rounding of the model's arithmetic, on no batch.

    The model is on `device`, and stays in the mode it is in.

    Raises:
        ConfigError: one of the phrases `required` or `forbidden` cannot be asked of an output.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        *,
        search: Greedy | Beam | Sample,
        max_length: int,
        context_length: int,
        max_tokens: int,
        device: torch.device,
        autocast_dtype: torch.dtype | None,
        min_length: int = 0,
        no_repeat_ngram: int | None = None,
        forbidden: Sequence[str] = (),
        required: Sequence[str] = (),
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.method = search
        self.max_length = max_length
        self.context_length = min(context_length, model.max_length or context_length)
        self.max_tokens = max_tokens
        self.device = device
        self.autocast_dtype = autocast_dtype
        self.min_length = min(min_length, max_length)
        self.no_repeat_ngram = no_repeat_ngram
        check_phrases(tokenizer, required=required, forbidden=forbidden)
        phrases = [phrase_text(tokenizer, phrase) for phrase in forbidden]
        self.forbidden = ForbiddenPhrases(vocabulary_of(tokenizer), phrases) if phrases else None
        self.required = [ids for ids in tokenizer.encode(list(required)) if ids]

    def texts(self, prompts: Sequence[str]) -> list[str]:
        """The best continuation of each prompt, as one line; "" where there is none."""
        found = [""] * len(prompts)
        for place, [best, *_] in self.continued([Prompt(ids) for ids in self.tokenizer.encode(prompts)]):
            found[place] = self.tokenizer.decode(best.ids)
        return found

    def continued(self, prompts: Sequence[Prompt]) -> Iterator[tuple[int, list[Hypothesis]]]:
        """The place of each prompt and what it is continued with, best first and at least one, in any order."""
        by_length: dict[int, list[int]] = {}
        for place, prompt in enumerate(prompts):
            by_length.setdefault(min(len(prompt.ids), self.context_length - 1), []).append(place)
        for length, places in sorted(by_length.items(), reverse=True):
            tokens = self.method.rows_a_sentence * min(length + 1 + self.max_length, self.context_length)
            size = max(1, self.max_tokens // tokens)
            for start in range(0, len(places), size):
                batch = [(place, prompts[place]) for place in places[start : start + size]]
                for part, hypotheses in in_halves(batch, self._search):
                    for (place, _), some in zip(part, hypotheses, strict=True):
                        yield place, some

    def _search(self, batch: Sequence[tuple[int, Prompt]]) -> list[list[Hypothesis]]:
        """Prompts that are of one length, as far as the model reads them."""
        prompts = [[self.tokenizer.bos_id, *prompt.ids][-self.context_length :] for _, prompt in batch]
        method = self.method
        options: dict[str, Any] = {
            "num_sentences": len(prompts),
            "bos_id": self.tokenizer.bos_id,
            "eos_id": self.tokenizer.eos_id,
            "pad_id": self.tokenizer.pad_id,
            "max_lengths": [self.max_length] * len(prompts),
            "start_ids": [prompt[-1] for prompt in prompts],
            "constraints": self._constraints([prompt.ids for _, prompt in batch]),
            "device": self.device,
        }
        read_NT = torch.tensor([prompt[:-1] for prompt in prompts], dtype=torch.int64, device=self.device)
        read_NT = read_NT.repeat_interleave(method.rows_a_sentence, dim=0)
        with evaluating_in(self.model, self.device, self.autocast_dtype):
            state = self.model.start(
                read_NT, max_length=len(prompts[0]) + self.max_length, context_length=self.context_length
            )
            match method:
                case Greedy():
                    return [[best] for best in greedy_search(state, **options)]
                case Beam():
                    return beam_search(
                        state,
                        beam_size=method.beam_size,
                        ranking=method.ranking,
                        num_best=method.num_best,
                        key=self.tokenizer.decode,
                        **options,
                    )
                case Sample():
                    seeds = [_seed(method.seed, prompt) for _, prompt in batch]
                    samples = sample_search(
                        state, num_samples=method.num_samples, truncation=method.truncation, seeds=seeds, **options
                    )
                    return [sorted(some, key=lambda hypothesis: -hypothesis.log_probability) for some in samples]

    def _constraints(self, prompts: Sequence[Sequence[int]]) -> Constraints | None:
        penalty = self.method.repetition_penalty if isinstance(self.method, Greedy | Sample) else 1.0
        constraints = Constraints(
            min_lengths=[self.min_length] * len(prompts) if self.min_length > 1 else None,
            forbidden=[self.forbidden] * len(prompts),
            required=[self.required] * len(prompts),
            contexts=prompts,
            no_repeat_ngram=self.no_repeat_ngram,
            repetition_penalty=penalty,
        )
        return constraints if constraints.edit_steps or self.required else None


def _seed(seed: int, prompt: Prompt) -> int:
    """Its own, or one of its content, so that its samples are the same wherever it stands."""
    if prompt.seed is not None:
        return prompt.seed
    content = np.array([seed, *prompt.ids], dtype="<i8").tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
