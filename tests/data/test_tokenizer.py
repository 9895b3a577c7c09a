"""Tokenizers: specials, round trips, decoding of anything, state and sampling."""

import io
import pickle
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
import sentencepiece
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headloom.data.sentencepiece_model import model_kind, with_special_pieces
from headloom.data.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer, tokenizer_from_state, train_tokenizer
from headloom.errors import CheckpointError, ConfigError, DataError

ASCII_LINES = [
    f"the {a} {b} sat on the {c}" for a in ("old", "new", "red") for b in ("cat", "dog") for c in ["mat", "hut", "sea"]
]
STRANGE = "日本 😀 é"
LINE_ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"


def trained(kind: str = "bpe", vocab_size: int | None = 300, **options) -> Tokenizer:
    return train_tokenizer(ASCII_LINES, kind=kind, vocab_size=None if kind == "char" else vocab_size, **options)


@pytest.fixture(scope="module", params=["bpe", "unigram", "char", "byte"])
def tokenizer(request) -> Tokenizer:
    return ByteTokenizer() if request.param == "byte" else trained(request.param)


def stock_model(**options) -> bytes:
    """A model as another program trains it."""
    model = io.BytesIO()
    settings = {"model_type": "bpe", "vocab_size": 40, "hard_vocab_limit": False, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(ASCII_LINES), model_writer=model, **(settings | options)
    )
    return model.getvalue()


def load_stock(folder: Path, model: bytes, **options) -> Tokenizer:
    (folder / "stock.model").write_bytes(model)
    return load_tokenizer(folder / "stock.model", **options)


def specials(tokenizer: Tokenizer) -> list[int]:
    return [tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id]


def test_specials_are_distinct_ids_of_the_vocabulary(tokenizer):
    """B09."""
    assert len(set(specials(tokenizer))) == 4
    assert all(0 <= special < tokenizer.vocab_size for special in specials(tokenizer))


def test_a_stock_model_without_pad_gets_a_new_id_at_its_end(tmp_path):
    """B09: the default model of SentencePiece has pad -1, which an embedding takes for its last piece."""
    model = stock_model()
    original = sentencepiece.SentencePieceProcessor(model_proto=model)
    assert original.pad_id() == -1
    tokenizer = load_stock(tmp_path, model)
    assert tokenizer.pad_id == original.get_piece_size() == tokenizer.vocab_size - 1
    assert (tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 1, 2)
    assert tokenizer.encode(ASCII_LINES) == original.encode(ASCII_LINES)
    assert tokenizer.pieces([tokenizer.pad_id]) == ["<pad>"]


def test_every_missing_special_is_added_even_where_its_name_is_an_ordinary_piece(tmp_path):
    """B09."""
    tokenizer = load_stock(tmp_path, stock_model(bos_id=-1, eos_id=-1, user_defined_symbols=["</s>", "<pad>"]))
    assert len(set(specials(tokenizer))) == 4
    ordinary = tokenizer.encode(["the</s><pad>cat"])[0]
    assert not set(specials(tokenizer)) & set(ordinary)
    assert tokenizer.decode(ordinary) == "the</s><pad>cat"
    assert tokenizer.pieces([tokenizer.eos_id]) == ["<</s>>"]


def test_completing_a_model_twice_adds_no_second_piece():
    once = with_special_pieces(stock_model(), name="model")
    sizes = {
        sentencepiece.SentencePieceProcessor(model_proto=m).get_piece_size()
        for m in (once, with_special_pieces(once, name="model"))
    }
    assert len(sizes) == 1


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
def test_the_kind_is_read_from_the_model(kind):
    assert model_kind(stock_model(model_type=kind)) == kind


def test_names_of_specials_in_text_stay_text(tokenizer):
    text = "<s> </s> <pad> <unk> <0x41>"
    ids = tokenizer.encode([text])[0]
    assert not set(ids) & set(specials(tokenizer))
    assert tokenizer.decode(ids) == text


def test_unseen_characters_come_back_whole_through_bytes(tokenizer):
    """B11: no piece name, no replacement character, no question mark."""
    text = unicodedata.normalize("NFKC", STRANGE)
    assert tokenizer.decode(tokenizer.encode([text])[0]) == text


def test_a_cut_byte_sequence_is_left_out(tokenizer):
    """B11: every prefix and suffix decodes to characters of the text only."""
    ids = tokenizer.encode([STRANGE])[0]
    for i in range(len(ids)):
        for part in (ids[:i], ids[i:]):
            assert set(tokenizer.decode(part)) <= set(STRANGE)


def test_an_unknown_character_reads_the_same_on_every_round_trip():
    """B11: without byte fallback it is U+2047, and spaces do not grow around it."""
    tokenizer = trained(byte_fallback=False, vocab_size=60)
    once = tokenizer.decode(tokenizer.encode(["the 日 cat日sat"])[0])
    assert once == "the \u2047 cat\u2047sat"
    assert tokenizer.decode(tokenizer.encode([once])[0]) == once


def test_what_a_vocabulary_cannot_spell_is_named(tokenizer):
    text = "the 日 cat日sat"
    assert trained(byte_fallback=False, vocab_size=60).unknown(text) == ["日", "日"]
    assert trained(byte_fallback=False, vocab_size=60).unknown("the cat") == []
    assert tokenizer.unknown(text) == ByteTokenizer().unknown(text) == []


def test_specials_and_values_that_are_no_id_are_never_printed(tokenizer):
    ids = tokenizer.encode(["the cat"])[0]
    noise = [tokenizer.bos_id, *ids, tokenizer.eos_id, tokenizer.pad_id, -100, -1, tokenizer.vocab_size, 10**9]
    assert tokenizer.decode(noise) == "the cat"


def test_no_line_end_of_any_kind_is_decoded():
    """B01: one hypothesis is one line for `wc -l` and for every reader of the file."""
    for tokenizer in (ByteTokenizer(), trained(normalization="identity")):
        text = f"a{LINE_ENDS}b"
        assert tokenizer.decode(tokenizer.encode([text])[0]) == "a" + " " * len(LINE_ENDS) + "b"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-5, 400), max_size=12))
def test_decoding_takes_any_ids(ids):
    for tokenizer in (RANDOM_IDS_BPE, ByteTokenizer()):
        decoded = tokenizer.decode(ids)
        assert not set(decoded) & set(LINE_ENDS)
        assert "\ufffd" not in decoded
        decoded.encode("utf-8")


RANDOM_IDS_BPE = trained()


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
@pytest.mark.parametrize(
    "text", ["  x\ty  z ", "", " ", "\u00a0x\u3000", "ﬁne Ａ", STRANGE, "e\u0301", "\ufffd", "a\x00b", "the  cat "]
)
def test_identity_normalization_gives_the_text_back(kind, text):
    """B12: spaces, tabs, no-break and ideographic spaces and compatibility characters survive."""
    tokenizer = IDENTITY[kind]
    assert tokenizer.decode(tokenizer.encode([text])[0]) == text


IDENTITY = {kind: trained(kind, normalization="identity") for kind in ("bpe", "unigram", "char")}


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_characters=LINE_ENDS + "\u2581"), max_size=20))
def test_identity_and_bytes_give_any_line_back(text):
    """B12."""
    for tokenizer in (IDENTITY["bpe"], ByteTokenizer()):
        assert tokenizer.decode(tokenizer.encode([text])[0]) == text


def test_a_tokenizer_that_folds_case_reads_capitals_as_small_letters():
    folding = trained(normalization="nmt_nfkc_cf")
    assert folding.encode(["A DOG", "\u00c9t\u00e9"]) == folding.encode(["a dog", "\u00e9t\u00e9"])
    assert trained().encode(["A DOG"]) != trained().encode(["a dog"])


def test_blank_text_has_no_ids_under_the_default_normalization():
    assert trained().encode(["", " ", "\u3000\t"]) == [[], [], []]


def test_the_state_makes_an_equal_tokenizer_and_survives_a_safe_load(tokenizer, tmp_path):
    torch.save({"tokenizer": tokenizer.state()}, tmp_path / "file.pt")
    state = torch.load(tmp_path / "file.pt", weights_only=True)["tokenizer"]
    other = tokenizer_from_state(state)
    assert type(other) is type(tokenizer)
    assert other.fingerprint == tokenizer.fingerprint
    assert other.encode(ASCII_LINES) == tokenizer.encode(ASCII_LINES)
    assert specials(other) == specials(tokenizer)
    assert other.sampling == tokenizer.sampling


def test_a_stock_model_keeps_its_ids_through_its_state(tmp_path):
    tokenizer = load_stock(tmp_path, stock_model())
    other = tokenizer_from_state(tokenizer.state())
    assert (other.fingerprint, other.pad_id, other.vocab_size) == (
        tokenizer.fingerprint,
        tokenizer.pad_id,
        tokenizer.vocab_size,
    )


@pytest.mark.parametrize(
    "change", [{"kind": "wordpiece"}, {"model": b"garbage"}, {"fingerprint": "0" * 64}, {"kind": None}]
)
def test_a_state_that_is_not_what_it_says_is_refused(change):
    with pytest.raises(CheckpointError, match="saved tokenizer"):
        tokenizer_from_state(trained().state() | change)


def test_the_fingerprint_is_of_the_content():
    """B23: same size and other content differ, the same training again does not, nor does the sampling strength."""
    first = trained()
    assert trained().fingerprint == first.fingerprint
    assert trained(sampling=0.1).fingerprint == first.fingerprint
    other = train_tokenizer(
        [line.replace("cat", "cow") for line in ASCII_LINES], kind="bpe", vocab_size=first.vocab_size
    )
    assert other.vocab_size == first.vocab_size
    assert other.fingerprint != first.fingerprint


def test_a_file_that_is_no_model_is_refused_by_name(tmp_path):
    (tmp_path / "text.model").write_text("the cat", encoding="utf-8")
    (tmp_path / "empty.model").write_bytes(b"")
    for name in ("text.model", "empty.model", "missing.model"):
        with pytest.raises(DataError, match=name):
            load_tokenizer(tmp_path / name)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sampling_is_a_function_of_the_seed(kind):
    tokenizer = trained(kind, sampling=0.3)
    first = tokenizer.sample(ASCII_LINES, seed=5)
    assert tokenizer.sample(ASCII_LINES, seed=6) != first
    assert tokenizer.sample(ASCII_LINES, seed=5) == first
    assert first != tokenizer.encode(ASCII_LINES)
    assert [tokenizer.decode(ids) for ids in first] == ASCII_LINES


def test_sampling_is_the_same_in_another_process(tmp_path):
    tokenizer = trained(sampling=0.3)
    (tmp_path / "state").write_bytes(pickle.dumps(tokenizer.state()))
    program = (
        "import pickle, sys; from headloom.data.tokenizer import tokenizer_from_state\n"
        "t = tokenizer_from_state(pickle.load(open(sys.argv[1], 'rb')))\n"
        "t.sample(['the red dog'] * 9, seed=1); print(t.sample(sys.argv[2:], seed=5))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "state"), *ASCII_LINES],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "OMP_NUM_THREADS": "1"},
    )
    assert done.stdout.strip() == str(tokenizer.sample(ASCII_LINES, seed=5))


def test_sampling_where_there_is_nothing_to_sample_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="nothing to sample"):
        load_stock(tmp_path, stock_model(model_type="char"), sampling=0.1)
    with pytest.raises(ConfigError, match="one segmentation"):
        trained().sample(["a"], seed=1)
    with pytest.raises(ConfigError, match="one segmentation"):
        ByteTokenizer().sample(["a"], seed=1)
    with pytest.raises(ConfigError, match=r"1\.5"):
        trained(sampling=1.5)


def test_a_text_is_what_its_ids_write_one_behind_the_other(tokenizer):
    written = tokenizer.written()
    assert len(written) == tokenizer.vocab_size
    for text in [*ASCII_LINES, "old cat", STRANGE]:
        [ids] = tokenizer.encode([text])
        assert b"".join(written[i] for i in ids).decode().strip() == tokenizer.decode(ids)
    assert tokenizer.as_written("old cat").strip() == "old cat"
    assert [written[i] for i in specials(tokenizer) if i != tokenizer.unk_id] == [b"", b"", b""]


def test_pieces_name_every_id(tokenizer):
    names = tokenizer.pieces(range(tokenizer.vocab_size))
    assert len(names) == tokenizer.vocab_size
    assert len(set(names)) == tokenizer.vocab_size
    assert not any(set(name) & set(LINE_ENDS) for name in names)
