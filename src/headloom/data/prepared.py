"""Corpora that are made once from something else, and kept as TSV files.

A prepared corpus is a folder `NAME-HASH` with train.tsv, valid.tsv, test.tsv
and manifest.json. HASH is of the recipe: everything that decides the pairs. So
another language, another original or a changed recipe makes another folder.
The folder is written beside its name and renamed, so it is whole or not there,
and two processes may prepare it at once. The manifest holds the SHA-256 of each
file; one that was edited is refused, because a run could not be repeated with
it.
"""

import hashlib
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headloom.data.download import sha256_of
from headloom.data.files import open_tsv
from headloom.data.text import Corpus
from headloom.errors import DataError

logger = logging.getLogger(__name__)

SPLITS = ("train", "valid", "test")
_FORMAT = 1
_MANIFEST = "manifest.json"

Pair = tuple[str, str]


@dataclass(frozen=True)
class Recipe:
    """How a corpus is made, as plain values."""

    name: str
    """Of the corpus, such as homeassistant-en-de."""
    origin: str
    """Where the text is from, and what was done to it."""
    licence: str
    """Terms of the text."""
    rules: Mapping[str, Any]
    """All that decides the pairs: version of the code, numbers, patterns, SHA-256 of the originals."""

    @property
    def folder_name(self) -> str:
        rules = json.dumps([_FORMAT, self.name, self.rules], sort_keys=True, ensure_ascii=True)
        return f"{self.name}-{hashlib.sha256(rules.encode()).hexdigest()[:12]}"


def prepared_corpus(recipe: Recipe, make: Callable[[], Mapping[str, Iterable[Pair]]], *, folder: Path) -> Corpus:
    """The corpus of `recipe` below `folder`; `make` gives the pairs of each of SPLITS when it is not there.

    Raises:
        DataError: the folder cannot be written to, or a prepared file was changed; and whatever `make` raises.
    """
    place = folder / recipe.folder_name
    if not place.exists():
        _write(place, recipe, make())
    _check(place)
    train, valid, test = (open_tsv(place / f"{split}.tsv", cache=lines_folder(folder)) for split in SPLITS)
    return Corpus(name=recipe.name, train=train, valid=valid, test=test)


def lines_folder(folder: Path) -> Path:
    """Where the line indices and unpacked copies of `headloom.data.files` lie below data.folder."""
    return folder / "lines"


def one_line(text: str) -> str:
    """`text` with each run of white space, line ends and tabs too, as one blank, and none at the ends."""
    return " ".join(text.split())


def _write(place: Path, recipe: Recipe, splits: Mapping[str, Iterable[Pair]]) -> None:
    partial = place.with_name(f".partial-{place.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        partial.mkdir(parents=True)
        files = {f"{split}.tsv": _write_tsv(partial / f"{split}.tsv", splits[split]) for split in SPLITS}
        manifest = {
            "format": _FORMAT,
            "name": recipe.name,
            "origin": recipe.origin,
            "licence": recipe.licence,
            "rules": dict(recipe.rules),
            "files": files,
        }
        text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
        (partial / _MANIFEST).write_text(text, encoding="utf-8", newline="\n")
        _rename(partial, place)
    except OSError as error:
        raise DataError(f"{place} cannot be written: {error.strerror or error}; choose another data.folder") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    counts = ", ".join(f"{files[f'{split}.tsv']['num_pairs']:,} {split}" for split in SPLITS)
    logger.info("prepared %s: %s pairs in %s", recipe.name, counts, place)


def _rename(partial: Path, place: Path) -> None:
    try:
        partial.rename(place)
    except OSError:
        if not place.exists():
            raise
        # Another process was faster; it made the same files from the same recipe.


def _write_tsv(path: Path, pairs: Iterable[Pair]) -> dict[str, Any]:
    digest = hashlib.sha256()
    num_pairs = 0
    with path.open("wb") as out:
        for source, target in pairs:
            line = f"{source}\t{target}\n"
            assert (line.count("\t"), line.count("\n")) == (1, 1), "a prepared text is one line without tabs"
            encoded = line.encode("utf-8")
            digest.update(encoded)
            out.write(encoded)
            num_pairs += 1
    return {"sha256": digest.hexdigest(), "num_pairs": num_pairs}


def _check(place: Path) -> None:
    remedy = f"delete {place} to prepare it again, or train on a text of your own with data=tsv"
    manifest = place / _MANIFEST
    try:
        files = {name: entry["sha256"] for name, entry in json.loads(manifest.read_bytes())["files"].items()}
        expected = [(place / f"{split}.tsv", files[f"{split}.tsv"]) for split in SPLITS]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{manifest} cannot be read ({error}); {remedy}") from error
    for path, sha256 in expected:
        if not path.exists():
            raise DataError(f"{path} is missing; {remedy}")
        if sha256_of(path) != sha256:
            raise DataError(f"{path} was changed after it was prepared; {remedy}")
