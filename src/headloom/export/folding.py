"""What a weight must be where another program has no operation of its own for it.

Shapes: D model width, T positions.
"""

import torch
from torch import Tensor

from headloom.config.schema import TrainConfig
from headloom.nn.positional import Learned, Positional, Sinusoidal
from headloom.nn.residual import DeepNorm, PostNorm, PreNorm, SandwichNorm

NUM_POSITIONS = 4096
"""Rows of a table of sinusoids, and of the zeros that are added where the model has no positions and the program wants
a table: the longest text that such an export takes."""


def num_positions(config: TrainConfig) -> int:
    """Rows of such a table that is as long as every text of the training, where the program takes any length."""
    return max(NUM_POSITIONS, config.data.max_length)


def branch_scale(residual: object) -> float:
    """What a sub-layer's last matrix is multiplied by.

    DeepNorm divides by its alpha, since norm(alpha x + f) = norm(x + f / alpha) but for epsilon.
    """
    assert isinstance(residual, PreNorm | PostNorm | DeepNorm | SandwichNorm)
    if isinstance(residual, SandwichNorm):
        return 1.0  # the norm behind it would undo it
    scale = 1.0 if residual.branch is None else residual.branch.scale
    return scale / residual.alpha if isinstance(residual, DeepNorm) else scale


def positions_table(positional: Positional, d_model: int, *, length: int = NUM_POSITIONS) -> Tensor:
    """table_TD of what is added to the embeddings, zeros where nothing is; a learned one has its own length."""
    if isinstance(positional, Learned):
        return positional.weight_TD
    zeros_1TD = torch.zeros(1, length, d_model)
    return positional.embed(zeros_1TD)[0] if isinstance(positional, Sinusoidal) else zeros_1TD[0]
