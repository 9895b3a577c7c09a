"""Rows of ids with their targets: what is where, what is cut, and batches that hold every row once."""

import numpy as np
import pytest
import torch

from headloom.data.labelled_batch import LabelledBatches, LabelledEvaluationBatches
from headloom.data.labelled_store import ClassRows, TagRows, ValueRows, tokenize_rows
from headloom.data.text import PairList
from headloom.data.tokenizer import ByteTokenizer, train_tokenizer
from headloom.errors import DataError
from headloom.nn.loss import IGNORE

BYTES = ByteTokenizer()
BOS, EOS = BYTES.bos_id, BYTES.eos_id


def ids(text):
    return [4 + byte for byte in text.encode()]


def encoded(encoder, source):
    rows = encoder.rows([source])
    return rows.ids[0].tolist(), bool(rows.is_cut[0])


@pytest.mark.parametrize(
    ("source", "expected", "is_cut"),
    [
        ("abc", [BOS, *ids("abc"), EOS], False),
        ("", [BOS, EOS], False),
        ("abcdefgh", [BOS, *ids("abcdef"), EOS], True),
        ("ab\tcd", [BOS, *ids("ab"), EOS, *ids("cd"), EOS], False),
        ("\t", [BOS, EOS, EOS], False),
        ("a\tbcdefgh", [BOS, *ids("a"), EOS, *ids("bcde"), EOS], True),
        ("abcdefgh\ti", [BOS, *ids("abcd"), EOS, *ids("i"), EOS], True),
        ("abcdefgh\tijklmnop", [BOS, *ids("abc"), EOS, *ids("ij"), EOS], True),
    ],
)
def test_a_row_begins_with_bos_and_each_text_ends_with_eos(source, expected, is_cut):
    """Of two texts that are too long together the longer one is cut first."""
    assert encoded(ClassRows(BYTES, ["a", "b"], max_length=8), source) == (expected, is_cut)


def test_a_tag_stands_at_the_first_piece_of_its_word():
    encoder = TagRows(BYTES, ["B", "O"], max_length=8)
    rows = encoder.rows(["ab c", "abcd efgh i"])
    assert [row.tolist() for row in rows.ids] == [[BOS, *ids("abc"), EOS], [BOS, *ids("abcdef"), EOS]]
    first, second = encoder.targets(rows, ["O B", "B O B"])
    assert first.tolist() == [IGNORE, 1, IGNORE, 0, IGNORE]
    assert second.tolist() == [IGNORE, 0, IGNORE, IGNORE, IGNORE, 1, IGNORE, IGNORE]
    assert rows.is_cut.tolist() == [False, True]


def test_a_word_without_any_piece_is_unknown_and_not_lost():
    tokenizer = train_tokenizer(["ab ab ba ba"], kind="char", vocab_size=None, byte_fallback=False)
    assert tokenizer.encode(["\u200b"]) == [[]]
    rows = TagRows(tokenizer, ["B", "O"], max_length=20).rows(["a \u200b b"])
    assert len(rows.words[0]) == 3
    assert rows.ids[0][rows.words[0][1]] == tokenizer.unk_id


@pytest.mark.parametrize("encoder", [ClassRows(BYTES, ["no", "yes"], max_length=9), ValueRows(BYTES, max_length=9)])
def test_a_store_gives_back_rows_and_targets(tmp_path, encoder):
    labels = ["yes", "no", "yes"] if isinstance(encoder, ClassRows) else ["0.5", "-2", "1e3"]
    wanted = [1, 0, 1] if isinstance(encoder, ClassRows) else [0.5, -2.0, 1000.0]
    pairs = PairList(zip(["a", "", "a long text"], labels, strict=True))
    for _ in range(2):  # encoded, then read
        tokens = tokenize_rows(pairs, encoder, folder=tmp_path, description="corpus train")
        source, target = tokens.load(np.arange(3))
        assert source.lengths.tolist() == [3, 2, 9]
        assert target.flat.tolist() == wanted
        assert tokens.text(1) == ("", labels[1])
        assert (len(tokens), tokens.num_truncated, tokens.num_dropped) == (3, 1, 0)


def test_a_store_is_never_used_for_other_labels(tmp_path):
    """B22: the order of the labels is part of what decides the targets."""
    pairs = PairList([("a", "x"), ("b", "y")])
    for names in (["x", "y"], ["y", "x"]):
        tokens = tokenize_rows(
            pairs, ClassRows(BYTES, names, max_length=9), folder=tmp_path, description="corpus train"
        )
        assert [int(tokens.target(row)[0]) for row in range(2)] == [names.index("x"), names.index("y")]


def test_a_label_that_was_not_trained_is_named(tmp_path):
    """B21."""
    pairs = PairList([("a", "x"), ("b", "new")], name="test.tsv")
    with pytest.raises(DataError, match=r"row 2 of test\.tsv: label 'new' is none of the 2 of the training \(x, y\)"):
        tokenize_rows(pairs, ClassRows(BYTES, ["x", "y"], max_length=9), folder=tmp_path, description="test")
    with pytest.raises(DataError, match=r"row 2 of test\.tsv: tag 'new' is none of the 1"):
        tokenize_rows(pairs, TagRows(BYTES, ["x"], max_length=9), folder=tmp_path, description="test")
    with pytest.raises(DataError, match=r"row 1 of test\.tsv: label 'x' is no finite number"):
        tokenize_rows(pairs, ValueRows(BYTES, max_length=9), folder=tmp_path, description="test")
    with pytest.raises(DataError, match=r"test: empty holds no row"):
        tokenize_rows(PairList([], name="empty"), ValueRows(BYTES, max_length=9), folder=tmp_path, description="test")


@pytest.mark.parametrize("encoder", [ClassRows, TagRows])
def test_a_message_is_short_however_many_and_long_the_labels_are(tmp_path, encoder):
    names = [f"{number:04}{'x' * 5000}" for number in range(3000)]
    with pytest.raises(DataError, match=r"'yyy\S*\.\.\.' is none of the 3000 of the training \(0000x") as error:
        tokenize_rows(
            PairList([("a", "y" * 5000)]), encoder(BYTES, names, max_length=9), folder=tmp_path, description="test"
        )
    assert len(str(error.value)) < 2000


@pytest.fixture
def tokens(tmp_path):
    pairs = PairList([("abcdefgh"[: 1 + i % 8], "yn"[i % 2]) for i in range(23)])
    encoder = ClassRows(BYTES, ["n", "y"], max_length=16)
    return tokenize_rows(pairs, encoder, folder=tmp_path, description="corpus train"), encoder


def test_evaluation_batches_hold_every_row_once_with_its_target(tokens):
    store, encoder = tokens
    rows = []
    for batch in LabelledEvaluationBatches(store, encoder, max_tokens=40):
        assert batch.num_targets == len(batch.rows) == len(batch.target)
        for row, token_S, target in zip(batch.rows, batch.token_BS, batch.target, strict=True):
            assert token_S[token_S != BYTES.pad_id].tolist() == store.source(row).tolist()
            assert target == store.target(row)[0]
        if batch.allowed_BS is not None:
            assert torch.equal(batch.allowed_BS, batch.token_BS != BYTES.pad_id)
        rows += batch.rows.tolist()
    assert sorted(rows) == list(range(23))


def test_training_goes_on_at_its_saved_place(tokens):
    store, encoder = tokens
    batches = LabelledBatches(store, encoder, max_tokens=40, seed=3)
    first = [next(batches) for _ in range(4)]
    state = batches.state()
    wanted = [next(batches).rows.tolist() for _ in range(9)]
    again = LabelledBatches(store, encoder, max_tokens=40, seed=3)
    again.load_state(state)
    assert [next(again).rows.tolist() for _ in range(9)] == wanted
    assert len({tuple(batch.rows) for batch in first}) == 4


def test_sampled_segmentations_repeat_and_keep_targets(tmp_path):
    """A resumed run draws what the one before it drew."""
    texts = ["lower lowest newer newest wider widest"] * 4
    tokenizer = train_tokenizer(texts, kind="bpe", vocab_size=40, byte_fallback=False, sampling=0.5)
    encoder = TagRows(tokenizer, ["A", "B"], max_length=60)
    pairs = PairList([(text, "A B A B A B") for text in texts])
    tokens = tokenize_rows(pairs, encoder, folder=tmp_path, description="corpus train")
    one, two = (LabelledBatches(tokens, encoder, max_tokens=400, seed=1) for _ in range(2))
    drawn = set()
    for _ in range(4):
        batch = next(one)
        assert torch.equal(batch.token_BS, next(two).token_BS)
        assert batch.num_targets == 24
        assert [row[row != IGNORE].tolist() for row in batch.target] == [[0, 1, 0, 1, 0, 1]] * 4
        drawn |= {tuple(row.tolist()) for row in batch.token_BS}
    assert len(drawn) > 4


def test_another_segmentation_of_a_text_is_the_same_whatever_stands_beside_it():
    texts = ["abab\tbaba", "bababa\tab", "ab\tabba"]
    tokenizer = train_tokenizer(texts * 9, kind="bpe", vocab_size=20, byte_fallback=False, sampling=0.5)
    encoder = ClassRows(tokenizer, ["n", "y"], max_length=40)

    def rows(sources, number):
        return [row.tolist() for row in encoder.variant(sources, number).ids]

    assert rows(texts, 0) == [row.tolist() for row in encoder.rows(texts).ids]
    told = [tokenizer.decode(row) for row in rows(texts, 0)]
    for number in (1, 2, 3):
        assert rows(texts, number) == [*rows(texts[:1], number), *rows(texts[1:], number)]
        assert [tokenizer.decode(row) for row in rows(texts, number)] == told
    assert len({tuple(map(tuple, rows(texts, number))) for number in range(4)}) > 2
