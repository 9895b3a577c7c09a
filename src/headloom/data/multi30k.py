"""Multi30k, task 1: captions of photographs, translated by people (Elliott et al. 2016).

29,000 training pairs, 1,014 validation pairs, and the 1,000 test pairs of
2016. Fetched only when asked for. The repository has no licence file: its
terms are shown when it is fetched.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

from headloom.data.download import fetch_file, sha256_of
from headloom.data.files import open_parallel
from headloom.data.prepared import Pair, Recipe, lines_folder, one_line, prepared_corpus
from headloom.data.text import Corpus
from headloom.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

COMMIT = "a3d2e0d26b56f3846f66a952536ffed4e401d05a"
ADDRESS = f"https://raw.githubusercontent.com/multi30k/dataset/{COMMIT}/data/task1/raw"
TERMS = (
    "derived from Flickr30k, provided for researchers and educators, for non-commercial research and educational use; "
    "see https://github.com/multi30k/dataset"
)

FILES = {  # name: (bytes, SHA-256)
    "train.cs.gz": (593827, "a65adb8b32e3bc664f21ecba7a6e7f6950fd1f405e135f7c312faabdb6255077"),
    "train.de.gz": (637044, "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6"),
    "train.en.gz": (568929, "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f"),
    "train.fr.gz": (604242, "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c"),
    "val.cs.gz": (22096, "b63226e05c4bd5dd6a42897d74b86a1b9d2c31498252c572b1ea7f7996927fcc"),
    "val.de.gz": (24681, "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a"),
    "val.en.gz": (21650, "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28"),
    "val.fr.gz": (23001, "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9"),
    "test_2016_flickr.cs.gz": (22572, "200a4a74cc9560f051924abb9803be008d1908d77f747e9141aeb86dfd2797f1"),
    "test_2016_flickr.de.gz": (22890, "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8"),
    "test_2016_flickr.en.gz": (21077, "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9"),
    "test_2016_flickr.fr.gz": (22310, "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90"),
}
LANGUAGES = ("cs", "de", "en", "fr")

_FILE_OF_SPLIT = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
_RECIPE_VERSION = 1  # raise it when the code below makes other pairs from the same files


def multi30k(*, source_language: str, target_language: str, folder: Path, path: Path | None = None) -> Corpus:
    """Captions in two of LANGUAGES, white space made single blanks.

    `path` is a folder with the .gz files of the two languages, or one that
    holds them in `raw` or in `data/task1/raw`, as a clone of the repository does.

    Raises:
        ConfigError: a language is not in the corpus, or both are the same.
        DataError: a file cannot be fetched, or is not below `path`.
    """
    for option, language in (("source_language", source_language), ("target_language", target_language)):
        if language not in LANGUAGES:
            raise ConfigError(f"data.{option}={language} is not in multi30k: choose one of {', '.join(LANGUAGES)}")
    if source_language == target_language:
        raise ConfigError(f"data.target_language={target_language} is the source's: choose two languages")

    names = {
        split: (f"{stem}.{source_language}.gz", f"{stem}.{target_language}.gz")
        for split, stem in _FILE_OF_SPLIT.items()
    }
    wanted = [name for both in names.values() for name in both]
    hashes = {name: FILES[name][1] for name in wanted}
    originals = folder / "multi30k"
    if path is not None:
        originals = _local_folder(path, wanted)
        hashes = {name: sha256_of(originals / name) for name in wanted}
        if changed := [name for name in wanted if hashes[name] != FILES[name][1]]:
            logger.warning("%s differs from multi30k task 1: scores do not compare", originals / changed[0])

    def make() -> dict[str, Iterator[Pair]]:
        if path is None:
            _fetch(wanted, originals)
        return {split: _pairs(originals, both, cache=lines_folder(folder)) for split, both in names.items()}

    recipe = Recipe(
        name=f"multi30k-{source_language}-{target_language}",
        origin=f"Multi30k task 1 raw, github.com/multi30k/dataset at {COMMIT}; white space made single blanks",
        licence=f"no licence file; {TERMS}",
        rules={"version": _RECIPE_VERSION, "sha256": hashes},
    )
    return prepared_corpus(recipe, make, folder=folder)


def _fetch(names: list[str], folder: Path) -> None:
    logger.warning("Multi30k: %s", TERMS)  # a warning, so that it is seen at every log level in use
    for name in names:
        size, sha256 = FILES[name]
        fetch_file(f"{ADDRESS}/{name}", folder / name, sha256=sha256, size=size)


def _pairs(folder: Path, names: tuple[str, str], *, cache: Path) -> Iterator[Pair]:
    for source, target in open_parallel(folder / names[0], folder / names[1], cache=cache):
        yield one_line(source), one_line(target)


def _local_folder(path: Path, names: list[str]) -> Path:
    places = [path, path / "raw", path / "data" / "task1" / "raw"]
    for place in places:
        if all((place / name).is_file() for name in names):
            return place
    raise DataError(
        f"data.path={path} holds not all of {', '.join(names)}, neither itself nor in raw or data/task1/raw"
    )
