"""What `train/tokens_per_second` counts: tokens, also where a row has one target."""

import numpy as np
import torch

from headloom.data.labelled_batch import LabelledBatch
from headloom.data.sentence_batch import SentenceBatch

TOKEN_BS = torch.ones(2, 3, dtype=torch.int64)
ALLOWED_BS = torch.tensor([[True, True, True], [True, False, False]])
ROWS = np.arange(2)


def test_a_batch_of_labelled_rows_counts_its_real_tokens():
    target = torch.zeros(2, dtype=torch.int64)
    assert LabelledBatch(TOKEN_BS, ALLOWED_BS, target, 2, ROWS).num_tokens == 4
    assert LabelledBatch(TOKEN_BS, None, target, 2, ROWS).num_tokens == 6


def test_a_batch_of_sentences_counts_those_of_both_sides():
    assert SentenceBatch(TOKEN_BS, ALLOWED_BS, TOKEN_BS, None, 2, ROWS).num_tokens == 10
    assert SentenceBatch(TOKEN_BS, ALLOWED_BS, None, None, 2, ROWS).num_tokens == 4
