"""Corpora by name: the user's files, prepared ones, and copies of the known ones."""

import gzip
import json
import logging
import multiprocessing
import zipfile
from pathlib import Path

import pytest

from headloom.data.corpora import jsonl, multi30k, parallel, tatoeba, tsv
from headloom.data.prepared import Recipe, prepared_corpus
from headloom.errors import ConfigError, DataError

LINES = [f"line {word}" for word in ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return path


def upper(lines: list[str]) -> list[str]:
    return [line.upper() for line in lines]


# ---- the user's own files


def test_two_files_and_a_share_split_off_make_a_corpus(tmp_path):
    files = {"source": write(tmp_path / "a.en", LINES), "target": write(tmp_path / "a.de", upper(LINES))}
    corpus = parallel(**files, valid_share=0.3, folder=tmp_path / "data")
    assert sorted([*corpus.train, *corpus.valid]) == sorted(zip(LINES, upper(LINES), strict=True))
    assert len(corpus.valid) > 0
    assert corpus.test is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.de", "a.en", "data"]


def test_validation_and_test_files_are_taken_as_they_are(tmp_path):
    first, second, third = LINES[:6], LINES[6:8], LINES[8:]
    files = {}
    for prefix, lines in (("", first), ("valid_", second), ("test_", third)):
        files[f"{prefix}source"] = write(tmp_path / f"{prefix}en", lines)
        files[f"{prefix}target"] = write(tmp_path / f"{prefix}de", upper(lines))
    corpus = parallel(**files, folder=tmp_path / "data")
    assert [source for source, _ in corpus.train] == first
    assert list(corpus.valid) == list(zip(second, upper(second), strict=True))
    assert corpus.test is not None
    assert list(corpus.test) == list(zip(third, upper(third), strict=True))


@pytest.mark.parametrize("bad", ["train", "valid", "test"])
def test_unequal_counts_of_lines_are_refused_in_every_split(tmp_path, bad):
    """B06."""
    files = {}
    for split, prefix in (("train", ""), ("valid", "valid_"), ("test", "test_")):
        files[f"{prefix}source"] = write(tmp_path / f"{split}.en", LINES)
        files[f"{prefix}target"] = write(tmp_path / f"{split}.de", LINES[:-1] if split == bad else LINES)
    with pytest.raises(DataError, match=rf"{bad}\.en has 10 lines and .*{bad}\.de 9"):
        parallel(**files, folder=tmp_path / "data")


def test_tab_separated_and_json_lines_files_make_the_same_pairs(tmp_path):
    table = write(tmp_path / "pairs.tsv", [f"{i}\t{line.upper()}\t{line}" for i, line in enumerate(LINES)])
    records = write(tmp_path / "pairs.jsonl", [json.dumps({"en": line, "de": line.upper()}) for line in LINES])
    options = {"valid_share": 0.3, "folder": tmp_path / "data"}
    one = tsv(path=table, source_column=2, target_column=1, **options)
    other = jsonl(path=records, source_field="en", target_field="de", **options)
    assert list(one.train) == list(other.train)
    assert list(one.valid) == list(other.valid)
    with_files = tsv(path=table, valid_path=table, test_path=table, source_column=2, folder=tmp_path / "data")
    assert with_files.test is not None
    assert list(with_files.valid) == list(with_files.test) == list(with_files.train)


def test_what_to_validate_on_is_said_exactly_once(tmp_path):
    path = write(tmp_path / "a.tsv", [f"{line}\t{line}" for line in LINES])
    with pytest.raises(ConfigError, match=r"neither validation files nor data\.valid_share is given"):
        tsv(path=path, folder=tmp_path)
    with pytest.raises(ConfigError, match=r"both validation files and data\.valid_share is given"):
        tsv(path=path, valid_path=path, valid_share=0.1, folder=tmp_path)
    with pytest.raises(ConfigError, match=r"data\.valid_share=1 must be above 0 and below 1"):
        jsonl(path=path, valid_share=1.0, folder=tmp_path)
    with pytest.raises(ConfigError, match=r"data\.valid_target=None: give both or none"):
        parallel(source=path, target=path, valid_source=path, folder=tmp_path)


# ---- prepared once


def recipe(**rules: object) -> Recipe:
    return Recipe(name="letters", origin="made up", licence="none needed", rules={"version": 1, **rules})


def letters() -> dict[str, list[tuple[str, str]]]:
    return {"train": [("a", "A"), ("b", "B")], "valid": [("c", "C")], "test": [("d", "D")]}


def fail() -> dict[str, list[tuple[str, str]]]:
    raise DataError("it was prepared again")


def test_a_corpus_is_prepared_once(tmp_path):
    first = prepared_corpus(recipe(), letters, folder=tmp_path)
    again = prepared_corpus(recipe(), fail, folder=tmp_path)
    assert list(again.train) == [("a", "A"), ("b", "B")]
    assert again.train.fingerprint == first.train.fingerprint
    folder = tmp_path / recipe().folder_name
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "test.tsv", "train.tsv", "valid.tsv"]
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["licence"] == "none needed"
    assert manifest["files"]["train.tsv"]["num_pairs"] == 2


def test_a_changed_recipe_is_prepared_anew(tmp_path):
    """B22."""
    prepared_corpus(recipe(), letters, folder=tmp_path)
    for changed in (recipe(version=2), recipe(sha256="0")):
        with pytest.raises(DataError, match="it was prepared again"):
            prepared_corpus(changed, fail, folder=tmp_path)


@pytest.mark.parametrize("name", ["train.tsv", "valid.tsv", "test.tsv", "manifest.json"])
def test_a_prepared_file_that_was_edited_or_removed_is_refused(tmp_path, name):
    """B22."""
    prepared_corpus(recipe(), letters, folder=tmp_path)
    path = tmp_path / recipe().folder_name / name
    path.write_bytes(path.read_bytes().replace(b"A", b"E").replace(b"C", b"E").replace(b"D", b"E").replace(b"{", b""))
    with pytest.raises(DataError, match=rf"{name} (was changed after it was prepared|cannot be read .*); delete"):
        prepared_corpus(recipe(), letters, folder=tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=rf"{name} (is missing|cannot be read .*); delete"):
        prepared_corpus(recipe(), letters, folder=tmp_path)


def test_a_preparation_that_fails_leaves_nothing(tmp_path):
    def half() -> dict[str, object]:
        def pairs():
            yield "a", "A"
            fail()

        return {**letters(), "valid": pairs()}

    with pytest.raises(DataError, match="it was prepared again"):
        prepared_corpus(recipe(), half, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_two_preparations_at_once_end_with_one_whole_corpus(tmp_path):
    """One prepares inside the other's preparation, so that its folder is there first."""

    def slower() -> dict[str, list[tuple[str, str]]]:
        prepared_corpus(recipe(), letters, folder=tmp_path)
        return letters()

    corpus = prepared_corpus(recipe(), slower, folder=tmp_path)
    assert list(corpus.train) == letters()["train"]
    assert {path.name for path in tmp_path.iterdir()} == {"lines", recipe().folder_name}


def _prepare_together(folder: str) -> int:
    return len(prepared_corpus(recipe(), letters, folder=Path(folder)).train)


def test_processes_that_prepare_at_once_all_get_the_corpus(tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(_prepare_together, [str(tmp_path)] * 6, chunksize=1) == [2] * 6
    assert {path.name for path in tmp_path.iterdir()} == {"lines", recipe().folder_name}


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(
        DataError, match=r"file/letters-\w+ cannot be written: Not a directory; choose another data.folder"
    ):
        prepared_corpus(recipe(), letters, folder=tmp_path / "file")


# ---- copies of the known corpora


def small_multi30k(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for stem in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de"):
            (folder / f"{stem}.{language}.gz").write_bytes(gzip.compress(f"a {stem}  {language} \nb\n".encode()))
    return folder


@pytest.mark.parametrize("below", ["", "raw", "data/task1/raw"])
def test_multi30k_is_read_from_a_local_copy_in_any_layout(tmp_path, below, caplog):
    small_multi30k(tmp_path / "copy" / below)
    corpus = multi30k(source_language="de", target_language="en", folder=tmp_path / "data", path=tmp_path / "copy")
    assert list(corpus.train) == [("a train de", "a train en"), ("b", "b")]
    assert corpus.valid[0] == ("a val de", "a val en")
    assert corpus.test is not None
    assert corpus.test[0] == ("a test_2016_flickr de", "a test_2016_flickr en")
    assert "differs from multi30k task 1" in caplog.text


@pytest.mark.parametrize("end", ["", ".gz"])
def test_the_tokenized_text_of_multi30k_is_read_plain_or_compressed(tmp_path, end, caplog):
    pack = gzip.compress if end else bytes
    for stem in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de"):
            path = tmp_path / "copy" / "tok" / f"{stem}.lc.norm.tok.{language}{end}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(pack(f"a {stem} {language} .\n".encode()))
    corpus = multi30k(
        source_language="en", target_language="de", tokenized=True, folder=tmp_path / "data", path=tmp_path / "copy"
    )
    assert list(corpus.train) == [("a train en .", "a train de .")]
    assert "differs from multi30k task 1" in caplog.text


def test_the_shared_tokenized_copy_of_multi30k_is_the_pinned_one(shared_data, tmp_path, caplog):
    corpus = multi30k(
        source_language="en",
        target_language="de",
        tokenized=True,
        folder=tmp_path / "data",
        path=shared_data / "multi30k",
    )
    assert len(corpus.train) == 29000
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_multi30k_refuses_what_it_does_not_hold(tmp_path):
    copy = small_multi30k(tmp_path / "copy")
    for languages, message in (
        (("en", "it"), r"data\.target_language=it is not in multi30k: choose one of cs, de, en, fr"),
        (("xx", "de"), r"data\.source_language=xx is not in multi30k"),
        (("de", "de"), r"data\.target_language=de is the source's"),
    ):
        with pytest.raises(ConfigError, match=message):
            multi30k(source_language=languages[0], target_language=languages[1], folder=tmp_path, path=copy)
    with pytest.raises(DataError, match=r"copy holds not all of train\.en\.gz, train\.fr\.gz"):
        multi30k(source_language="en", target_language="fr", folder=tmp_path, path=copy)


def test_tatoeba_is_read_from_its_zip_without_duplicates_and_near_copies(tmp_path):
    sentences = [f"{a} {b} {c}" for a in ("I", "we", "they") for b in ("see", "hear", "know") for c in ("it", "her")]
    lines = [f"{s}.\t{s.upper()} U\u0308!\tCC-BY 2.0" for s in sentences]
    doubled = ["go\tGeh", "go\tGehen Sie", "go\tGeh"]
    path = tmp_path / "copy" / "deu-eng.zip"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("deu.txt", "\n".join([*lines, *doubled]) + "\n")
    corpus = tatoeba(folder=tmp_path / "data", path=path)
    assert corpus.test is not None
    assert [len(part) for part in (corpus.train, corpus.valid, corpus.test)] == [18, 1, 1]
    assert {("go", "Geh"), ("go", "Gehen Sie")} <= set(corpus.train)
    assert corpus.test[0][1].endswith(" \u00dc!")
    from_folder = tatoeba(folder=tmp_path / "data", path=path.parent)
    assert from_folder.train.fingerprint == corpus.train.fingerprint


def test_a_bad_copy_of_tatoeba_is_refused(tmp_path):
    (tmp_path / "copy").mkdir()
    with pytest.raises(DataError, match=r"copy holds neither deu-eng\.zip nor train\.tsv or train\.tsv\.gz"):
        tatoeba(folder=tmp_path / "data", path=tmp_path / "copy")
    path = write(tmp_path / "copy" / "deu-eng.zip", ["no zip"])
    with pytest.raises(DataError, match=r"deu-eng\.zip cannot be read as a zip with deu\.txt"):
        tatoeba(folder=tmp_path / "data", path=path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("deu.txt", "Go.\tGeh.\nRun.\n")
    with pytest.raises(DataError, match=r"deu-eng\.zip: line 2 of deu\.txt has no tab"):
        tatoeba(folder=tmp_path / "data", path=path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("deu.txt", "Go.\tGeh.\n")
    with pytest.raises(DataError, match="too few pairs to hold out"):
        tatoeba(folder=tmp_path / "data", path=path)


def test_the_shared_copy_of_multi30k_is_the_pinned_one(shared_data, tmp_path, caplog):
    corpus = multi30k(
        source_language="en", target_language="de", folder=tmp_path / "data", path=shared_data / "multi30k"
    )
    assert corpus.test is not None
    assert [len(part) for part in (corpus.train, corpus.valid, corpus.test)] == [29000, 1014, 1000]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert corpus.train[0] == (
        "Two young, White males are outside near many bushes.",
        "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche.",
    )


def test_the_shared_copy_of_tatoeba_is_read_with_its_own_split(shared_data, tmp_path):
    corpus = tatoeba(folder=tmp_path / "data", path=shared_data / "tatoeba_en_de")
    assert corpus.test is not None
    assert [len(part) for part in (corpus.train, corpus.valid, corpus.test)] == [164139, 2000, 2000]
    assert corpus.train[0] == ("Which of your parents do you resemble?", "Wem von deinen Eltern ähnelst du?")
