"""The position-wise feed-forward sub-layer.

Shapes: B batch, T length, D model width, F inner width.

To add a kind, write its class or activation here (what routes tokens: in
mixture.py) and give it a name in the schema and an arm in `build_parts.py`.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from headloom.nn.dropout import Dropout, relu_dropout
from headloom.nn.linear import Linear


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by a hyperbolic tangent: Hendrycks and Gimpel (2016), section 2."""
    return F.gelu(x, approximate="tanh")


def squared_relu(x: Tensor) -> Tensor:
    """max(0, x)^2: So et al. (2021), section 3.1."""
    return F.relu(x).square()


class FeedForward(nn.Module):
    """`down(activation(up(x)))`: Vaswani et al. (2017), section 3.3, equation 2, for `F.relu`.

    Dropout falls on the activation, as in the authors' own code; the paper's
    text mentions only the residual one.
    """

    def __init__(
        self, d_model: int, d_ff: int, *, activation: Callable[[Tensor], Tensor], bias: bool, dropout: float
    ) -> None:
        super().__init__()
        self.up = Linear(d_model, d_ff, bias=bias)
        self.down = Linear(d_ff, d_model, bias=bias)
        self.activation = activation
        self.dropout = Dropout(dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        inner_BTF = self.up(x_BTD)
        if self.activation is F.relu:  # the two in one: this is the widest tensor of the model
            inner_BTF = relu_dropout(inner_BTF, self.dropout.probability if self.training else 0.0)
        else:
            inner_BTF = self.dropout(self.activation(inner_BTF))
        return self.down(inner_BTF)


class GatedFeedForward(nn.Module):
    """`down(activation(gate(x)) * up(x))`: Shazeer (2020), equation 6 (SwiGLU for `F.silu`, GEGLU for `F.gelu`).

    `gate` and `up` are one matrix, since one product is faster than two.
    """

    def __init__(
        self, d_model: int, d_ff: int, *, activation: Callable[[Tensor], Tensor], bias: bool, dropout: float
    ) -> None:
        super().__init__()
        self.gate_up = Linear(d_model, 2 * d_ff, bias=bias)
        self.down = Linear(d_ff, d_model, bias=bias)
        self.activation = activation
        self.dropout = Dropout(dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        gate_BTF, up_BTF = self.gate_up(x_BTD).chunk(2, dim=-1)
        return self.down(self.dropout(self.activation(gate_BTF) * up_BTF))
