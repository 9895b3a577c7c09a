"""Our tokenizers, written for the library of Hugging Face, cut text into the same ids."""

from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece
from random_exports import changed

from headloom.config.schema import TrainConfig
from headloom.data.sentencepiece_model import Normalization, read_normalization, with_special_pieces
from headloom.data.tokenizer import ByteTokenizer, SentencePieceTokenizer, Tokenizer, train_tokenizer
from headloom.export.huggingface.tokenizer import first_difference, write_tokenizers
from headloom.work.base import Trained

transformers = pytest.importorskip("transformers")

TEXT = [
    "the hare and the tortoise ran a race, and the tortoise won",
    "der Hase und die Schildkröte liefen um die Wette",
    "she sells sea shells by the sea shore; he sells seven",
    "a man, a plan, a canal: 12 of 34 were seen in 1856",
] * 5
ODD = [
    "",
    "   ",
    "  two  spaces  ",
    "ａｂｃ ﬁ ½ e\u0301",
    "\u00a0a\u00a0",
    "hahahahahaha aaaaaa",
    "日本語 \N{GRINNING FACE}",
    "a\u200bb \ufeffc",
    "HARE",
]
SPECIALS = ["</s> a <s>", "<unk><pad>"]
PLAIN = {"vocab_size": 330, "byte_fallback": True}
KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte": ByteTokenizer,
    "bpe": lambda: train_tokenizer(TEXT, kind="bpe", **PLAIN),
    "bpe without bytes": lambda: train_tokenizer(TEXT, kind="bpe", vocab_size=90, byte_fallback=False),
    "bpe, as it is": lambda: train_tokenizer(TEXT, kind="bpe", normalization="identity", **PLAIN),
    "bpe, small letters": lambda: train_tokenizer(TEXT, kind="bpe", normalization="nmt_nfkc_cf", **PLAIN),
    "unigram": lambda: train_tokenizer(TEXT, kind="unigram", **PLAIN),
    "unigram without bytes": lambda: train_tokenizer(TEXT, kind="unigram", vocab_size=90, byte_fallback=False),
    "char": lambda: train_tokenizer(TEXT, kind="char", vocab_size=None, byte_fallback=False),
}


def trained(tokenizer: Tokenizer, config: TrainConfig | None = None) -> Trained:
    config = changed("seq2seq", "position=sinusoidal") if config is None else config
    side = "text" if config.model.kind.name == "lm" else "source"
    contents = {"tokenizers": {side: tokenizer.state(), "target": None}}
    return Trained(config, None, contents, 0, None, None)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_same_ids_and_the_same_text(kind: str, tmp_path: Path) -> None:
    ours = KINDS[kind]()
    write_tokenizers(trained(ours), tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    lines = [*TEXT[:4], *ODD, *([] if kind.startswith("unigram") else SPECIALS)]
    for line, ids in zip(lines, ours.encode(lines), strict=True):
        assert theirs(line, add_special_tokens=False)["input_ids"] == ids, line
        if ours.unk_id not in ids:
            assert theirs.decode(ids) == ours.decode_text(ids)
    assert first_difference(trained(ours), tmp_path, lines) is None
    assert theirs("the hare")["input_ids"] == [*ours.encode(["the hare"])[0], ours.eos_id]
    assert [theirs.pad_token_id, theirs.unk_token_id, theirs.bos_token_id, theirs.eos_token_id] == [
        ours.pad_id, ours.unk_id, ours.bos_id, ours.eos_id,
    ]  # fmt: skip


def test_running_text_keeps_its_line_ends_and_begins_with_bos(tmp_path: Path) -> None:
    ours = train_tokenizer(TEXT, kind="bpe", normalization="identity", running_text=True, **PLAIN)
    write_tokenizers(trained(ours, changed("lm", "position=sinusoidal")), tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = f" {TEXT[0]}\n\n  {TEXT[1]}\n"
    [ids] = ours.encode([text])
    assert theirs(text)["input_ids"] == [ours.bos_id, *ids]
    assert theirs.decode(ids) == text
    assert theirs(["a", text], padding=True)["input_ids"][0][0] == ours.pad_id  # a prompt is padded on the left


def test_unigrams_that_are_equally_likely_are_no_difference(tmp_path: Path) -> None:
    """Of seven dashes one is alone; the rounding of a sum in float32 says which."""
    text = [*TEXT, *["a--b -- c-d, the--hare -- a-b"] * 9]
    ours = train_tokenizer(text, kind="unigram", vocab_size=340, byte_fallback=True)
    write_tokenizers(trained(ours), tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    lines = [f"{start}{'-' * num}" for start in TEXT[:4] for num in range(3, 30)]
    found = [theirs(line, add_special_tokens=False)["input_ids"] for line in lines]
    assert found != ours.encode(lines)
    assert first_difference(trained(ours), tmp_path, lines) is None
    assert first_difference(trained(ours), tmp_path, [*lines, SPECIALS[0]]) == len(lines)
    other = train_tokenizer(TEXT, kind="unigram", vocab_size=300, byte_fallback=True)
    assert first_difference(trained(other), tmp_path, lines) == 0


def test_what_that_library_has_not_is_left_out(tmp_path: Path) -> None:
    """A symbol that is apart from others would have a space before what follows it there."""
    path = tmp_path / "own"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_prefix=str(path), vocab_size=60, user_defined_symbols=["won"], minloglevel=2
    )
    model = with_special_pieces(path.with_suffix(".model").read_bytes(), name="own")
    ours = SentencePieceTokenizer(model)
    write_tokenizers(trained(ours), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert first_difference(trained(ours), tmp_path / "out", TEXT) is None


def test_what_a_model_does_to_text_is_read_from_it() -> None:
    plain, running, kept = (
        read_normalization(
            train_tokenizer(TEXT, kind="char", vocab_size=None, byte_fallback=False, **options).state()["model"]
        )
        for options in ({}, {"running_text": True, "normalization": "identity"}, {"normalization": "identity"})
    )
    assert plain.character_map
    assert (plain.adds_space, plain.removes_spaces, plain.escapes_spaces) == (True, True, True)
    assert running == Normalization(adds_space=False, removes_spaces=False)
    assert kept == Normalization(removes_spaces=False)
