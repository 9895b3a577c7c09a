"""Initial weights. Biases start at zero, gains of norms at one, embeddings at the scale they are used at."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headloom.nn.attention import MultiHeadAttention
from headloom.nn.feed_forward import FeedForward, GatedFeedForward


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


def deepnorm_constants(num_layers: int) -> tuple[float, float]:
    """alpha and beta of an encoder or a decoder alone: Wang et al. (2022), figure 2."""
    return (2 * num_layers) ** 0.25, (8 * num_layers) ** -0.25


def deepnorm_constants_of_encoder(num_encoder_layers: int, num_decoder_layers: int) -> tuple[float, float]:
    """alpha and beta of the encoder of an encoder-decoder: Wang et al. (2022), figure 2."""
    root = (num_encoder_layers**4 * num_decoder_layers) ** (1 / 16)
    return 0.81 * root, 0.87 / root


def deepnorm_constants_of_decoder(num_decoder_layers: int) -> tuple[float, float]:
    """alpha and beta of the decoder of an encoder-decoder: Wang et al. (2022), figure 2."""
    return (3 * num_decoder_layers) ** 0.25, (12 * num_decoder_layers) ** -0.25


@torch.no_grad()
def scale_for_depth(stack: nn.Module, beta: float) -> None:
    """Multiply by `beta` what DeepNorm does: feed-forwards, values and outputs of attention, not queries and keys.

    Wang et al. (2022), figure 2; after `xavier`, whose gain it is.
    """
    for module in stack.modules():
        match module:
            case MultiHeadAttention():
                num_keys = module.num_kv_heads * module.head_width
                module.key_value.weight[num_keys:] *= beta
                module.output.weight *= beta
            case FeedForward():
                module.up.weight *= beta
                module.down.weight *= beta
            case GatedFeedForward():
                module.gate_up.weight *= beta
                module.down.weight *= beta


def embedding(module: nn.Embedding) -> None:
    """Normal with deviation d_model^-0.5: times sqrt(d_model) at the input it is 1, as logits it is of order 1."""
    nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)


def _zero_bias(module: nn.Linear) -> None:
    if module.bias is not None:
        nn.init.zeros_(module.bias)


DRAWING = frozenset(
    {Tensor.normal_, Tensor.uniform_, nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_}
    | {nn.init.trunc_normal_, nn.init.xavier_uniform_}
)
"""Those of nn.init hand themselves over before they call a tensor's method, unseen by then."""


class NothingDrawn(TorchFunctionMode):
    """A block in which no initial weight is drawn: of models whose weights are loaded next, all of them.

    Drawing those of a base-size model takes a second on a CPU.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in DRAWING:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))
