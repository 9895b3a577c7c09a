"""Batches of tensors: padding, the shift, sampling and resuming."""

from pathlib import Path

import numpy as np
import pytest
import torch

from headloom.data.batch import Batch, EvaluationBatches, TrainingBatches
from headloom.data.text import PairList
from headloom.data.token_store import TokenPairs, tokenize_pairs
from headloom.data.tokenizer import ByteTokenizer, Tokenizer, train_tokenizer
from headloom.errors import CheckpointError, ConfigError
from headloom.nn.loss import IGNORE

BYTES = ByteTokenizer()
WORDS = ["the", "cat", "sat", "on", "a", "red", "mat", "and", "the", "dog", "slept"]
PAIRS = [(" ".join(WORDS[i % 5 : i % 5 + 1 + i % 3]), " ".join(WORDS[i % 7 : i % 7 + 1 + i % 4])) for i in range(60)]
SAMPLING = train_tokenizer([text for pair in PAIRS for text in pair], kind="bpe", vocab_size=300, sampling=0.4)


def store(folder: Path, pairs=PAIRS, tokenizer: Tokenizer = BYTES, max_length: int = 64) -> TokenPairs:
    return tokenize_pairs(
        PairList(pairs), tokenizer, tokenizer, folder=folder, max_length=max_length, description="train"
    )


def training(folder: Path, tokenizer: Tokenizer = BYTES, **options) -> TrainingBatches:
    tokens = store(folder, tokenizer=tokenizer)
    return TrainingBatches(tokens, tokenizer, tokenizer, **({"max_tokens": 100, "seed": 1} | options))


def equal(one: Batch, other: Batch) -> bool:
    return (
        torch.equal(one.source_BS, other.source_BS)
        and torch.equal(one.target_BT, other.target_BT)
        and np.array_equal(one.rows, other.rows)
    )


def test_a_batch_is_padded_on_the_right_and_shifted_by_one(tmp_path):
    tokens = store(tmp_path, [("ab", "x"), ("c", "yz")])
    (batch,) = EvaluationBatches(tokens, BYTES, BYTES, max_tokens=100)
    order = batch.rows.tolist()
    a, b, c, x, y, z = (ord(letter) + 4 for letter in "abcxyz")
    pad, bos, eos = BYTES.pad_id, BYTES.bos_id, BYTES.eos_id
    assert batch.source_BS[np.argsort(order)].tolist() == [[a, b, eos], [c, eos, pad]]
    assert batch.source_allowed_BS[np.argsort(order)].tolist() == [[True, True, True], [True, True, False]]
    assert batch.target_input_BT[np.argsort(order)].tolist() == [[bos, x, pad], [bos, y, z]]
    assert batch.target_BT[np.argsort(order)].tolist() == [[x, eos, IGNORE], [y, z, eos]]
    assert batch.num_targets == 5
    assert batch.source_BS.dtype == batch.target_input_BT.dtype == batch.target_BT.dtype == torch.int64


def test_every_row_of_every_batch_is_its_pair(tmp_path):
    """Read back from the tensors alone: source, decoder input, target and the count of targets."""
    batches = training(tmp_path)
    seen = 0
    while batches.epoch == 0:
        batch = next(batches)
        real_BT = batch.target_BT != IGNORE
        assert batch.num_targets == int(real_BT.sum())
        assert torch.equal(batch.target_input_BT[:, 1:][real_BT[:, 1:]], batch.target_BT[:, :-1][real_BT[:, 1:]])
        assert (batch.target_input_BT[:, 0] == BYTES.bos_id).all()
        assert (batch.target_input_BT[~real_BT] == BYTES.pad_id).all()
        for i, row in enumerate(batch.rows):
            assert BYTES.decode(batch.source_BS[i].tolist()) == PAIRS[row][0]
            assert BYTES.decode(batch.target_BT[i][real_BT[i]].tolist()) == PAIRS[row][1]
            assert batch.target_BT[i][real_BT[i]][-1] == BYTES.eos_id
            seen += 1
    assert seen == len(PAIRS)


def test_no_mask_comes_with_a_batch_without_padding(tmp_path):
    tokens = store(tmp_path, [("ab", "x"), ("cd", "yz")])
    (batch,) = EvaluationBatches(tokens, BYTES, BYTES, max_tokens=100)
    assert batch.source_allowed_BS is None
    assert batch.to(torch.device("cpu")).source_allowed_BS is None


def test_widths_are_rounded_up_to_the_multiple(tmp_path):
    batches = training(tmp_path, pad_to_multiple=8)
    for _ in range(20):
        batch = next(batches)
        assert batch.source_BS.shape[1] % 8 == batch.target_BT.shape[1] % 8 == 0
        assert batch.target_BT.numel() <= 100
        assert batch.source_BS.numel() <= 100


def test_a_corpus_smaller_than_a_batch_is_one_batch_an_epoch(tmp_path):
    """B19."""
    tokens = store(tmp_path, [("ab", "x")])
    batches = TrainingBatches(tokens, BYTES, BYTES, max_tokens=4096, seed=1)
    for epoch in range(3):
        assert batches.epoch == epoch
        assert next(batches).rows.tolist() == [0]
    (batch,) = EvaluationBatches(tokens, BYTES, BYTES, max_tokens=4096)
    assert batch.num_targets == 2


def test_evaluation_batches_are_the_same_each_time_and_hold_every_row(tmp_path):
    """B19."""
    batches = EvaluationBatches(store(tmp_path), BYTES, BYTES, max_tokens=100)
    first, second = list(batches), list(batches)
    assert len(first) == len(batches) > 1
    assert all(equal(a, b) for a, b in zip(first, second, strict=True))
    assert sorted(row for batch in first for row in batch.rows.tolist()) == list(range(len(PAIRS)))


@pytest.mark.parametrize("sampling", [False, True])
def test_a_resumed_run_reads_the_same_batches(tmp_path, sampling):
    """B55: the state is of the batches handed out; sampled ids come again too."""
    straight = training(tmp_path, SAMPLING, sampling=sampling)
    for _ in range(9):
        next(straight)
    resumed = training(tmp_path, SAMPLING, sampling=sampling)
    resumed.load_state(straight.state())
    for _ in range(30):
        assert equal(next(resumed), next(straight))
    assert resumed.epoch == straight.epoch > 0


def test_a_state_of_another_corpus_is_refused(tmp_path):
    state = training(tmp_path).state()
    tokens = store(tmp_path, PAIRS[:-1])
    with pytest.raises(CheckpointError, match="num_rows"):
        TrainingBatches(tokens, BYTES, BYTES, max_tokens=100, seed=1).load_state(state)


def test_sampled_ids_change_with_the_epoch_and_decode_to_the_same_text(tmp_path):
    batches = training(tmp_path, SAMPLING, sampling=True)
    plain = store(tmp_path, tokenizer=SAMPLING)
    drawn: list[dict[int, list[int]]] = [{}, {}]
    while (epoch := batches.epoch) < 2:
        batch = next(batches)
        for i, row in enumerate(batch.rows.tolist()):
            drawn[epoch][row] = batch.source_BS[i].tolist()
            target = batch.target_BT[i][batch.target_BT[i] != IGNORE].tolist()
            assert SAMPLING.decode(drawn[epoch][row]) == PAIRS[row][0]
            assert SAMPLING.decode(target) == PAIRS[row][1]
            assert target[-1] == SAMPLING.eos_id
    assert drawn[0] != drawn[1]
    longest = max(plain.source_lengths.max(), plain.target_lengths.max())
    assert max(len(ids) for ids in drawn[0].values()) <= longest


def test_a_drawn_row_that_is_too_long_keeps_its_plain_encoding(tmp_path):
    """No position is seen in training that the plain encoding does not reach."""
    characters = train_tokenizer([text for pair in PAIRS for text in pair], kind="bpe", vocab_size=300, sampling=1.0)
    tokens = store(tmp_path, tokenizer=characters)
    batches = TrainingBatches(tokens, characters, characters, max_tokens=100, seed=1, sampling=True)
    longest = max(tokens.source_lengths.max(), tokens.target_lengths.max())
    num_plain = num_drawn = 0
    while batches.epoch == 0:
        batch = next(batches)
        for i, row in enumerate(batch.rows.tolist()):
            ids = [t for t in batch.source_BS[i].tolist() if t != characters.pad_id]
            if len(PAIRS[row][0]) + 2 <= longest:  # one piece a character, the space in front, eos
                assert len(ids) == len(PAIRS[row][0]) + 2
                num_drawn += 1
            else:
                assert ids == tokens.source(row).tolist()
                num_plain += 1
    assert min(num_plain, num_drawn) > 0


def test_sampling_without_a_strength_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="sampling strength is 0"):
        training(tmp_path, sampling=True)


def test_lf_and_crlf_files_give_the_same_ids(tmp_path):
    """B02."""
    from headloom.data.files import open_tsv

    batches = []
    for name, end in (("lf", b"\n"), ("crlf", b"\r\n")):
        path = tmp_path / f"{name}.tsv"
        path.write_bytes(b"".join(f"{source}\t{target}".encode() + end for source, target in PAIRS))
        pairs = open_tsv(path, cache=tmp_path / "cache")
        tokenizer = train_tokenizer(
            (text for pair in pairs for text in pair), kind="bpe", vocab_size=300, normalization="identity"
        )
        assert not any("\r" in piece for piece in tokenizer.pieces(range(tokenizer.vocab_size)))
        tokens = tokenize_pairs(
            pairs, tokenizer, tokenizer, folder=tmp_path / "cache", max_length=64, description="train"
        )
        batches.append(next(TrainingBatches(tokens, tokenizer, tokenizer, max_tokens=100, seed=1)))
    assert equal(*batches)


@pytest.mark.parametrize("sides", [(True, False), (False, True)])
def test_one_side_alone_can_be_sampled(tmp_path, sides):
    """The other has its plain encoding, and the one that is sampled the draws that it has with both."""
    one, both = (
        training(tmp_path, SAMPLING, sampling=True, sampled_sides=sides),
        training(tmp_path, SAMPLING, sampling=True),
    )
    plain = training(tmp_path, SAMPLING)
    num_differing = 0
    while plain.epoch == 0:
        batch, sampled, unsampled = next(one), next(both), next(plain)
        assert torch.equal(batch.source_BS, (sampled if sides[0] else unsampled).source_BS)
        assert torch.equal(batch.target_BT, (sampled if sides[1] else unsampled).target_BT)
        num_differing += not equal(batch, unsampled)
    assert num_differing > 0
