"""Muon: momentum whose matrices are made orthogonal before they are added.

Shapes: R rows, C columns (R <= C) of a matrix; M matrices of one shape.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic whose iteration drives singular values towards 1 (Jordan 2024); they settle in about 0.7 to 1.2."""
NUM_ITERATIONS = 5
SMALLEST_NORM = 1e-7


class Muon(Optimizer):
    """Muon for the matrices inside the blocks, AdamW for everything else.

    Jordan et al. (2024), "Muon: an optimizer for hidden layers in neural
    networks": Nesterov momentum, then the nearest semi-orthogonal matrix by
    Newton-Schulz, scaled by sqrt(max(1, rows / columns)). Embeddings, the
    output, biases and norms are no maps between hidden spaces and take AdamW
    at `adam_share` of the rate.

    PyTorch's own Muon always iterates in bfloat16, which is several times
    slower than float32 on a CPU without instructions for it; here the trainer
    says which type. Matrices of one shape are iterated together.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        momentum: float,
        adam_share: float,
        beta1: float,
        beta2: float,
        epsilon: float,
        weight_decay: float,
        dtype: torch.dtype,
    ) -> None:
        inside = {id(p) for name, p in model.named_parameters() if "blocks" in name and p.dim() == 2}
        matrices = [p for p in model.parameters() if id(p) in inside]
        others = [p for p in model.parameters() if id(p) not in inside]
        super().__init__(matrices, {"lr": 0.0, "rate_share": 1.0, "weight_decay": weight_decay})
        decayed = [p for p in others if p.dim() >= 2]
        kept = [p for p in others if p.dim() < 2]
        groups = [
            {"params": decayed, "weight_decay": weight_decay, "rate_share": adam_share},
            {"params": kept, "weight_decay": 0.0, "rate_share": adam_share},
        ]
        self._adam = AdamW(groups, betas=(beta1, beta2), eps=epsilon, fused=True)
        self._matrices = matrices
        # The trainer sets the rate of every group it sees; Adam's are the same objects.
        self.param_groups += self._adam.param_groups
        self._momentum = momentum
        self._dtype = dtype
        self._averages = [torch.zeros_like(p) for p in matrices]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        group = self.param_groups[0]
        for parameter, update in zip(self._matrices, self._updates(), strict=True):
            if group["weight_decay"]:
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.add_(update, alpha=-group["lr"] * max(1.0, parameter.size(0) / parameter.size(1)) ** 0.5)
        self._adam.step()

    def _updates(self) -> list[Tensor]:
        """The orthogonal matrix for each parameter, in order."""
        wide: list[Tensor] = []
        for parameter, average in zip(self._matrices, self._averages, strict=True):
            assert parameter.grad is not None
            average.lerp_(parameter.grad, 1 - self._momentum)
            ahead = parameter.grad.lerp(average, self._momentum)  # Nesterov
            wide.append(ahead if ahead.size(0) <= ahead.size(1) else ahead.T)
        by_shape: dict[torch.Size, list[int]] = {}
        for index, matrix in enumerate(wide):
            by_shape.setdefault(matrix.shape, []).append(index)
        for indices in by_shape.values():
            together_MRC = orthogonal(torch.stack([wide[i] for i in indices]).to(self._dtype))
            for index, matrix in zip(indices, together_MRC.unbind(), strict=True):
                wide[index] = matrix.float()
        return [w if p.shape == w.shape else w.T for p, w in zip(self._matrices, wide, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        return {"momentum": list(self._averages), "adam": self._adam.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for average, saved in zip(self._averages, state_dict["momentum"], strict=True):
            average.copy_(saved)
        self._adam.load_state_dict(state_dict["adam"])
        # Loading gives Adam new groups.
        self.param_groups[1:] = self._adam.param_groups


def orthogonal(x_MRC: Tensor) -> Tensor:
    """Matrices with the singular vectors of `x` and singular values near 1.

    Newton-Schulz: x <- a x + b (x x^T) x + c (x x^T)^2 x, from x of norm 1.
    """
    a, b, c = COEFFICIENTS
    x_MRC = x_MRC / x_MRC.norm(dim=(1, 2), keepdim=True).clamp_min(SMALLEST_NORM)
    for _ in range(NUM_ITERATIONS):
        square_MRR = x_MRC @ x_MRC.mT
        mix_MRR = torch.baddbmm(square_MRR, square_MRR, square_MRR, beta=b, alpha=c)
        x_MRC = torch.baddbmm(x_MRC, mix_MRR, x_MRC, beta=a)
    return x_MRC
