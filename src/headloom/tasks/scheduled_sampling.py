"""Scheduled sampling: in training a decoder reads some of its own predictions in place of the true tokens.

Shapes: B batch, T target length, D model width, N any flat count, V vocabulary.
"""

import math
from enum import Enum
from typing import assert_never

import torch
from torch import Tensor

from headloom.data.batch import Batch
from headloom.models.seq2seq import Seq2Seq
from headloom.nn import loss
from headloom.nn.loss import IGNORE
from headloom.nn.mixture import MixtureOfExperts


class Decay(Enum):
    """How the share of true tokens falls from 1 with the number i of updates made; k is `num_steps`."""

    constant = "constant"  # 0 from the start
    linear = "linear"  # 1 - i / k, at least 0
    exponential = "exponential"  # exp(-i / k)
    inverse_sigmoid = "inverse_sigmoid"  # k / (k + exp(i / k)): half at about k ln k


class ScheduledSampling:
    """Bengio et al. (2015), section 2.4, in two passes: Mihaylova and Martins (2019), section 3.

    The first pass reads the true tokens and finds the likeliest token at each
    place; the second reads some of these in place of the true ones, and has
    the gradient. Each token is replaced on its own, with a probability of
    `probability` times what `decay` has taken of the true ones.
    """

    def __init__(self, *, probability: float, decay: Decay, num_steps: int | None) -> None:
        assert (decay is Decay.constant) == (num_steps is None)
        self.probability = probability
        self.decay = decay
        self.num_steps = num_steps
        self.step = 0
        """Updates made so far."""

    def probability_at(self, step: int) -> float:
        """The probability that a token is replaced, after `step` updates."""
        return self.probability * (1 - self._true_share(step))

    def _true_share(self, step: int) -> float:
        if self.num_steps is None:
            return 0.0
        passed = step / self.num_steps
        match self.decay:
            case Decay.constant:
                return 0.0
            case Decay.linear:
                return max(0.0, 1 - passed)
            case Decay.exponential:
                return math.exp(-passed)
            case Decay.inverse_sigmoid:
                return 0.0 if passed > 700 else self.num_steps / (self.num_steps + math.exp(passed))
            case _:
                assert_never(self.decay)

    @torch.no_grad()
    def inputs(self, model: Seq2Seq, batch: Batch, real_BT: Tensor | None) -> Tensor:
        """What the decoder reads: input_BT of `batch` with some tokens replaced.

        Random numbers are drawn from the generator of the device, and none where nothing can be replaced.
        """
        probability = self.probability_at(self.step)
        if probability == 0:
            return batch.target_input_BT
        hidden_BTD = model(batch.source_BS, batch.source_allowed_BS, batch.target_input_BT, real_BT)
        if model.routes_tokens:
            for module in model.modules():
                if isinstance(module, MixtureOfExperts):
                    module.take()  # the losses of the second pass count
        likeliest_BT = _likeliest(model, hidden_BTD.flatten(0, 1)).view(batch.target_BT.shape)
        replaced_BT = torch.rand(batch.target_BT.shape, device=batch.target_BT.device) < probability
        replaced_BT &= batch.target_BT != IGNORE
        replaced_BT[:, 0] = False  # bos
        return torch.where(replaced_BT, likeliest_BT.roll(1, 1), batch.target_input_BT)


def _likeliest(model: Seq2Seq, hidden_ND: Tensor) -> Tensor:
    chunk = max(1, loss.CHUNK_LOGITS // model.output_weight.size(0))
    return torch.cat([model.logits(part_CD).argmax(-1) for part_CD in torch.split(hidden_ND, chunk)])
