"""An average of the weights over the steps, which scores better than the last weights alone."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

WARMUP = 10  # the first averages forget faster: decay at update u is at most (1 + u) / (WARMUP + u)


class WeightAverage:
    """Exponential moving average of the parameters (Tarvainen and Valpola 2017, section 2).

    A tied matrix is averaged once. Buffers are no parameters and stay the model's.
    """

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        self.decay = decay
        self._model = model
        self.begin()

    def begin(self) -> None:
        """Forget all weights but those of now."""
        self.num_updates = 0
        self._average = {name: p.detach().clone() for name, p in self._model.named_parameters()}

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights as they are now."""
        decay = min(self.decay, (1 + self.num_updates) / (WARMUP + self.num_updates))
        self.num_updates += 1
        for name, parameter in self._model.named_parameters():
            self._average[name].lerp_(parameter.detach(), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the model has the averaged weights; afterwards its own, bit for bit."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, parameter in self._model.named_parameters():
            average = self._average[name]
            kept = parameter.detach().clone()
            parameter.copy_(average)  # in place: a sharded weight is known by its memory
            average.copy_(kept)

    def state(self) -> dict[str, Any]:
        return {"num_updates": self.num_updates, "weights": dict(self._average)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.num_updates = state["num_updates"]
        weights: Mapping[str, Tensor] = state["weights"]
        for name, average in self._average.items():
            average.copy_(weights[name])
