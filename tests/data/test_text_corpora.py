"""Running text by name: only the pinned text is read, and nothing of the package it lies in is run."""

import tarfile
from pathlib import Path

import pytest

from headloom.data import text_corpora
from headloom.data.running_text import Documents, RunningText
from headloom.errors import ConfigError, DataError


def content(text: RunningText) -> str:
    return "".join(piece.text for piece in text.pieces())


@pytest.fixture
def package(tmp_path) -> Path:
    """A source package with a short text in the place of Alice."""
    text = tmp_path / "alice29.txt"
    text.write_bytes(b"Alice was\r\nbeginning\r\n" * 10 + b"\x1a")
    with tarfile.open(tmp_path / "package.tar.gz", "w:gz") as archive:
        archive.add(text, text_corpora.ALICE_MEMBER)
    text.unlink()
    return tmp_path / "package.tar.gz"


def test_alice_is_taken_out_of_its_package_without_the_mark_at_its_end(package, tmp_path):
    corpus = text_corpora.alice(valid_share=0.25, folder=tmp_path / "data", path=package)
    assert content(corpus.train) + content(corpus.valid) == "Alice was\nbeginning\n" * 10
    assert corpus.test is None
    assert [path.name for path in (tmp_path / "data").iterdir() if path.is_file()] == ["alice29.txt"]


def test_another_text_by_a_known_name_is_taken_with_a_warning(tmp_path, caplog):
    path = tmp_path / "input.txt"
    path.write_bytes(b"To be, or not\n" * 20)
    for corpus in (
        text_corpora.alice(valid_share=0.5, folder=tmp_path / "data", path=path),
        text_corpora.tiny_shakespeare(valid_share=0.5, folder=tmp_path / "data", path=path),
    ):
        assert content(corpus.train) == content(corpus.valid) == "To be, or not\n" * 10
    assert [record.getMessage() for record in caplog.records] == [
        f"{path} is not the text that others train on: losses do not compare"
    ] * 2


def test_a_package_without_the_text_is_refused(tmp_path):
    with tarfile.open(tmp_path / "package.tar.gz", "w:gz") as archive:
        archive.add(Path(__file__), "something/else.txt")
    with pytest.raises(DataError, match=r"package\.tar\.gz cannot be read as a package with brotli-1\.2\.1/tests"):
        text_corpora.alice(valid_share=0.1, folder=tmp_path, path=tmp_path / "package.tar.gz")


def test_shakespeare_is_split_where_others_split_it(shared_data, tmp_path):
    """The first nine tenths of the characters, as nanoGPT."""
    path = shared_data / "tinyshakespeare" / "input.txt"
    corpus = text_corpora.tiny_shakespeare(valid_share=0.1, folder=tmp_path, path=path)
    assert len(content(corpus.train)) == int(0.9 * 1_115_394)
    assert len(content(corpus.valid)) == 1_115_394 - int(0.9 * 1_115_394)


def test_validation_text_is_given_or_split_off(tmp_path):
    path = tmp_path / "train.txt"
    path.write_bytes(b"line\n" * 100)
    options = {"path": path, "documents": Documents.line, "folder": tmp_path / "data"}
    assert len(list(text_corpora.own_text(**options, valid_share=0.1).valid.pieces())) == 10
    corpus = text_corpora.own_text(**options, valid_path=path, test_path=path)
    assert content(corpus.train) == content(corpus.valid) == content(corpus.test)
    for wrong in ({}, {"valid_path": path, "valid_share": 0.1}):
        with pytest.raises(ConfigError, match=r"data\.valid_path .* data\.valid_share is given; exactly one"):
            text_corpora.own_text(**options, **wrong)
