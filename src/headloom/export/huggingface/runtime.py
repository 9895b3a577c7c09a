"""What transformers makes of an export, read anew.

Shapes: N rows, T length, D model width.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from headloom.config import schema_labelled, schema_pretraining, schema_text
from headloom.config.schema_labelled import PoolingKind
from headloom.export.huggingface.encoder import pooling_of
from headloom.export.huggingface.tokenizer import first_difference, tokenizers_of
from headloom.work.base import Trained

MAX_ROWS = 32
"""Of a batch: sources of one length, so that there is no padding."""


@contextmanager
def quiet() -> Iterator[ModuleType]:
    """The package, which inside says only what is wrong, and shows no progress."""
    import transformers

    log = transformers.utils.logging
    verbosity, shows_progress = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield transformers
    finally:
        log.set_verbosity(verbosity)
        if shows_progress:
            log.enable_progress_bar()


class _Opened:
    """See `base.Tokenizing`."""

    def __init__(self, trained: Trained, folder: Path, auto: str) -> None:
        self.trained = trained
        self.folder = folder
        with quiet() as transformers:
            kind = getattr(transformers, auto)
            self.model: Any = kind.from_pretrained(folder, local_files_only=True).eval()

    def first_difference(self, lines: Sequence[str]) -> int | None:
        with quiet():
            return first_difference(self.trained, self.folder, lines)


class Writing(_Opened):
    """See `base.Writer`."""

    def __init__(self, trained: Trained, folder: Path) -> None:
        self.translates = isinstance(trained.config.task, schema_text.TranslationConfig)
        super().__init__(trained, folder, "AutoModelForSeq2SeqLM" if self.translates else "AutoModelForCausalLM")
        source, self.tokenizer = tokenizers_of(trained)
        self.source_end = source.eos_id

    def search(self, sources: Sequence[Sequence[int]], *, beam_size: int, max_length: int) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in sources]
        by_length = sorted(range(len(sources)), key=lambda place: len(sources[place]))
        for _, group in groupby(by_length, key=lambda place: len(sources[place])):
            places = list(group)
            for first in range(0, len(places), MAX_ROWS):
                some = places[first : first + MAX_ROWS]
                rows = self._search([sources[place] for place in some], beam_size, max_length)
                for place, row in zip(some, rows, strict=True):
                    found[place] = row
        return found

    def _search(self, sources: Sequence[Sequence[int]], beam_size: int, max_length: int) -> list[list[int]]:
        tokenizer = self.tokenizer
        read = [[*ids, self.source_end] if self.translates else [tokenizer.bos_id, *ids] for ids in sources]
        read_NT = torch.tensor(read)
        with quiet() as transformers:
            options = transformers.GenerationConfig(
                num_beams=beam_size,
                do_sample=False,
                max_new_tokens=max_length,
                length_penalty=0.0,
                early_stopping="never" if beam_size > 1 else False,
                suppress_tokens=[tokenizer.pad_id, tokenizer.bos_id],
                decoder_start_token_id=tokenizer.bos_id if self.translates else None,
                eos_token_id=tokenizer.eos_id,
                pad_token_id=tokenizer.pad_id,
            )
            out_NT = self.model.generate(read_NT, attention_mask=torch.ones_like(read_NT), generation_config=options)
        start = 1 if self.translates else read_NT.size(1)
        return [_until(row, tokenizer.eos_id)[: max_length - 1] for row in out_NT[:, start:].tolist()]


def _until(ids: list[int], end: int) -> list[int]:
    return ids[: ids.index(end)] if end in ids else ids


class Reading(_Opened):
    """See `base.Reader`."""

    def __init__(self, trained: Trained, folder: Path) -> None:
        match trained.config.task:
            case schema_labelled.TaggingConfig():
                auto = "AutoModelForTokenClassification"
            case schema_labelled.LabelTaskConfig() | schema_labelled.RegressionConfig():
                auto = "AutoModelForSequenceClassification"
            case schema_pretraining.MaskedLanguageModelingConfig():
                auto = "AutoModelForMaskedLM"
            case _:
                auto = "AutoModel"
        super().__init__(trained, folder, auto)
        self.tokenizer, _ = tokenizers_of(trained)

    @torch.no_grad()
    def outputs(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        return [self._output(torch.tensor([list(row)])).numpy() for row in rows]

    def _output(self, token_1T: torch.Tensor) -> torch.Tensor:
        """The pooling of an embedding is not the class's: it is made here, as docs/export.md says."""
        options = {"attention_mask": torch.ones_like(token_1T)}
        if self.model.config.model_type == "megatron-bert":
            is_end_1T = (token_1T == self.tokenizer.eos_id).int()
            options["token_type_ids"] = ((is_end_1T.cumsum(-1) - is_end_1T) > 0).long()
        answer = self.model(token_1T, **options)
        match self.trained.config.task:
            case schema_pretraining.EmbeddingConfig():
                return _pooled(answer.last_hidden_state[0], pooling_of(self.trained.config))
            case schema_pretraining.MaskedLanguageModelingConfig():
                return answer.logits[0, :, : self.tokenizer.vocab_size]  # the last is the mask itself
            case _:
                return answer.logits[0]


def _pooled(hidden_TD: torch.Tensor, pooling: PoolingKind) -> torch.Tensor:
    match pooling:
        case PoolingKind.cls:
            return hidden_TD[0]
        case PoolingKind.mean:
            return hidden_TD.mean(0)
        case PoolingKind.max:
            return hidden_TD.amax(0)
        case PoolingKind.attention:
            raise AssertionError("it stands in the way")
