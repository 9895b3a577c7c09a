"""The corpora by name: each function gives a `Corpus` from plain arguments.

A corpus known by name comes from a pinned original and is prepared once below
`folder`; a user's own files are read where they are, and only their line
indices are kept below `folder`. To add one, write its function, here or in a
file of its own as `headloom.data.homeassistant` does, and its option in
`headloom.config.schema_data`.
"""

from collections.abc import Callable
from pathlib import Path

from headloom.data.conll import open_conll
from headloom.data.files import open_jsonl, open_parallel, open_tsv
from headloom.data.homeassistant import homeassistant
from headloom.data.labelled import Columns, Format, Header, open_labelled
from headloom.data.labelled_corpora import MovieLabels, chinese_reviews, language_id, movie_sentiment
from headloom.data.multi30k import multi30k
from headloom.data.prepared import lines_folder
from headloom.data.split import split_off
from headloom.data.synthetic import DigitTask, SyntheticTask, digits, synthetic
from headloom.data.tatoeba import tatoeba
from headloom.data.text import Corpus, TextPairs
from headloom.errors import ConfigError

__all__ = [
    "DigitTask",
    "MovieLabels",
    "SyntheticTask",
    "chinese_reviews",
    "conll",
    "digits",
    "homeassistant",
    "jsonl",
    "labelled",
    "language_id",
    "movie_sentiment",
    "multi30k",
    "parallel",
    "synthetic",
    "tatoeba",
    "tsv",
]


def parallel(
    *,
    source: Path,
    target: Path,
    valid_source: Path | None = None,
    valid_target: Path | None = None,
    test_source: Path | None = None,
    test_target: Path | None = None,
    valid_share: float | None = None,
    folder: Path,
) -> Corpus:
    """Two text files a split, plain or .gz: line n of one translates line n of the other.

    Exactly one of the validation files and `valid_share` is given; see `split_off`.

    Raises:
        DataError: as `open_parallel` and `split_off`.
        ConfigError: one file of two is given, or both or neither of validation files and share.
    """

    def opened(source: Path, target: Path) -> TextPairs:
        return open_parallel(source, target, cache=lines_folder(folder))

    def optional(split: str, source: Path | None, target: Path | None) -> Callable[[], TextPairs] | None:
        if source is None and target is None:
            return None
        if source is None or target is None:
            raise ConfigError(f"data.{split}_source={source}, data.{split}_target={target}: give both or none")
        return lambda: opened(source, target)

    valid = optional("valid", valid_source, valid_target)
    test = optional("test", test_source, test_target)
    return _own(lambda: opened(source, target), valid, test, valid_share=valid_share, folder=folder)


def tsv(
    *,
    path: Path,
    valid_path: Path | None = None,
    test_path: Path | None = None,
    source_column: int = 0,
    target_column: int = 1,
    valid_share: float | None = None,
    folder: Path,
) -> Corpus:
    """A file of tab-separated columns a split, plain or .gz, without a header; columns count from 0.

    Exactly one of `valid_path` and `valid_share` is given; see `split_off`.

    Raises:
        DataError: as `open_tsv` and `split_off`.
        ConfigError: both or neither of validation file and share, or columns that cannot be.
    """

    def opened(path: Path) -> TextPairs:
        return open_tsv(path, source_column=source_column, target_column=target_column, cache=lines_folder(folder))

    return _own_paths(opened, path, valid_path, test_path, valid_share=valid_share, folder=folder)


def jsonl(
    *,
    path: Path,
    valid_path: Path | None = None,
    test_path: Path | None = None,
    source_field: str = "source",
    target_field: str = "target",
    valid_share: float | None = None,
    folder: Path,
) -> Corpus:
    """A file with a JSON object a line for each split, plain or .gz.

    Exactly one of `valid_path` and `valid_share` is given; see `split_off`.

    Raises:
        DataError: as `open_jsonl` and `split_off`.
        ConfigError: both or neither of validation file and share, or both fields are the same.
    """

    def opened(path: Path) -> TextPairs:
        return open_jsonl(path, source_field=source_field, target_field=target_field, cache=lines_folder(folder))

    return _own_paths(opened, path, valid_path, test_path, valid_share=valid_share, folder=folder)


def labelled(
    *,
    path: Path,
    valid_path: Path | None = None,
    test_path: Path | None = None,
    columns: Columns,
    header: Header,
    format: Format,
    valid_share: float | None = None,
    folder: Path,
) -> Corpus:
    """A file of labelled text a split, plain or .gz: see `open_labelled`.

    Exactly one of `valid_path` and `valid_share` is given; see `split_off`.

    Raises:
        DataError: as `open_labelled` and `split_off`.
        ConfigError: both or neither of validation file and share, or columns that cannot be.
    """

    def opened(path: Path) -> TextPairs:
        return open_labelled(path, columns=columns, header=header, format=format, cache=lines_folder(folder))

    return _own_paths(opened, path, valid_path, test_path, valid_share=valid_share, folder=folder)


def conll(
    *,
    path: Path,
    valid_path: Path | None = None,
    test_path: Path | None = None,
    token_column: int = 0,
    tag_column: int | None = None,
    valid_share: float | None = None,
    folder: Path,
) -> Corpus:
    """A file of tagged words a split, plain or .gz: see `open_conll`.

    Exactly one of `valid_path` and `valid_share` is given; see `split_off`.

    Raises:
        DataError: as `open_conll` and `split_off`.
        ConfigError: both or neither of validation file and share, or columns that cannot be.
    """

    def opened(path: Path) -> TextPairs:
        return open_conll(path, token_column=token_column, tag_column=tag_column, cache=lines_folder(folder))

    return _own_paths(opened, path, valid_path, test_path, valid_share=valid_share, folder=folder)


def _own_paths(
    opened: Callable[[Path], TextPairs],
    path: Path,
    valid_path: Path | None,
    test_path: Path | None,
    *,
    valid_share: float | None,
    folder: Path,
) -> Corpus:
    def optional(path: Path | None) -> Callable[[], TextPairs] | None:
        return None if path is None else lambda: opened(path)

    return _own(lambda: opened(path), optional(valid_path), optional(test_path), valid_share=valid_share, folder=folder)


def _own(
    open_train: Callable[[], TextPairs],
    open_valid: Callable[[], TextPairs] | None,
    open_test: Callable[[], TextPairs] | None,
    *,
    valid_share: float | None,
    folder: Path,
) -> Corpus:
    """Opens the small files first: a fault in them shows before the large one is read."""
    if (open_valid is None) == (valid_share is None):
        given = "neither validation files nor" if valid_share is None else "both validation files and"
        raise ConfigError(f"{given} data.valid_share is given; exactly one of them says what to validate on")
    if valid_share is not None and not 0 < valid_share < 1:
        raise ConfigError(f"data.valid_share={valid_share:g} must be above 0 and below 1")
    test = None if open_test is None else open_test()
    valid = None if open_valid is None else open_valid()
    train = open_train()
    name = train.name
    if valid is None:
        assert valid_share is not None
        train, valid = split_off(train, valid_share, cache=lines_folder(folder))
    return Corpus(name=name, train=train, valid=valid, test=test)
