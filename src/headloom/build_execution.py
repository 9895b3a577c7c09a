"""How a model is executed: its attention kernels, what it computes again, and whether it is compiled.

None of it changes a weight's name or what is computed, but for rounding.
"""

import logging

import torch
from torch import nn

from headloom.config.schema_training import ActivationCheckpointing, AttentionKernel, TrainerConfig
from headloom.nn import gpu_kernels
from headloom.nn.attention import prefer_kernel
from headloom.nn.kernels import Asked, Kernel, Preference
from headloom.nn.recomputation import recompute_attention, recompute_blocks
from headloom.training.compilation import compile_blocks

logger = logging.getLogger(__name__)


def prepare_execution(
    model: nn.Module, config: TrainerConfig, *, device: torch.device, dtype: torch.dtype | None
) -> None:
    """Make `model` run as `config` says; `dtype`: type of the matrix products, None for float32."""
    prefer_kernel(model, preference(config.attention, device, dtype))
    match config.activation_checkpointing:
        case ActivationCheckpointing.none:
            pass
        case ActivationCheckpointing.full:
            logger.info("activations of %d blocks are computed again in the backward pass", recompute_blocks(model))
        case ActivationCheckpointing.selective if config.checkpoint_every is not None:
            number = recompute_blocks(model, every=config.checkpoint_every)
            logger.info("activations of %d blocks are computed again in the backward pass", number)
        case ActivationCheckpointing.selective:
            logger.info("%d attentions are computed again in the backward pass", recompute_attention(model))
    if config.compile is True or (config.compile == "auto" and device.type == "cuda"):
        compile_blocks(model, device)


def preference(asked: AttentionKernel, device: torch.device, dtype: torch.dtype | None) -> Preference:
    """The kernels that attention may take on `device`, those that not every machine has after a trial."""
    match asked:
        case AttentionKernel.eager | AttentionKernel.sdpa:
            wanted: tuple[Kernel, ...] = ()
        case AttentionKernel.flex:
            wanted = (Kernel.flex,)
        case AttentionKernel.varlen:
            wanted = (Kernel.packed,)
        case AttentionKernel.auto:
            wanted = (Kernel.packed, Kernel.flex) if device.type == "cuda" else ()
            if dtype is None:
                wanted = wanted[1:]  # Flash has no float32
    working = frozenset(k for k in wanted if gpu_kernels.works(k, device, dtype or torch.float32))
    return Preference(Asked[asked.name], working)
