"""Batches of running text: every target once, the input one position before it, and a place that can be sought."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from headloom.data.running_text import Documents, open_text
from headloom.data.sampler import permuted
from headloom.data.text_batch import TextEvaluationBatches, TextTrainingBatches
from headloom.data.text_sampler import (
    BlockOrder,
    BlockSampler,
    DocumentSampler,
    PackedSampler,
    rows_for,
    windows,
)
from headloom.data.text_store import TextTokens, tokenize_text
from headloom.data.tokenizer import ByteTokenizer
from headloom.errors import CheckpointError, ConfigError
from headloom.nn.loss import IGNORE

BYTES = ByteTokenizer()
LENGTH = 7
WORDS = ["a", "bc", "def", "ghij", "klmnopqrstuvwxyz", "0123456", "!"] * 3


@pytest.fixture
def tokens(tmp_path) -> TextTokens:
    return stored(tmp_path, "\n".join(WORDS))


def stored(folder: Path, content: str) -> TextTokens:
    path = folder / "text.txt"
    path.write_bytes(content.encode("utf-8"))
    text = open_text(path, Documents.line, cache=folder / "cache")
    return tokenize_text(text, BYTES, folder=folder / "prepared", description="train")


def samplers(tokens: TextTokens, seed: int = 1) -> dict[str, object]:
    blocks = {
        order.name: BlockSampler(len(tokens), length=LENGTH, num_rows=4, order=order, seed=seed) for order in BlockOrder
    }
    return {
        **blocks,
        "documents": DocumentSampler(tokens, length=LENGTH, max_tokens=28, seed=seed),
        "packed": PackedSampler(tokens, length=LENGTH, num_rows=4, seed=seed, pool_size=8),
    }


NAMES = ["shuffled", "random", "sequential", "documents", "packed"]


def batches(tokens: TextTokens, name: str, seed: int = 1) -> TextTrainingBatches:
    return TextTrainingBatches(tokens, BYTES, samplers(tokens, seed)[name])


def epoch(stream: TextTrainingBatches) -> list:
    number, found = stream.epoch, []
    while stream.epoch == number:
        found.append(next(stream))
    return found


@pytest.mark.parametrize("name", [name for name in NAMES if name != "random"])
def test_every_target_comes_once_an_epoch(tokens, name):
    everything = Counter(tokens.targets(0, len(tokens)).tolist())
    stream = batches(tokens, name)
    for _ in range(3):
        found = epoch(stream)
        targets = torch.cat([batch.target_BT.flatten() for batch in found])
        assert Counter(targets[targets != IGNORE].tolist()) == everything
        assert sum(batch.num_targets for batch in found) == len(tokens)
        assert all(batch.input_BT.numel() <= 28 for batch in found)


@pytest.mark.parametrize("name", NAMES)
def test_the_input_is_what_stands_before_the_target(tokens, name):
    """B44: bos before the first of a document, which eos ends; padding is neither read nor scored."""
    stream = tokens.targets(0, len(tokens)).tolist()
    inputs = [BYTES.bos_id, *(BYTES.bos_id if i == BYTES.eos_id else i for i in stream[:-1])]
    before = set(zip(inputs, stream, strict=True))
    for batch in epoch(batches(tokens, name)):
        real = batch.target_BT != IGNORE
        assert torch.equal(real, batch.input_BT != BYTES.pad_id)
        assert int(real.sum()) == batch.num_targets
        assert set(zip(batch.input_BT[real].tolist(), batch.target_BT[real].tolist(), strict=True)) <= before
        for inputs, targets in zip(batch.input_BT.tolist(), batch.target_BT.tolist(), strict=True):
            for left, right in zip(targets[:-1], inputs[1:], strict=True):
                if batch.stretch_BT is None and IGNORE not in (left, right) and right != BYTES.pad_id:
                    assert right == (BYTES.bos_id if left == BYTES.eos_id else left)


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_place_is_sought(tokens, name):
    """B55: also at the very end of an epoch, and in a later one."""
    for steps in (0, 1, 5, len(epoch(batches(tokens, name))), 40):
        whole = batches(tokens, name)
        for _ in range(steps):
            next(whole)
        resumed = batches(tokens, name)
        resumed.load_state(whole.state())
        for _ in range(25):
            one, other = next(whole), next(resumed)
            assert torch.equal(one.input_BT, other.input_BT)
            assert torch.equal(one.target_BT, other.target_BT)
        assert whole.epoch == resumed.epoch


@pytest.mark.parametrize("name", NAMES)
def test_a_place_in_another_text_is_refused(tokens, name, tmp_path):
    (tmp_path / "other").mkdir()
    other = stored(tmp_path / "other", "another text")
    with pytest.raises(CheckpointError, match=r"the saved place in the data was reached with num_\w+=\d+"):
        batches(other, name).load_state(batches(tokens, name).state())


@pytest.mark.parametrize("name", ["shuffled", "random", "documents", "packed"])
def test_order_depends_on_seed_and_epoch(tokens, name):
    def order(seed: int, epochs: int) -> list:
        stream = batches(tokens, name, seed)
        return [epoch(stream) for _ in range(epochs)][-1][0].target_BT.tolist()

    assert len({str(order(seed, epochs)) for seed, epochs in ((1, 1), (1, 2), (2, 1), (2, 2))}) == 4
    assert order(1, 2) == order(1, 2)


def test_packed_rows_are_full_and_know_their_stretches(tokens):
    for batch in epoch(batches(tokens, "packed")):
        if batch.stretch_BT is None:
            continue
        for stretch, position, inputs, targets in zip(
            *(t.tolist() for t in (batch.stretch_BT, batch.position_BT, batch.input_BT, batch.target_BT)), strict=True
        ):
            for t in range(1, len(stretch)):
                if stretch[t] == -1:
                    assert inputs[t] == BYTES.pad_id
                elif stretch[t] == stretch[t - 1]:
                    assert position[t] == position[t - 1] + 1
                    assert inputs[t] == targets[t - 1]
                else:
                    assert (stretch[t], position[t]) == (stretch[t - 1] + 1, 0)
    widths = [batch.input_BT.shape for batch in epoch(batches(tokens, "packed"))]
    assert sum(rows * width for rows, width in widths) - len(tokens) < 3 * LENGTH  # one short row a pool


def test_blocks_begin_elsewhere_in_each_epoch(tokens):
    stream = batches(tokens, "shuffled")
    firsts = [{tuple(row) for batch in epoch(stream) for row in batch.target_BT.tolist()} for _ in range(4)]
    assert len({frozenset(rows) for rows in firsts}) > 1


@pytest.mark.parametrize("order", BlockOrder)
def test_a_text_shorter_than_a_block_still_trains(tmp_path, order):
    """B19."""
    tokens = stored(tmp_path, "ab")
    sampler = BlockSampler(len(tokens), length=LENGTH, num_rows=4, order=order, seed=1)
    found = epoch(TextTrainingBatches(tokens, BYTES, sampler))
    assert [batch.target_BT.shape for batch in found] == [(1, 3)]


def test_a_batch_that_holds_no_row_is_refused():
    with pytest.raises(ConfigError, match=r"trainer\.max_tokens=63 cannot hold one row of data\.max_length=64 tokens"):
        rows_for(63, 64)
    assert rows_for(768, 64) == 12


@pytest.mark.parametrize(("length", "stride"), [(1, 1), (7, 7), (7, 3), (7, 1), (100, 50)])
@pytest.mark.parametrize("stop", [3, 4, 10, 11, 31])
def test_windows_score_every_target_once_with_the_context_promised(length, stride, stop):
    scored = []
    for begin, size, num_scored in windows(3, stop, length=length, stride=stride):
        assert begin >= 3
        assert size <= length
        first = begin + size - num_scored
        scored += range(first, begin + size)
        assert begin == 3 or first - begin >= length - stride
    assert scored == list(range(3, stop))


@pytest.mark.parametrize("within_documents", [False, True])
@pytest.mark.parametrize("stride", [LENGTH, 2])
@pytest.mark.parametrize("max_tokens", [1, 21, 10_000])
def test_evaluation_scores_every_target_once(tokens, within_documents, stride, max_tokens):
    """B19, B41: whatever the batch size."""
    found = TextEvaluationBatches(
        tokens, BYTES, length=LENGTH, stride=stride, max_tokens=max_tokens, within_documents=within_documents
    )
    assert len(list(found)) == len(found)
    targets = torch.cat([batch.target_BT[batch.target_BT != IGNORE] for batch in found])
    assert Counter(targets.tolist()) == Counter(tokens.targets(0, len(tokens)).tolist())
    assert sum(batch.num_targets for batch in found) == len(tokens)
    if within_documents:
        for batch in found:
            assert not (batch.input_BT[:, 1:] == BYTES.bos_id).any()


def test_a_place_is_reached_without_the_batches_before_it(tokens):
    sampler = BlockSampler(10**12, length=1024, num_rows=8, order=BlockOrder.shuffled, seed=3)
    state = {**sampler.state(), "epoch": 5, "batch": 10**7}
    sampler.load_state(state)
    stretches = next(sampler)
    assert stretches.lengths.tolist() == [1024] * 8
    shift = -int(stretches.starts[0]) % 1024
    num_blocks = -(-(10**12 + shift) // 1024)
    expected = permuted(np.arange(8 * 10**7, 8 * 10**7 + 8), num_blocks, seed=3, epoch=5) * 1024 - shift
    assert stretches.starts.tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["shuffled", "packed"])
def test_halves_hold_the_rows_of_a_batch(tokens, name):
    batch = next(batches(tokens, name))
    for field in ("input_BT", "target_BT", "stretch_BT", "position_BT"):
        whole, parts = getattr(batch, field), [getattr(half, field) for half in batch.halves()]
        assert whole is None or torch.equal(torch.cat(parts), whole)
    assert sum(half.num_targets for half in batch.halves()) == batch.num_targets
    assert batch.halves()[0].halves()[0].halves() == ()
