"""Muon: momentum whose matrices are made orthogonal before they are added.

Shapes: R rows, C columns (R <= C) of a matrix; M matrices of one shape.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from headloom.training.optim import DecayRule, Role, decay_groups, roles

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
    says which type. Matrices of one shape are iterated together. A parameter of
    three dimensions, such as the experts of a mixture, is a stack of matrices;
    one without a gradient stays as it is.
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
        rule: DecayRule = DecayRule(),  # noqa: B008  (frozen)
    ) -> None:
        role = roles(model)
        matrices = [p for name, p in model.named_parameters() if "blocks" in name and role[name] is Role.matrix]
        super().__init__([{"params": matrices}], {"lr": 0.0, "rate_share": 1.0, "weight_decay": weight_decay})
        groups = decay_groups(model, rule, weight_decay, without=matrices)
        for group in groups:
            group["rate_share"] = adam_share
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
        moved = [(p, average) for p, average in zip(self._matrices, self._averages, strict=True) if p.grad is not None]
        if moved:
            parameters, averages = map(list, zip(*moved, strict=True))
            gradients = [parameter.grad for parameter in parameters]
            torch._foreach_lerp_(averages, gradients, 1 - self._momentum)
            ahead = torch._foreach_lerp(gradients, averages, self._momentum)  # Nesterov
            if group["weight_decay"]:
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            for parameter, update in zip(parameters, self._orthogonal(ahead), strict=True):
                parameter.add_(update, alpha=-group["lr"] * max(1.0, parameter.size(-2) / parameter.size(-1)) ** 0.5)
        self._adam.step()

    def _orthogonal(self, matrices: Sequence[Tensor]) -> list[Tensor]:
        """Each matrix or stack of matrices made orthogonal, those of one shape together."""
        found: list[Tensor] = list(matrices)
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for index, matrix in enumerate(matrices):
            by_shape.setdefault(tuple(sorted(matrix.shape[-2:])), []).append(index)
        for (num_rows, num_columns), indices in by_shape.items():
            counts = [matrices[i].shape[:-2].numel() for i in indices]
            together_MRC = torch.empty(
                sum(counts), num_rows, num_columns, dtype=self._dtype, device=matrices[indices[0]].device
            )
            parts = torch.split(together_MRC, counts)
            for index, part_MRC in zip(indices, parts, strict=True):
                part_MRC.copy_(_wide(matrices[index]).reshape(part_MRC.shape))
            parts = torch.split(orthogonal(together_MRC), counts)
            for index, part_MRC in zip(indices, parts, strict=True):
                shape = matrices[index].shape
                turned = shape[-2] > shape[-1]
                found[index] = (part_MRC.mT if turned else part_MRC).reshape(shape)
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"momentum": list(self._averages), "adam": self._adam.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for average, saved in zip(self._averages, state_dict["momentum"], strict=True):
            average.copy_(saved)
        self._adam.load_state_dict(state_dict["adam"])
        # Loading gives Adam new groups.
        self.param_groups[1:] = self._adam.param_groups


def _wide(matrix: Tensor) -> Tensor:
    """With at least as many columns as rows."""
    return matrix if matrix.size(-2) <= matrix.size(-1) else matrix.mT


def orthogonal(x_MRC: Tensor) -> Tensor:
    """Matrices with the singular vectors of `x` and singular values near 1.

    Newton-Schulz: x <- a x + b (x x^T) x + c (x x^T)^2 x, from x of norm 1.
    """
    a, b, c = COEFFICIENTS
    x_MRC = x_MRC / x_MRC.norm(dim=(1, 2), keepdim=True).clamp_min(SMALLEST_NORM)
    for _ in range(NUM_ITERATIONS):
        square_MRR = x_MRC @ x_MRC.mT
        mix_MRR = torch.baddbmm(square_MRR, square_MRR, square_MRR, beta=b, alpha=c)
        mix_MRR.diagonal(dim1=1, dim2=2).add_(a)  # a x is part of the product, which is one pass over x less
        x_MRC = mix_MRR @ x_MRC
    return x_MRC
