"""Multi30k, task 1: captions of photographs, translated by people (Elliott et al. 2016).

29,000 training pairs, 1,014 validation pairs, and the 1,000 test pairs of
2016. Fetched only when asked for. The repository has no licence file: its
terms are shown when it is fetched.
"""

import gzip
import hashlib
import logging
import zlib
from collections.abc import Iterator
from pathlib import Path

from headloom.data.download import fetch_file, sha256_of
from headloom.data.files import open_parallel
from headloom.data.prepared import Pair, Recipe, lines_folder, one_line, prepared_corpus
from headloom.data.text import Corpus
from headloom.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

COMMIT = "a3d2e0d26b56f3846f66a952536ffed4e401d05a"
ADDRESS = f"https://raw.githubusercontent.com/multi30k/dataset/{COMMIT}/data/task1"
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
TOKENIZED_FILES = {  # likewise; a local copy may be compressed
    "train.lc.norm.tok.cs": (1791955, "7645fb91efa18f94c83d493f740a5d5a941e4b01efa6a124bf2d4af040e133e0"),
    "train.lc.norm.tok.de": (2150008, "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505"),
    "train.lc.norm.tok.en": (1837696, "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119"),
    "train.lc.norm.tok.fr": (2235588, "8fa41bb718412bcb7c5dfa58603842810a01543eae86a51279f9886b901266e1"),
    "val.lc.norm.tok.cs": (61492, "b87ee4917f4a0f9ca6cca03e402026c9f4437dc1bd6a7dadfd2544ecfb6c5501"),
    "val.lc.norm.tok.de": (77273, "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00"),
    "val.lc.norm.tok.en": (64608, "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec"),
    "val.lc.norm.tok.fr": (78242, "b303e301aa21fe7822a846b2b3fb2d5a1121ec807cd5b1d006fb7b2b5507168a"),
    "test_2016_flickr.lc.norm.tok.cs": (63566, "748c8816de928732365176e5c5d2f9bbabcec9b8d4448fba2d230feb057898a7"),
    "test_2016_flickr.lc.norm.tok.de": (71917, "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4"),
    "test_2016_flickr.lc.norm.tok.en": (63307, "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2"),
    "test_2016_flickr.lc.norm.tok.fr": (76394, "1463bd5960f9bfe098ec3cd752d3df0c49c84dc646fb518964a29232658cd836"),
}
LANGUAGES = ("cs", "de", "en", "fr")

_FILE_OF_SPLIT = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
_RECIPE_VERSION = 1  # raise it when the code below makes other pairs from the same files


def multi30k(
    *, source_language: str, target_language: str, tokenized: bool = False, folder: Path, path: Path | None = None
) -> Corpus:
    """Captions in two of LANGUAGES, white space made single blanks.

    `tokenized`: in the authors' small letters, words and punctuation apart, which the published scores of small models
    are of. `path` is a folder with the files of the two languages, or one that holds them in `raw` (`tok`) or in
    `data/task1/raw` (`tok`), as a clone of the repository does.

    Raises:
        ConfigError: a language is not in the corpus, or both are the same.
        DataError: a file cannot be fetched, or is not below `path`.
    """
    for option, language in (("source_language", source_language), ("target_language", target_language)):
        if language not in LANGUAGES:
            raise ConfigError(f"data.{option}={language} is not in multi30k: choose one of {', '.join(LANGUAGES)}")
    if source_language == target_language:
        raise ConfigError(f"data.target_language={target_language} is the source's: choose two languages")

    form, end, files = ("tok", "lc.norm.tok.{}", TOKENIZED_FILES) if tokenized else ("raw", "{}.gz", FILES)
    names = {
        split: (f"{stem}.{end.format(source_language)}", f"{stem}.{end.format(target_language)}")
        for split, stem in _FILE_OF_SPLIT.items()
    }
    wanted = [name for both in names.values() for name in both]
    hashes = {name: files[name][1] for name in wanted}
    places = {name: folder / "multi30k" / name for name in wanted}
    if path is not None:
        places = _local_files(path, wanted, form)
        hashes = {name: _sha256(place, name) for name, place in places.items()}
        if changed := [name for name in wanted if hashes[name] != files[name][1]]:
            logger.warning("%s differs from multi30k task 1: scores do not compare", places[changed[0]])

    def make() -> dict[str, Iterator[Pair]]:
        if path is None:
            logger.warning("Multi30k: %s", TERMS)  # a warning, so that it is seen at every log level in use
            for name, place in places.items():
                size, sha256 = files[name]
                fetch_file(f"{ADDRESS}/{form}/{name}", place, sha256=sha256, size=size)
        return {
            split: _pairs(places[source], places[target], cache=lines_folder(folder))
            for split, (source, target) in names.items()
        }

    recipe = Recipe(
        name=f"multi30k-{source_language}-{target_language}{'-tokenized' if tokenized else ''}",
        origin=f"Multi30k task 1 {form}, github.com/multi30k/dataset at {COMMIT}; white space made single blanks",
        licence=f"no licence file; {TERMS}",
        rules={"version": _RECIPE_VERSION, "sha256": hashes},
    )
    return prepared_corpus(recipe, make, folder=folder)


def _pairs(source_path: Path, target_path: Path, *, cache: Path) -> Iterator[Pair]:
    for source, target in open_parallel(source_path, target_path, cache=cache):
        yield one_line(source), one_line(target)


def _local_files(path: Path, names: list[str], form: str) -> dict[str, Path]:
    """Where each file is, itself or compressed."""
    for place in (path, path / form, path / "data" / "task1" / form):
        found = {name: place / name if (place / name).is_file() else place / f"{name}.gz" for name in names}
        if all(file.is_file() for file in found.values()):
            return found
    raise DataError(
        f"data.path={path} holds not all of {', '.join(names)}, neither itself nor in {form} or data/task1/{form}"
    )


def _sha256(path: Path, name: str) -> str:
    """Of the file called `name`, of which `path` may be a compressed copy."""
    if path.name == name:
        return sha256_of(path)
    try:
        with gzip.open(path, "rb") as stream:
            return hashlib.sha256(stream.read()).hexdigest()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
