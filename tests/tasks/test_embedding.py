"""Contrastive losses. B batch, D model width."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headloom.data.batch import Batch
from headloom.data.sentence_batch import SentenceBatch, of_pairs
from headloom.data.tokenizer import ByteTokenizer
from headloom.nn.loss import IGNORE
from headloom.tasks.embedding import EmbeddingTask

BYTES = ByteTokenizer()


class Looks(nn.Module):
    """The vector of a row is that of its second token."""

    def __init__(self, vectors: list[list[float]]) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(torch.tensor(vectors), freeze=False)

    def forward(self, token_BS: Tensor, allowed_BS: Tensor | None) -> Tensor:
        return self.table(token_BS[:, 1])


def batch(first: list[int], second: list[int] | None) -> SentenceBatch:
    rows = [torch.tensor([[0, i] for i in ids]) for ids in (first, second) if ids is not None]
    return SentenceBatch(
        rows[0], None, rows[1] if second is not None else None, None, len(first), np.arange(len(first))
    )


def test_the_loss_of_two_pairs_worked_out_by_hand():
    """Cosines 1 and 0.6 of the first row, 0 and 0.8 of the second, over a temperature of 0.5."""
    model = Looks([[3.0, 0.0], [0.0, 2.0], [1.0, 0.0], [3.0, 4.0]])
    sums = EmbeddingTask(temperature=0.5, headline="loss").loss_sum(model, batch([0, 1], [2, 3]))
    one = math.log(math.exp(2.0) + math.exp(1.2)) - 2.0
    other = math.log(math.exp(0.0) + math.exp(1.6)) - 1.6
    torch.testing.assert_close(sums.loss, torch.tensor(one + other))
    assert (sums.num_targets, sums.num_correct.item()) == (2, 2)


def test_a_row_that_is_read_twice_has_its_own_second_pass_for_a_positive():
    """With dropout between the passes; without, every row is nearest to itself."""

    class Drops(Looks):
        def forward(self, token_BS: Tensor, allowed_BS: Tensor | None) -> Tensor:
            return nn.functional.dropout(super().forward(token_BS, allowed_BS), 0.5, self.training)

    model = Drops(torch.randn(4, 64).tolist())
    task = EmbeddingTask(temperature=0.05, headline="loss")
    quiet, noisy = (
        task.loss_sum(model.eval(), batch([0, 1, 2, 3], None)),
        task.loss_sum(model.train(), batch([0, 1, 2, 3], None)),
    )
    cosine_BB = (
        nn.functional.normalize(model.table.weight, dim=-1) @ nn.functional.normalize(model.table.weight, dim=-1).T
    )
    torch.testing.assert_close(quiet.loss, -(cosine_BB / 0.05).log_softmax(-1).diagonal().sum())
    assert quiet.num_correct == 4
    assert noisy.loss > quiet.loss
    noisy.loss.backward()
    assert model.table.weight.grad.abs().sum() > 0


def test_the_loss_depends_on_which_rows_share_a_batch():
    model = Looks(torch.randn(6, 5).tolist())
    task = EmbeddingTask(temperature=0.5, headline="loss")
    whole = task.loss_sum(model, batch([0, 1, 2], [3, 4, 5])).loss
    parts = [task.loss_sum(model, batch([i], [i + 3])).loss for i in range(3)]
    assert sum(parts).item() == pytest.approx(0.0, abs=1e-6)
    assert whole > 0.1
    assert batch([0, 1], None).halves() == ()


def test_both_sides_of_a_pair_begin_with_bos():
    translation = Batch(
        source_BS=torch.tensor([[7, 8, 3], [9, 3, 0]]),
        source_allowed_BS=torch.tensor([[True, True, True], [True, True, False]]),
        target_input_BT=torch.tensor([[2, 5], [2, 0]]),
        target_BT=torch.tensor([[5, 3], [3, IGNORE]]),
        num_targets=3,
        rows=np.array([4, 1]),
    )
    found = of_pairs(translation, BYTES)
    assert found.token_BS.tolist() == [[2, 7, 8, 3], [2, 9, 3, 0]]
    assert found.allowed_BS.tolist() == [[True] * 4, [True, True, True, False]]
    assert found.second_BS.tolist() == [[2, 5, 3], [2, 3, 0]]
    assert found.second_allowed_BS.tolist() == [[True] * 3, [True, True, False]]
    assert found.num_targets == 2
