"""Training a tokenizer: limits that are explained, long lines, streams, determinism."""

import logging

import pytest

from headloom.data.tokenizer_training import MAX_LINE_BYTES, cut_line, train_tokenizer
from headloom.errors import ConfigError, DataError

LINES = ["the cat sat", "on the mat", "and the dog slept"]


def test_a_vocabulary_larger_than_the_text_supports_is_made_smaller_with_a_warning(caplog):
    """B07."""
    for kind in ("bpe", "unigram"):
        caplog.clear()
        tokenizer = train_tokenizer(LINES, kind=kind, vocab_size=32_000)
        assert 260 < tokenizer.vocab_size < 400
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert "tokenizer.vocab_size=32000" in record.getMessage()
        assert str(tokenizer.vocab_size) in record.getMessage()


@pytest.mark.parametrize(
    ("vocab_size", "byte_fallback", "message"),
    [
        (3, True, r"tokenizer\.vocab_size=3 .*261"),
        (262, True, r"tokenizer\.vocab_size=262 .*smaller than the characters"),
        (3, False, r"tokenizer\.vocab_size=3 .*5 at least"),
        (8, False, r"tokenizer\.vocab_size=8 .*smaller than the characters"),
    ],
)
def test_a_vocabulary_too_small_for_the_characters_is_refused(vocab_size, byte_fallback, message):
    """B07."""
    with pytest.raises(ConfigError, match=message):
        train_tokenizer(LINES, kind="bpe", vocab_size=vocab_size, byte_fallback=byte_fallback)


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "wordpiece"},
        {"normalization": "nfd"},
        {"character_coverage": 0.0},
        {"character_coverage": 1.1},
        {"vocab_size": None},
    ],
)
def test_an_option_out_of_range_is_refused(options):
    with pytest.raises(ConfigError, match=r"^tokenizer"):
        train_tokenizer(LINES, **({"kind": "bpe", "vocab_size": 300} | options))


@pytest.mark.parametrize("lines", [[], [""], ["", " ", "\u3000"]])
def test_text_without_a_character_is_refused(lines):
    with pytest.raises(DataError, match=f"{len(lines)} lines"):
        train_tokenizer(lines, kind="bpe", vocab_size=300)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_line_of_a_megabyte_is_learned_from(kind, caplog):
    """B08: SentencePiece skips lines over 4192 bytes and then complains that there are no sentences."""
    caplog.set_level(logging.INFO)
    tokenizer = train_tokenizer(["the cat sat on the mat " * 45_000, "short"], kind=kind, vocab_size=275)
    assert len(tokenizer.encode(["the cat sat on the mat"])[0]) < 20
    assert f"1 of 2 lines are longer than {MAX_LINE_BYTES} bytes" in caplog.text


@pytest.mark.parametrize("text", ["ab cd " * 9, "abcd" * 9, "日本語" * 9, " " * 40, "x" * 10, "é é" + "a" * 20 + " b"])
def test_a_long_line_is_cut_into_pieces_that_join_to_the_line(text):
    pieces = list(cut_line(text, 10))
    assert "".join(pieces) == text
    assert all(0 < len(piece.encode("utf-8")) <= 10 for piece in pieces)


def test_a_line_is_cut_before_a_space_where_there_is_one():
    assert list(cut_line("abcd efgh ijkl", 10)) == ["abcd efgh", " ijkl"]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
def test_training_again_gives_the_same_tokenizer(kind):
    vocab_size = None if kind == "char" else 280
    first, second = (train_tokenizer(iter(LINES), kind=kind, vocab_size=vocab_size) for _ in range(2))
    assert first.state() == second.state()


def test_a_char_tokenizer_has_every_character():
    tokenizer = train_tokenizer(["abc", "xyz日"], kind="char", vocab_size=None, byte_fallback=False)
    assert tokenizer.vocab_size == 4 + len("abcxyz日") + 1  # the specials and the space
    assert tokenizer.pieces(tokenizer.encode(["a日"])[0]) == ["▁", "a", "日"]


@pytest.mark.parametrize("failure", [DataError("train.en: line 7 is not UTF-8"), KeyboardInterrupt()])
def test_an_error_of_the_source_of_lines_comes_through_as_it_is(failure):
    def broken():
        yield "the cat"
        raise failure

    with pytest.raises(type(failure)) as caught:
        train_tokenizer(broken(), kind="bpe", vocab_size=300)
    assert caught.value is failure
