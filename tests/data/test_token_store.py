"""Ids on disk: what is kept, what is cut, and when they are made anew."""

import logging
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from headloom.data import token_store
from headloom.data.files import open_tsv
from headloom.data.sampler import TokenBudgetSampler
from headloom.data.text import PairList
from headloom.data.token_store import TokenPairs, tokenize_pairs, warn_of_unknown
from headloom.data.tokenizer import ByteTokenizer, train_tokenizer
from headloom.errors import ConfigError, DataError

BYTES = ByteTokenizer()


def store(pairs, folder: Path, *, max_length: int = 16, truncate: bool = False, tokenizer=BYTES) -> TokenPairs:
    return tokenize_pairs(
        PairList(pairs, name="pairs.tsv"),
        tokenizer,
        tokenizer,
        folder=folder,
        max_length=max_length,
        truncate=truncate,
        description="train",
    )


def decoded(tokens: TokenPairs) -> list[tuple[str, str]]:
    return [(BYTES.decode(tokens.source(row)), BYTES.decode(tokens.target(row))) for row in range(len(tokens))]


def test_rows_hold_the_ids_with_eos_and_no_bos(tmp_path):
    pairs = [("one", "eins"), ("two words", "zwei"), ("3", "drei")]
    tokens = store(pairs, tmp_path)
    assert len(tokens) == tokens.num_pairs == 3
    assert decoded(tokens) == pairs
    assert [tokens.text(row) for row in range(3)] == pairs
    for row, (source, target) in enumerate(pairs):
        assert tokens.source(row).tolist() == [*BYTES.encode([source])[0], BYTES.eos_id]
        assert tokens.target(row).tolist() == [*BYTES.encode([target])[0], BYTES.eos_id]
    assert tokens.source_lengths.tolist() == [4, 10, 2]
    assert tokens.target_lengths.tolist() == [5, 5, 5]
    assert tokens.source(0).dtype == np.uint16


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_pair_with_a_side_over_the_limit_is_dropped_whole_with_one_counted_warning(tmp_path, caplog, side):
    """B16: eos is counted, so 15 bytes are the most for max_length 16."""
    lengths = [14, 15, 16, 17, 200]
    pairs = [("a" * n, "b") if side == "source" else ("a", "b" * n) for n in lengths]
    tokens = store([*pairs, ("", "b"), ("a", "")], tmp_path)
    assert decoded(tokens) == pairs[:2]
    assert [tokens.text(row) for row in range(2)] == pairs[:2]
    assert (tokens.num_pairs, tokens.num_dropped) == (7, 5)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("train: 5 of 7 pairs are left out: 3 longer than 16 tokens")
    assert record.getMessage().endswith("2 with an empty side; more than 5%: is that meant?")


def test_text_that_the_tokenizer_does_not_know_is_noticed(tmp_path, caplog):
    """A side at a time."""
    known = [("abab", "abba")] * 20
    tokenizer = train_tokenizer(
        [text for pair in known for text in pair], kind="char", vocab_size=None, byte_fallback=False
    )
    with caplog.at_level(logging.WARNING):
        warn_of_unknown(store(known, tmp_path, tokenizer=tokenizer), tokenizer, tokenizer, "train")
        assert not caplog.messages
        warn_of_unknown(store([("ab", "xy")], tmp_path, tokenizer=tokenizer), tokenizer, tokenizer, "train")
    (message,) = caplog.messages
    assert message.startswith("train: of the target tokens ")
    assert "are unknown to the tokenizer: one with tokenizer.byte_fallback=true knows all text" in message


def test_evaluation_pairs_are_cut_and_never_dropped(tmp_path, caplog):
    """B16, B19: a cut side keeps its eos, and the text of the row stays whole."""
    pairs = [("a" * n, "b" * (30 - n)) for n in (14, 15, 16, 17, 30)]
    tokens = store([*pairs, ("", "")], tmp_path, truncate=True)
    assert len(tokens) == tokens.num_pairs == 6
    assert tokens.num_dropped == 0
    assert decoded(tokens) == [(source[:15], target[:15]) for source, target in [*pairs, ("", "")]]
    assert all(tokens.source(row)[-1] == tokens.target(row)[-1] == BYTES.eos_id for row in range(6))
    assert tokens.source_lengths.max() == tokens.target_lengths.max() == 16
    assert tokens.text(4) == pairs[4]
    (record,) = caplog.records
    assert record.getMessage().startswith("train: 4 of 6 pairs are cut to 16 tokens")


def test_the_warning_comes_again_when_the_store_is_used_again(tmp_path, caplog):
    for _ in range(2):
        store([("a" * 99, "b"), ("a", "b")], tmp_path)
    assert len({record.getMessage() for record in caplog.records}) == 1
    assert len(caplog.records) == 2


def test_no_pair_and_no_pair_that_fits_are_refused_by_name(tmp_path):
    """B19."""
    with pytest.raises(DataError, match=r"train: pairs\.tsv holds no pair"):
        store([], tmp_path)
    with pytest.raises(
        DataError, match=r"none of the 2 pairs of pairs\.tsv .* 1 are longer .*max_length=16.* 1 have an"
    ):
        store([("a" * 99, "b"), ("a", "")], tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_limit_without_room_for_a_piece_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.max_length=1 "):
        store([("a", "b")], tmp_path, max_length=1)
    assert decoded(store([("a", "b")], tmp_path, max_length=2)) == [("a", "b")]


def test_chunks_of_any_size_give_the_same_store(tmp_path, monkeypatch):
    pairs = [(f"{'a' * (i % 19)}", f"b{i}") for i in range(50)]
    whole = store(pairs, tmp_path / "whole")
    monkeypatch.setattr(token_store, "_CHUNK_PAIRS", 7)
    by_count = store(pairs, tmp_path / "count")
    monkeypatch.setattr(token_store, "_CHUNK_CHARACTERS", 20)
    by_size = store(pairs, tmp_path / "size")
    for other in (by_count, by_size):
        assert decoded(other) == decoded(whole)
        assert [other.text(row) for row in range(len(other))] == [whole.text(row) for row in range(len(whole))]
        assert other.source_lengths.tolist() == whole.source_lengths.tolist()


def test_a_chunk_of_which_nothing_is_kept_is_no_trouble(tmp_path, monkeypatch):
    monkeypatch.setattr(token_store, "_CHUNK_PAIRS", 1)
    assert decoded(store([("", "a"), ("b", "c"), ("d", "")], tmp_path)) == [("b", "c")]


def test_a_store_is_used_again_only_for_the_same_content(tmp_path):
    """B22: text, tokenizer, limit and rule decide; the name of the text does not."""
    pairs = [("one two three", "eins"), ("two", "zwei")]
    tokenizers = [
        train_tokenizer([text], kind="char", vocab_size=None, byte_fallback=True)
        for text in ("one two three", "eins zwei")
    ]
    calls = [
        {},
        {"pairs": [("one two three", "eins"), ("two", "zwoo")]},
        {"max_length": 8},
        {"truncate": True},
        {"tokenizer": tokenizers[0]},
        {"tokenizer": tokenizers[1]},
    ]
    for number, call in enumerate(calls, start=1):
        for _ in range(2):
            store(**({"pairs": pairs, "folder": tmp_path} | call))
            assert len(list(tmp_path.iterdir())) == number


def test_two_runs_at_once_make_one_whole_store(tmp_path):
    """B22."""
    pairs = [(f"a{i}", f"b{i}") for i in range(300)]
    with ThreadPoolExecutor(8) as threads:
        runs = list(threads.map(lambda _: store(pairs, tmp_path), range(8)))
    assert all(decoded(tokens) == pairs for tokens in runs)
    assert len(list(tmp_path.iterdir())) == 1


def test_an_interrupted_run_leaves_nothing(tmp_path):
    class Interrupted(PairList):
        def __iter__(self):
            yield "a", "b"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenize_pairs(Interrupted([("a", "b")] * 2), BYTES, BYTES, folder=tmp_path, max_length=16, description="train")
    assert not any(tmp_path.iterdir())


def test_a_damaged_store_is_refused_by_name(tmp_path):
    store([("a", "b")], tmp_path)
    (folder,) = tmp_path.iterdir()
    with (folder / "source_ids").open("ab") as ids:
        ids.write(b"\0\0")
    with pytest.raises(DataError, match=folder.name):
        store([("a", "b")], tmp_path)


def test_many_rows_are_loaded_at_once_in_the_order_asked_for(tmp_path):
    tokens = store([(f"s{i}", "t" * (1 + i % 7)) for i in range(50)], tmp_path)
    rows = np.array([3, 49, 0, 17, 3])
    source, target = tokens.load(rows)
    for side, read in ((source, tokens.source), (target, tokens.target)):
        assert [
            side.flat[start : start + length].tolist() for start, length in zip(side.starts, side.lengths, strict=True)
        ] == [read(row).tolist() for row in rows]


def test_a_row_that_is_not_there_is_an_index_error(tmp_path):
    tokens = store([("a", "b")], tmp_path)
    for row in (-1, 1):
        with pytest.raises(IndexError):
            tokens.source(row)


def test_a_vocabulary_beyond_two_bytes_keeps_its_ids(tmp_path):
    class Wide(ByteTokenizer):
        """Byte b has id 70,000 + b."""

        _FIRST = 70_000
        vocab_size = 70_256
        fingerprint = "wide"

    tokens = store([("ab", "c")], tmp_path, tokenizer=Wide())
    assert tokens.source(0).tolist() == [70_097, 70_098, Wide.eos_id]
    assert tokens.source(0).dtype == np.int32


def test_a_row_costs_its_ids_on_disk_and_nothing_in_memory(tmp_path):
    """B105: two bytes an id, and per row which pair it is, two offsets and two lengths; an epoch holds one pool."""
    peaks = {}  # the first one has what Python keeps from then on
    for num_rows in (500, 2_000, 22_000):
        folder = tmp_path / str(num_rows)
        folder.mkdir()
        path = folder / "pairs.tsv"
        path.write_text("".join(f"{row:06d}\t{row:04d} abc\n" for row in range(num_rows)), encoding="utf-8")
        tracemalloc.start()
        pairs = open_tsv(path, cache=folder)
        tokens = tokenize_pairs(pairs, BYTES, BYTES, folder=folder, max_length=16, description="train")
        tracemalloc.reset_peak()  # what encoding held meanwhile
        lengths = tokens.source_side.lengths, tokens.target_side.lengths
        sampler, num_ids = TokenBudgetSampler(*lengths, max_tokens=512, seed=1, pool_size=1_000), 0
        while sampler.epoch == 0:
            sources, targets = tokens.load(np.sort(next(sampler)))
            num_ids += len(sources.flat) + len(targets.flat)
        peaks[num_rows] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        (files,) = folder.glob("tokens-*")
        num_bytes = sum(file.stat().st_size for file in files.iterdir())
        assert 0 <= num_bytes - 2 * num_ids - num_rows * (8 + 2 * 8 + 2 * 4) < 1_000
    assert peaks[22_000] - peaks[2_000] < 4 * 20_000  # no array of the rows, let alone a list
