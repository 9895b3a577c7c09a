"""Initial weights. Biases start at zero, gains of norms at one, embeddings at the scale they are used at."""

import math

from torch import nn


def xavier(model: nn.Module) -> None:
    """Uniform with variance 2 / (fan_in + fan_out) on every matrix (Glorot and Bengio 2010, equation 16)."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            _zero_bias(module)


def small_normal(model: nn.Module, *, num_residuals: int, std: float = 0.02) -> None:
    """Normal with deviation 0.02; matrices that write to the residual stream divided by sqrt(`num_residuals`).

    Radford et al. (2019), section 2.3: the variance of the stream then does not
    grow with depth. `num_residuals` is the number of sub-layers on the longer stack.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            writes_to_stream = name.endswith((".output", ".down"))
            nn.init.normal_(module.weight, std=std / math.sqrt(num_residuals) if writes_to_stream else std)
            _zero_bias(module)


def embedding(module: nn.Embedding) -> None:
    """Normal with deviation d_model^-0.5: times sqrt(d_model) at the input it is 1, as logits it is of order 1."""
    nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)


def _zero_bias(module: nn.Linear) -> None:
    if module.bias is not None:
        nn.init.zeros_(module.bias)
