"""Hidden tokens. B batch, S length of a row."""

import itertools

import numpy as np
import pytest
import torch

from headloom.data.masking import (
    MaskedBatches,
    MaskedEvaluationBatches,
    MaskedRows,
    Masker,
    Masking,
    mask_id,
    uniform,
)
from headloom.data.running_text import Documents, open_text
from headloom.data.text_sampler import BlockOrder, BlockSampler, DocumentSampler
from headloom.data.text_store import TextTokens, tokenize_text
from headloom.data.tokenizer import ByteTokenizer, train_tokenizer
from headloom.nn.loss import IGNORE

BYTES = ByteTokenizer()
LINES = ["the cat sat on a mat", "a dog", "x", "the red dog slept on the mat and the cat"] * 5


@pytest.fixture
def tokens(tmp_path) -> TextTokens:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{line}\n" for line in LINES))
    text = open_text(path, Documents.line, cache=tmp_path)
    return tokenize_text(text, BYTES, folder=tmp_path, description="text")


def ids(text: str) -> list[int]:
    return BYTES.encode([text])[0]


def hidden(masking: Masking, token_BS, tokenizer=BYTES, draw="1 0"):
    token_BS = np.array(token_BS)
    place_BS = np.arange(token_BS.size).reshape(token_BS.shape)
    return Masker(tokenizer, masking).hide(token_BS, place_BS, draw=draw)


def test_of_each_row_the_share_is_hidden_and_one_at_least():
    row = [BYTES.bos_id, *ids("abcdefghijklmnopqrst"), BYTES.eos_id]
    short = [BYTES.bos_id, *ids("ab"), BYTES.eos_id] + [BYTES.pad_id] * 18
    empty = [BYTES.bos_id, BYTES.eos_id] + [BYTES.pad_id] * 20
    input_BS, target_BS = hidden(Masking(mask_share=1.0, random_share=0.0), [row, short, empty])
    assert (target_BS != IGNORE).sum(1).tolist() == [3, 1, 0]
    is_hidden_BS = input_BS == mask_id(BYTES)
    assert np.array_equal(is_hidden_BS, target_BS != IGNORE)
    assert np.array_equal(np.where(is_hidden_BS, target_BS, input_BS), [row, short, empty])


def test_the_hidden_ones_are_masked_changed_and_kept_in_the_shares_of_the_paper():
    token_BS = np.full((200, 101), ids("a")[0])
    input_BS, target_BS = hidden(Masking(), token_BS)
    asked = target_BS != IGNORE
    assert asked.sum() == 200 * 15
    assert not asked[:, 0].any()  # what leads a row is read, never asked for
    masked, kept = (input_BS == mask_id(BYTES)), input_BS == token_BS
    assert not masked[~asked].any()
    assert kept[~asked].all()
    assert masked.sum() / asked.sum() == pytest.approx(0.8, abs=0.03)
    assert (kept & asked).sum() / asked.sum() == pytest.approx(0.1 + 0.1 / 256, abs=0.02)
    changed = input_BS[asked & ~masked & ~kept]
    assert len(set(changed.tolist())) > 100
    assert changed.min() >= 4  # no special
    assert np.array_equal(np.unique(asked.sum(0) > 0), [False, True])


def test_all_pieces_of_a_word_are_hidden_or_none():
    text = "hello big world of little words and tiny things that are hidden whole or not"
    row = [BYTES.bos_id, *ids(text)]
    _, target_BS = hidden(Masking(whole_words=True, probability=0.3), [row] * 20)
    begins = [0] + [i for i, letter in enumerate(text) if letter == " "] + [len(text)]
    counts = []
    for target in target_BS[:, 1:] != IGNORE:
        for start, stop in itertools.pairwise(begins):
            assert target[start:stop].all() or not target[start:stop].any()
        counts.append(target.sum())
    assert np.mean(counts) == pytest.approx(0.3 * len(text), rel=0.15)


def test_words_begin_at_blanks_line_ends_and_wide_characters():
    tokenizer = train_tokenizer(
        ["the cat", "sat on 你好 mats"],
        kind="char",
        vocab_size=None,
        normalization="identity",
        byte_fallback=False,
        running_text=True,
    )
    text = "cat on\nmats 你好"
    encoded = tokenizer.encode([text])[0]
    assert len(encoded) == len(text)
    masking = Masking(whole_words=True, probability=1e-9, mask_share=1.0, random_share=0.0)
    found = set()
    for number in range(200):
        _, target_BS = hidden(masking, [[tokenizer.bos_id, *encoded]], tokenizer, draw=f"{number}")
        found.add("".join(letter for letter, target in zip(text, target_BS[0, 1:], strict=True) if target != IGNORE))
    assert found == {"cat", " on", "\n", "mats", " ", "你", "好"}


def test_draws_are_even_and_differ():
    draws = uniform("a", np.arange(20_000))
    assert 0 <= draws.min() < draws.max() < 1
    assert np.histogram(draws, bins=10)[0] == pytest.approx([2000] * 10, rel=0.1)
    assert abs(np.corrcoef(draws, uniform("b", np.arange(20_000)))[0, 1]) < 0.03


def batches(tokens: TextTokens, *, seed: int = 1, documents: bool = True) -> MaskedBatches:
    sampler = (
        DocumentSampler(tokens, length=12, max_tokens=64, seed=seed)
        if documents
        else BlockSampler(len(tokens), length=12, num_rows=4, order=BlockOrder.shuffled, seed=seed)
    )
    return MaskedBatches(MaskedRows(tokens, BYTES, Masker(BYTES, Masking())), sampler, seed=seed)


@pytest.mark.parametrize("documents", [False, True])
def test_a_resumed_run_hides_the_same_tokens_and_another_epoch_others(tokens, documents):
    straight = batches(tokens, documents=documents)
    while straight.epoch == 0:
        next(straight)
    resumed = batches(tokens, documents=documents)
    resumed.load_state(straight.state())
    for _ in range(5):
        one, other = next(straight), next(resumed)
        assert torch.equal(one.token_BS, other.token_BS)
        assert torch.equal(one.target, other.target)
        assert one.num_targets == int((one.target != IGNORE).sum()) > 0
    rows = MaskedRows(tokens, BYTES, Masker(BYTES, Masking()))
    starts, lengths = np.array([0]), np.array([20])
    drawn = [rows.batch(starts, lengths, draw=draw).target for draw in ("1 0", "1 1", "2 0")]
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_a_line_is_a_row_between_bos_and_eos(tokens):
    rows = MaskedRows(tokens, BYTES, Masker(BYTES, Masking()))
    starts, lengths = tokens.documents(1, 3)
    batch = rows.batch(starts, lengths, draw="any")
    whole_BS = torch.where(batch.target == IGNORE, batch.token_BS, batch.target)
    dog = [BYTES.bos_id, *ids("a dog"), BYTES.eos_id]
    assert whole_BS.tolist()[0] == dog or batch.num_targets >= 2  # a kept or random piece may be asked for
    assert batch.allowed_BS.sum(1).tolist() == [7, 3]
    assert whole_BS[1].tolist() == [BYTES.bos_id, *ids("x"), BYTES.eos_id, *[BYTES.pad_id] * 4]


def test_an_evaluation_hides_the_same_tokens_however_it_is_batched(tokens):
    def found(max_tokens: int) -> dict[int, list[int]]:
        rows = MaskedRows(tokens, BYTES, Masker(BYTES, Masking()))
        evaluation = MaskedEvaluationBatches(tokens, rows, length=12, max_tokens=max_tokens, within_documents=True)
        return {
            int(start): [i for i in target if i != IGNORE]
            for batch in evaluation
            for start, target in zip(batch.rows, batch.target.tolist(), strict=True)
        }

    small, large = found(16), found(400)
    assert small == large
    assert len(small) == 5 * (2 + 1 + 1 + 4)
