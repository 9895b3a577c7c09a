"""Ids of running text on disk: one stream, documents from bos to eos, made anew when anything changes."""

import logging
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from headloom.data import text_store
from headloom.data.running_text import Documents, open_text
from headloom.data.text_store import TextTokens, tokenize_text
from headloom.data.tokenizer import ByteTokenizer, load_tokenizer, train_tokenizer
from headloom.errors import DataError

BYTES = ByteTokenizer()
EXACT = "  x\n\ty \u00a0\u3000z  \r q\u2028\n\n\nthe end, the end\n"


def store(folder: Path, content: str, *, rule: Documents = Documents.line, tokenizer=BYTES) -> TextTokens:
    path = folder / "text.txt"
    path.write_bytes(content.encode("utf-8"))
    text = open_text(path, rule, cache=folder / "cache")
    return tokenize_text(text, tokenizer, folder=folder / "prepared", description="train")


def test_documents_lie_behind_each_other_each_with_its_eos(tmp_path):
    tokens = store(tmp_path, "ab\ncd 日\n\ne\n")
    expected = [[*BYTES.encode([text])[0], BYTES.eos_id] for text in ("ab", "cd 日", "e")]
    assert tokens.targets(0, len(tokens)).tolist() == [i for ids in expected for i in ids]
    assert tokens.num_documents == 3
    assert (tokens.num_characters, tokens.num_bytes) == (7, 9)
    starts, lengths = tokens.documents(0, 3)
    assert starts.tolist() == [0, 3, 10]
    assert lengths.tolist() == [3, 7, 2]
    starts, lengths = tokens.documents(1, 3)
    assert (starts.tolist(), lengths.tolist()) == ([3, 10], [7, 2])


def test_a_range_is_led_by_the_id_before_it(tmp_path):
    tokens = store(tmp_path, "ab\ncd\n")
    a, b, c, d = BYTES.encode(["abcd"])[0]
    eos = BYTES.eos_id
    ranges = tokens.load(np.array([0, 2, 3]), np.array([2, 3, 1]))
    rows = [ranges.flat[s : s + n].tolist() for s, n in zip(ranges.starts, ranges.lengths, strict=True)]
    assert rows == [[eos, a, b], [b, eos, c, d], [eos, c]]


@pytest.mark.parametrize("kind", ["byte", "char", "bpe", "unigram"])
def test_decoded_text_is_the_text(tmp_path, kind, monkeypatch):
    """B12: with identity normalisation decode(encode(s)) == s, blanks and line ends included, wherever it is cut."""
    tokenizer = BYTES
    if kind != "byte":
        tokenizer = train_tokenizer(
            EXACT.split("\n") * 3,
            kind=kind,
            vocab_size=None if kind == "char" else 300,
            normalization="identity",
            byte_fallback=kind != "char",
            running_text=True,
        )
    (whole,) = tokenizer.encode([EXACT])
    assert tokenizer.decode_text(whole) == EXACT
    assert "\n" not in tokenizer.decode(whole)
    monkeypatch.setattr(text_store, "_CHUNK_CHARACTERS", 3)
    tokens = store(tmp_path, EXACT, rule=Documents.file, tokenizer=tokenizer)
    assert tokens.targets(0, len(tokens)).tolist() == [*whole, tokenizer.eos_id]
    assert tokens.num_unknown == 0


def test_a_given_model_learns_to_keep_line_ends_and_blanks(tmp_path):
    """B12: the stock model of a translation has no line end and swallows blanks."""
    stock = train_tokenizer(["some words of text, the end"] * 3, kind="unigram", vocab_size=300)
    path = tmp_path / "stock.model"
    path.write_bytes(stock.state()["model"])
    tokenizer = load_tokenizer(path, running_text=True)
    assert tokenizer.vocab_size == stock.vocab_size + 1
    text = "  some \n\n words\n of text"
    (ids,) = tokenizer.encode([text])
    assert tokenizer.decode_text(ids) == text
    assert ids.count(tokenizer.vocab_size - 1) == 3
    again = tmp_path / "again.model"
    again.write_bytes(tokenizer.state()["model"])
    assert load_tokenizer(again, running_text=True).vocab_size == tokenizer.vocab_size


def test_a_line_of_a_megabyte_is_tokenised(tmp_path):
    """B08."""
    content = "word " * 200_000
    tokenizer = train_tokenizer([content], kind="bpe", vocab_size=280, normalization="identity", running_text=True)
    tokens = store(tmp_path, content, tokenizer=tokenizer)
    assert tokens.num_characters == len(content)
    assert tokenizer.decode_text(tokens.targets(0, len(tokens)).tolist()) == content


def test_unknown_tokens_are_counted_in_one_warning(tmp_path, caplog):
    tokenizer = train_tokenizer(["abc"], kind="char", vocab_size=None, byte_fallback=False, running_text=True)
    tokens = store(tmp_path, "abc\nxa\n", tokenizer=tokenizer)
    assert tokens.num_unknown == 1
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("train: 1 of 7 tokens are unknown to the tokenizer")


def test_a_changed_text_or_tokenizer_has_a_store_of_its_own(tmp_path):
    """B22: same size, same name."""
    other = train_tokenizer(["abcd"], kind="char", vocab_size=None, byte_fallback=False, running_text=True)
    found = [
        store(tmp_path, content, rule=rule, tokenizer=tokenizer).targets(0, 3).tolist()
        for content, rule, tokenizer in (
            ("ab\ncd\n", Documents.line, BYTES),
            ("ad\ncb\n", Documents.line, BYTES),
            ("ab\ncd\n", Documents.file, BYTES),
            ("ab\ncd\n", Documents.line, other),
        )
    ]
    assert len({tuple(ids) for ids in found}) == 4
    assert len(list((tmp_path / "prepared").iterdir())) == 4


def test_text_without_a_document_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"train: .*text\.txt holds no document"):
        store(tmp_path, "\n\n")
    assert not list((tmp_path / "prepared").iterdir())


def test_a_damaged_store_is_refused(tmp_path):
    store(tmp_path, "ab\n")
    (folder,) = (tmp_path / "prepared").iterdir()
    (folder / "ids").write_bytes(b"\0" * 3)
    with pytest.raises(DataError, match=r"tokens-\w+ is damaged \(.*\); delete the folder"):
        store(tmp_path, "ab\n")


def test_a_document_costs_its_ids_on_disk_and_nothing_in_memory(tmp_path):
    """B105: two bytes an id, eos counted, and where each document ends; reading holds what is read."""
    peaks = {}  # the first one has what Python keeps from then on
    for num_documents in (500, 2_000, 22_000):
        folder = tmp_path / str(num_documents)
        folder.mkdir()
        tracemalloc.start()
        tokens = store(folder, "".join(f"{number:06d} abc\n" for number in range(num_documents)))
        tracemalloc.reset_peak()  # what encoding held meanwhile
        num_ids = 0
        for start in range(0, len(tokens), 500):
            length = min(500, len(tokens) - start)
            num_ids += len(tokens.load(np.array([start]), np.array([length])).flat) - 1
        peaks[num_documents] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        (files,) = (folder / "prepared").glob("tokens-*")
        num_bytes = sum(file.stat().st_size for file in files.iterdir())
        assert 0 <= num_bytes - 2 * num_ids - 8 * num_documents < 1_000
    assert peaks[22_000] - peaks[2_000] < 4 * 20_000  # no array of the documents, let alone a list
