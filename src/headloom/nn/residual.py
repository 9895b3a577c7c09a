"""The residual stream: what a sub-layer reads of it and how its output is added.

The stream is float32 in every precision; sub-layers get their input in the
precision of the step. To add a placement, write its class here and give it a
name in the schema and an arm in `build_parts.py`. `step` is `forward` for a
token at a time, without dropout and in as few operations as there are.

Shapes: B batch, T length, D model width.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from headloom.nn.dropout import dropout_add


def to_step_precision(x: Tensor) -> Tensor:
    """`x` in autocast's type where autocast is on, so that several layers that read it share one conversion."""
    device_type = x.device.type
    return x.to(torch.get_autocast_dtype(device_type)) if torch.is_autocast_enabled(device_type) else x


class Branch(nn.Module):
    """What befalls a sub-layer's output before it is added: a fixed scale, and stochastic depth.

    Stochastic depth (Huang et al. 2016, section 3) leaves the sub-layer out with
    `drop_probability`. Here each row of a batch is left out by itself, where the
    paper leaves it out for the whole mini-batch: the noise of a step is smaller,
    and every parameter has a gradient in every step. Kept rows are divided by
    the keep probability, where the paper multiplies in evaluation: the
    expectation is the same, and evaluation needs to know nothing.
    """

    def __init__(self, *, scale: float = 1.0, drop_probability: float = 0.0) -> None:
        super().__init__()
        self.scale = scale
        self.drop_probability = drop_probability

    def forward(self, out_BTD: Tensor) -> Tensor:
        if not self.training or self.drop_probability == 0:
            return out_BTD * self.scale if self.scale != 1 else out_BTD
        keep_probability = 1 - self.drop_probability
        # Drawn in float32: a bfloat16 number has too few levels for the probability to be exact.
        kept_B = torch.rand(out_BTD.size(0), device=out_BTD.device) < keep_probability
        return out_BTD * (kept_B * (self.scale / keep_probability)).to(out_BTD.dtype)[:, None, None]


class Residual(nn.Module):
    """How a sub-layer's output joins the stream."""

    def step(self, x_BTD: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        raise NotImplementedError


class PreNorm(Residual):
    """x + f(norm(x)): Xiong et al. (2020), figure 1b. A stack of these ends in a norm of its own."""

    def __init__(self, norm: nn.Module, dropout: float, *, branch: Branch | None = None) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = dropout
        self.branch = branch

    def forward(self, x_BTD: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        out_BTD = _through(self.branch, sublayer(to_step_precision(self.norm(x_BTD))))
        return dropout_add(x_BTD, out_BTD, self.dropout if self.training else 0.0)

    def step(self, x_BTD: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x_BTD + _through(self.branch, sublayer(self.norm.forward(x_BTD)))


class SandwichNorm(Residual):
    """x + norm(f(norm(x))): Ding et al. (2021), section 2.4. A stack of these ends in a norm of its own."""

    def __init__(self, norm: nn.Module, out_norm: nn.Module, dropout: float, *, branch: Branch | None = None) -> None:
        super().__init__()
        self.norm = norm
        self.out_norm = out_norm
        self.dropout = dropout
        self.branch = branch

    def forward(self, x_BTD: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        out_BTD = _through(self.branch, self.out_norm(sublayer(to_step_precision(self.norm(x_BTD)))))
        return dropout_add(x_BTD, out_BTD, self.dropout if self.training else 0.0)

    def step(self, x_BTD: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return x_BTD + _through(self.branch, self.out_norm.forward(sublayer(self.norm.forward(x_BTD))))


class PostNorm(Residual):
    """norm(x + f(x)): Vaswani et al. (2017), section 3.1."""

    def __init__(self, norm: nn.Module, dropout: float, *, branch: Branch | None = None) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = dropout
        self.branch = branch

    def forward(self, x_BTD: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        out_BTD = _through(self.branch, sublayer(to_step_precision(x_BTD)))
        return self.norm(dropout_add(x_BTD, out_BTD, self.dropout if self.training else 0.0))

    def step(self, x_BTD: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return self.norm.forward(x_BTD + _through(self.branch, sublayer(x_BTD)))


class DeepNorm(Residual):
    """norm(alpha x + f(x)): Wang et al. (2022), section 3; `alpha` and the initial weights depend on the depth."""

    def __init__(self, norm: nn.Module, dropout: float, *, alpha: float, branch: Branch | None = None) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = dropout
        self.alpha = alpha
        self.branch = branch

    def forward(self, x_BTD: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        out_BTD = _through(self.branch, sublayer(to_step_precision(x_BTD)))
        return self.norm(dropout_add(self.alpha * x_BTD, out_BTD, self.dropout if self.training else 0.0))

    def step(self, x_BTD: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        return self.norm.forward(self.alpha * x_BTD + _through(self.branch, sublayer(x_BTD)))


def _through(branch: Branch | None, out_BTD: Tensor) -> Tensor:
    if branch is not None:
        out_BTD = branch(out_BTD)
    return out_BTD
