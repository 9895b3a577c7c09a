"""What models give to targets that are there: teacher forcing.

B pairs, S source length, T target length, D model width, V vocabulary, N any flat count.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from headloom.models.seq2seq import Seq2Seq
from headloom.nn.attention import MultiHeadAttention, recording_attention

ROWS_AT_ONCE = 1024  # of logits_NV: 32 MB at a vocabulary of 8,000


def alignment_attention(model: Seq2Seq) -> MultiHeadAttention:
    """The attention to the source that says best what belongs to what: that of the last layer but one.

    Garg et al. (2019) teach that layer to align, because it comes closest by
    itself. Here nothing teaches it: expect a rough alignment.
    """
    blocks = list(model.decoder.blocks)
    attention = blocks[max(len(blocks) - 2, 0)].cross_attention
    assert isinstance(attention, MultiHeadAttention)
    return attention


def forced_log_probabilities(
    models: Sequence[Seq2Seq],
    source_BS: Tensor,
    source_allowed_BS: Tensor | None,
    target_input_BT: Tensor,
    target_BT: Tensor,
) -> tuple[Tensor, Tensor]:
    """log_prob_BT (nats, float32) of every target token given those before it, and attention_BTS to the source.

    Of several models the logarithm of their mean probability. The attention is
    the mean over heads of `alignment_attention`. What stands behind an eos means
    nothing.
    """
    by_model, attentions = [], []
    for model in models:
        with recording_attention(alignment_attention(model)) as recorded:
            hidden_ND = model(source_BS, source_allowed_BS, target_input_BT).flatten(0, 1)
        target_N = target_BT.flatten()
        parts = [
            model.logits(some_ND).log_softmax(-1).gather(1, token_N[:, None])[:, 0]
            for some_ND, token_N in zip(
                torch.split(hidden_ND, ROWS_AT_ONCE), torch.split(target_N, ROWS_AT_ONCE), strict=True
            )
        ]
        log_prob_N = torch.cat(parts)
        by_model.append(log_prob_N.view_as(target_BT))
        attentions.append(recorded[""].mean(1))
    return torch.stack(by_model).logsumexp(0) - math.log(len(models)), torch.stack(attentions).mean(0)
