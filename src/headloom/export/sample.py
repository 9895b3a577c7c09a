"""What both programs are to answer: lines of the validation data, or of a file, as ids."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from headloom import build, build_embedding, build_labelled, build_language
from headloom.config import schema_labelled, schema_pretraining, schema_text
from headloom.data.running_text import RunningText
from headloom.data.text import TextPairs, evenly_spread
from headloom.data.tokenizer import tokenizer_from_state
from headloom.data.tokenizer_base import Tokenizer
from headloom.errors import DataError
from headloom.work.base import Trained
from headloom.work.running_text import saved_tokenizer
from headloom.work.translation_scores import lines_of

MAX_LINES = 300
"""Lines of the validation data, at equal distances; a file of the user's is taken whole."""
MAX_PROMPT = 32
"""Longest prompt of a language model, in tokens: the first half of a line, up to here."""


@dataclass(frozen=True)
class Sample:
    """`sources`: as `base.Writer.search` or `base.Reader.outputs` takes them. `references`: of a translation, the texts
    that belong to them, where the data has them."""

    name: str
    sources: Sequence[Sequence[int]]
    references: Sequence[str] | None = None
    lines: Sequence[str] = ()
    """What the sources are the ids of; nothing where they are no text."""


def sample_of(trained: Trained, path: Path | None) -> Sample:
    """Lines of `path`, or of the validation data of the training.

    Raises:
        DataError: they cannot be had, or none holds a token.
    """
    name, lines, references = _lines(trained, path)
    rows = _rows(trained, lines)
    places = [place for place, row in enumerate(rows) if row]
    if not places:
        raise DataError(f"{name} has no line with a token: name a file of lines with sample=FILE")
    return Sample(
        name,
        [rows[place] for place in places],
        None if references is None else [references[place] for place in places],
        [lines[place] for place in places],
    )


def _lines(trained: Trained, path: Path | None) -> tuple[str, list[str], list[str] | None]:
    if path is not None:
        return str(path), lines_of(path), None
    try:
        name, texts = _validation(trained)
    except (DataError, OSError) as error:
        raise DataError(f"the validation data of the training is not here ({error}): set sample=FILE") from error
    if isinstance(texts, RunningText):
        lines = (piece.text for piece in texts.pieces())
        return name, list(islice((line for line in lines if line.strip()), MAX_LINES)), None
    pairs = list(evenly_spread(texts, max_pairs=MAX_LINES))
    is_translation = isinstance(trained.config.task, schema_text.TranslationConfig)
    return name, [source for source, _ in pairs], [target for _, target in pairs] if is_translation else None


def _validation(trained: Trained) -> tuple[str, TextPairs | RunningText]:
    config = trained.config
    match config.task:
        case schema_text.TranslationConfig():
            pairs = build.build_corpus(config.data)
            return f"{pairs.name} valid", pairs.valid
        case schema_labelled.LabelTaskConfig() | schema_labelled.RegressionConfig():
            rows = build_labelled.build_labelled_corpus(config.data)
            return f"{rows.name} valid", rows.valid
        case schema_pretraining.EmbeddingConfig():
            sentences = build_embedding.SentenceCorpus.of(config).corpus
            return f"{sentences.name} valid", sentences.valid
        case _:
            text = build_language.build_text_corpus(config.data)
            return f"{text.name} valid", text.valid


def _rows(trained: Trained, lines: Sequence[str]) -> list[list[int]]:
    """The ids of each line as the model of the checkpoint takes them; none of a line that gives it nothing."""
    config, contents = trained.config, trained.contents
    match config.task:
        case schema_text.TranslationConfig():
            source, _ = build.saved_tokenizers(contents["tokenizers"])
            return _cut(source.encode(lines), config.data.max_length - 1)
        case schema_labelled.LabelTaskConfig() | schema_labelled.RegressionConfig():
            tokenizer = tokenizer_from_state(contents["tokenizers"]["source"])
            encoder = build_labelled.build_encoder(config, tokenizer, contents["labels"])
            return [row.tolist() for row in encoder.rows(lines).ids]
        case schema_text.TaskConfig() if config.model.kind.name == "lm":
            prompts = saved_tokenizer(contents).encode(lines)
            longest = min(MAX_PROMPT, config.data.max_length // 2)
            return [ids[: min(longest, (len(ids) + 1) // 2)] for ids in prompts]
        case _:
            tokenizer = saved_tokenizer(contents)
            return _framed(tokenizer, _cut(tokenizer.encode(lines), config.data.max_length - 2))


def _cut(rows: Iterable[list[int]], longest: int) -> list[list[int]]:
    return [row[:longest] for row in rows]


def _framed(tokenizer: Tokenizer, rows: Iterable[list[int]]) -> list[list[int]]:
    return [[tokenizer.bos_id, *row, tokenizer.eos_id] if row else [] for row in rows]
