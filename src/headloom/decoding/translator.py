"""From lines of text to lines of text: what validation, evaluate.py and translate.py share.

B sentences of a batch, S source length.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headloom.bar import progress_bar
from headloom.data.tokenizer_base import Tokenizer
from headloom.decoding.search import NOTHING, Hypothesis, beam_search
from headloom.models.seq2seq import Seq2Seq

logger = logging.getLogger(__name__)

FIRST_LINES = 16
"""Lines that `stream` holds back at first; twice as many each time, up to `buffer_lines`."""

SPARE_TOKENS = 10
"""Tokens an output may have whatever its source; `max_ratio` says how many more for each token of the source."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """`model` in evaluation mode without gradients; afterwards each module is in the mode it was in.

    Not `torch.inference_mode`: what a model makes on the way and keeps (a table
    of positions that grew) could then not be used in training.
    """
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


class Translator:
    """Translates lines with a model and the two tokenizers it was trained with.

    `max_length` and `max_ratio` limit an output: to `max_length` tokens, to
    `max_ratio` times the tokens of its source and SPARE_TOKENS more, and to the
    positions of the model; eos counts. A source of more than
    `max_source_length` tokens (None: no limit), or than the model has
    positions, is cut, eos counted. A batch has at most `max_tokens` tokens:
    sentences times beam times longest possible output, which is what the
    key/value cache holds. The result of a line depends on nothing but the line
    and, within the rounding of the model's arithmetic, on no batch.

    The model is on `device`, and stays in the mode it is in.
    """

    def __init__(
        self,
        model: Seq2Seq,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        *,
        beam_size: int,
        length_penalty: float,
        max_length: int,
        max_ratio: float,
        max_tokens: int,
        device: torch.device,
        autocast_dtype: torch.dtype | None,
        max_source_length: int | None = None,
    ) -> None:
        self.model = model
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.beam_size = beam_size
        self.length_penalty = length_penalty
        self.max_length = max_length
        self.max_ratio = max_ratio
        self.max_tokens = max_tokens
        self.device = device
        self.autocast_dtype = autocast_dtype
        self.max_source_length = max_source_length
        if model.max_length is not None:
            if max_length > model.max_length:
                logger.warning(
                    "outputs end at %d tokens, the positions of the model (decoding.max_length is %d)",
                    model.max_length,
                    max_length,
                )
            self.max_length = min(max_length, model.max_length)
            self.max_source_length = min(max_source_length or model.max_length, model.max_length)

    def translate(self, lines: Sequence[str], *, description: str | None = None) -> list[str]:
        """The translation of each line, in the order of `lines`, each one line.

        A line of nothing but white space (of any script), or that the tokenizer
        makes nothing of, gives "" and does not reach the model. With a
        `description` a progress bar of that name counts the sentences on
        stderr, if that is a terminal.
        """
        counts = _Counts()
        outputs = self._translate(lines, counts, description)
        counts.report()
        return outputs

    def stream(self, lines: Iterable[str | None], *, buffer_lines: int) -> Iterator[str]:
        """The translation of each line, in order, without waiting for the last.

        Lines are held back to be translated together: few at first, so that the
        first translation comes soon, up to `buffer_lines`. A None among `lines`
        says that the next line is not there yet: what is held is then
        translated at once (see `arrival.as_they_arrive`).
        """
        counts = _Counts()
        held: list[str] = []
        room = min(FIRST_LINES, buffer_lines)
        try:
            for line in lines:
                if line is not None:
                    held.append(line)
                if len(held) >= room or (held and line is None):
                    yield from self._translate(held, counts, None)
                    held = []
                    room = min(2 * room, buffer_lines)
            yield from self._translate(held, counts, None)
        finally:
            counts.report()

    def search(
        self, sources: Sequence[Sequence[int]], *, num_best: int = 1, description: str | None = None
    ) -> list[list[Hypothesis]]:
        """The `num_best` hypotheses of each source, best first, in the order of `sources`.

        Sources are ids without eos, none of them empty. Sentences of similar
        length are searched together, the longest first.

        Raises:
            ValueError: `num_best` is not between 1 and the beam size.
        """
        found: list[list[Hypothesis]] = [[] for _ in sources]
        shown = description is not None
        dtype = self.autocast_dtype
        with (
            evaluating(self.model),
            torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None),  # converts weights once a call
            progress_bar(total=len(sources), desc=description, unit="sentence", is_wanted=shown) as bar,
        ):
            for rows in self._batches([len(source) for source in sources]):
                batch = self._search_batch([sources[row] for row in rows], num_best)
                for row, hypotheses in zip(rows, batch, strict=True):
                    found[row] = hypotheses
                bar.update(len(rows))
        return found

    def _translate(self, lines: Sequence[str], counts: "_Counts", description: str | None) -> list[str]:
        written = [row for row, line in enumerate(lines) if line.strip()]
        encoded = self.source_tokenizer.encode([lines[row] for row in written])
        sources = {row: ids for row, ids in zip(written, encoded, strict=True) if ids}
        counts.lines += len(lines)
        if self.max_source_length is not None:
            room = self.max_source_length - 1  # for eos
            counts.longest_source = self.max_source_length
            counts.cut += sum(len(ids) > room for ids in sources.values())
            sources = {row: ids[:room] for row, ids in sources.items()}
        found = self.search(list(sources.values()), description=description)
        outputs = [""] * len(lines)
        for row, [best] in zip(sources, found, strict=True):
            outputs[row] = self.target_tokenizer.decode(best.ids)
            counts.without_output += best is NOTHING
        return outputs

    def _longest_output(self, num_source_tokens: int) -> int:
        return min(self.max_length, int(self.max_ratio * num_source_tokens) + SPARE_TOKENS)

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Row numbers of each batch; the first row of a batch is its longest."""
        batch: list[int] = []
        tokens_a_row = 0
        for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
            if batch and (len(batch) + 1) * tokens_a_row > self.max_tokens:
                yield batch
                batch = []
            if not batch:
                tokens_a_row = self.beam_size * max(lengths[row] + 1, self._longest_output(lengths[row]))
            batch.append(row)
        if batch:
            yield batch

    def _search_batch(self, sources: Sequence[Sequence[int]], num_best: int) -> list[list[Hypothesis]]:
        source_BS, allowed_BS = self._padded(sources)
        max_lengths = [self._longest_output(len(source)) for source in sources]
        memory_BSD = self.model.encode(source_BS, allowed_BS)
        return beam_search(
            self.model.start(memory_BSD, allowed_BS, beam_size=self.beam_size, max_length=max(max_lengths)),
            num_sentences=len(sources),
            beam_size=self.beam_size,
            bos_id=self.target_tokenizer.bos_id,
            eos_id=self.target_tokenizer.eos_id,
            pad_id=self.target_tokenizer.pad_id,
            max_lengths=max_lengths,
            length_penalty=self.length_penalty,
            num_best=num_best,
            device=self.device,
        )

    def _padded(self, sources: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None]:
        """source_BS with eos, and what is real of it; None if all is."""
        tokenizer = self.source_tokenizer
        width = max(map(len, sources)) + 1
        padded = [[*source, tokenizer.eos_id, *[tokenizer.pad_id] * (width - 1 - len(source))] for source in sources]
        source_BS = torch.tensor(padded, device=self.device)
        length_B = torch.tensor([len(source) + 1 for source in sources], device=self.device)
        if int(min(map(len, sources))) + 1 == width:
            return source_BS, None
        return source_BS, torch.arange(width, device=self.device) < length_B[:, None]


@dataclass
class _Counts:
    """What happened to the lines of one call, for one warning of each kind."""

    lines: int = 0
    cut: int = 0
    longest_source: int = 0
    without_output: int = 0

    def report(self) -> None:
        if self.cut:
            logger.warning(
                "%d of %d lines are longer than %d tokens, the longest source of this model (data.max_length, "
                "position.max_length): translated up to there",
                self.cut,
                self.lines,
                self.longest_source,
            )
        if self.without_output:
            logger.warning(
                "%d of %d lines have no translation: the model's logits are not finite. Has its training diverged?",
                self.without_output,
                self.lines,
            )
