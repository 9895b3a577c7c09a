"""Which number type the matrix products use. Weights, norms, softmax and losses are float32 in all of them."""

import logging

import torch

from headloom.errors import ConfigError
from headloom.nn.packed import can_be_packed

logger = logging.getLogger(__name__)

BFLOAT16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "bf16")
"""CPU features with which bfloat16 products are faster than float32 ones; without them they are far slower."""


def autocast_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    """The type for `torch.autocast`; None is float32 throughout.

    `auto` is bfloat16 where the device has instructions for it, else float32.

    Raises:
        ConfigError: float16 on a CPU, where there is no loss scaler to keep small gradients.
    """
    match precision:
        case "float32":
            return None
        case "bfloat16":
            if not has_fast_bfloat16(device):
                logger.warning("this %s has no bfloat16 instructions: float32 would be faster", device.type)
            return torch.bfloat16
        case "float16":
            if device.type == "cpu":
                raise ConfigError("precision=float16 needs a GPU; on a CPU use auto, bfloat16 where that is fast")
            return torch.float16
        case "auto":
            return torch.bfloat16 if has_fast_bfloat16(device) else None
        case _:
            raise AssertionError(precision)


def dtype_of_use(precision: str, device: torch.device) -> torch.dtype | None:
    """`autocast_dtype` of a model that is not trained: float16 on a CPU then is of weights alone (nn/packing.py).

    Raises:
        ConfigError: nothing multiplies weights of float16 on this CPU.
    """
    if precision != "float16" or device.type != "cpu":
        return autocast_dtype(precision, device)
    if not can_be_packed(torch.float16):
        raise ConfigError("precision=float16 on a CPU needs x86 with AVX2: use float32 or bfloat16")
    return torch.float16


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 matrix products are faster than float32 ones there."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type == "cpu":
        capabilities = torch.cpu.get_capabilities()
        return any(capabilities.get(name, False) for name in BFLOAT16_INSTRUCTIONS)
    return False


def choose_device(name: str) -> torch.device:
    """`auto` is a GPU when there is one.

    Raises:
        ConfigError: cuda was asked for and is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda: PyTorch sees no GPU here; use device=cpu, or auto to take what there is")
    return torch.device(name)
