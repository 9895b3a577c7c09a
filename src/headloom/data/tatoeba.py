"""Tatoeba, English to German: short everyday sentences by volunteers.

The collection of manythings.org/anki of 2018-04-07. Many English sentences have
several translations (formal and informal), so BLEU with one reference
underrates a model.
"""

import logging
import unicodedata
import zipfile
from pathlib import Path

from headloom.data.download import fetch_file, sha256_of
from headloom.data.files import open_tsv
from headloom.data.prepared import Pair, Recipe, lines_folder, one_line, prepared_corpus
from headloom.data.split import hold_out
from headloom.data.text import Corpus, TextPairs
from headloom.errors import DataError

logger = logging.getLogger(__name__)

ADDRESS = "https://raw.githubusercontent.com/jhamburg/dats6450_nlp/fc38d83c4353d753fb9b34d98e945cbc5fab2811/deu-eng.zip"
SIZE = 3_995_651
SHA256 = "71750f704aeb6b0a01fe57341c3051b9efd98f63b61ee266b2c2283d1b80cb71"

_ZIP = "deu-eng.zip"
_MEMBER = "deu.txt"
_RECIPE_VERSION = 1  # raise it when the code below makes other pairs from the same zip and numbers
_MIN_HELD_OUT_WORDS = 3
_MAX_HELD_OUT = 2000


def tatoeba(*, folder: Path, path: Path | None = None) -> Corpus:
    """English to German; duplicates dropped, text in NFC, white space made single blanks, split without near-copies.

    `path` is the zip that is already there, a folder that holds it, or a folder
    with a split of one's own as train, val (or valid) and test, .tsv or .tsv.gz,
    English in the first column, which is used as it stands.

    Raises:
        DataError: the zip cannot be fetched or read, or `path` holds none of these.
    """
    archive, sha256 = folder / _ZIP, SHA256
    if path is not None:
        if path.is_dir() and not (path / _ZIP).exists():
            return _split_files(path, cache=lines_folder(folder))
        archive = path / _ZIP if path.is_dir() else path
        sha256 = sha256_of(archive)
        if sha256 != SHA256:
            logger.warning("%s differs from the Tatoeba zip of 2018-04-07: scores do not compare", archive)

    def make() -> dict[str, list[Pair]]:
        if path is None:
            fetch_file(ADDRESS, archive, sha256=SHA256, size=SIZE)
        train, valid, test = hold_out(_read_zip(archive), min_words=_MIN_HELD_OUT_WORDS, max_pairs=_MAX_HELD_OUT)
        if not valid:
            raise DataError(f"{archive} has too few pairs to hold out validation and test pairs")
        return {"train": train, "valid": valid, "test": test}

    recipe = Recipe(
        name="tatoeba-en-de",
        origin="www.manythings.org/anki and tatoeba.org, 2018-04-07; changed: NFC, blanks, no duplicates, split",
        licence="CC BY 2.0 FR",
        rules={"version": _RECIPE_VERSION, "sha256": sha256, "held_out": [_MIN_HELD_OUT_WORDS, _MAX_HELD_OUT]},
    )
    return prepared_corpus(recipe, make, folder=folder)


def _read_zip(path: Path) -> list[Pair]:
    """The distinct pairs, in the order of the file."""
    try:
        with zipfile.ZipFile(path) as archive:
            text = archive.read(_MEMBER).decode("utf-8-sig")
    except (OSError, zipfile.BadZipFile, KeyError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as a zip with {_MEMBER} in UTF-8: {error}") from error
    pairs: dict[Pair, None] = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        columns = unicodedata.normalize("NFC", line).split("\t")  # newer releases have attribution as a third column
        if len(columns) < 2:
            raise DataError(f"{path}: line {number} of {_MEMBER} has no tab between English and German")
        source, target = one_line(columns[0]), one_line(columns[1])
        if source and target:
            pairs[source, target] = None
    return list(pairs)


def _split_files(path: Path, *, cache: Path) -> Corpus:
    def opened(*stems: str) -> TextPairs:
        names = [f"{stem}{suffix}" for stem in stems for suffix in (".tsv", ".tsv.gz")]
        for name in names:
            if (path / name).is_file():
                return open_tsv(path / name, cache=cache)
        raise DataError(f"data.path={path} holds neither {_ZIP} nor {' or '.join(names)}")

    return Corpus(name="tatoeba-en-de", train=opened("train"), valid=opened("val", "valid"), test=opened("test"))
