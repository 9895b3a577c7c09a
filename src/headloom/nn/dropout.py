"""Dropout that costs less than the matrix product beside it, also on a CPU.

On a CPU PyTorch draws a float for every element on one thread, which takes
longer than the layer it follows. Here 16 random bits decide about an element:
they come from NumPy's SFC64 streams, drawn on all threads, and the mask is
applied by integer operations that vectorise. The probability is rounded to the
nearest multiple of 2^-16, and the kept values are scaled by the reciprocal of
the rounded keep probability, so the expectation is exact.

Each call takes one number from PyTorch's own generator as the seed of its
streams. So the masks repeat with `torch.manual_seed`, a restored random state
restores them, and activation recomputation draws the same ones again.

On other devices, and inside compiled code, `F.dropout` is used: there it is one
fused kernel.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

STREAM_WORDS = 1 << 15  # 64-bit words a stream yields: fixed, so that the masks do not depend on the number of threads
THREADED_STREAMS = 8  # fewer are drawn sooner than other threads wake up
LEVELS = 1 << 16  # distinguishable probabilities


def dropout(x: Tensor, probability: float) -> Tensor:
    """Zero each element with `probability` (in [0, 1)), scale the rest so that the expectation is `x`.

    Srivastava et al. (2014), section 4, in its inverted form.
    """
    if probability == 0:
        return x
    if not _is_ours(x):
        return F.dropout(x, probability)
    return _CpuDropout.apply(x, probability)  # type: ignore[no-untyped-call]


def dropout_add(residual: Tensor, x: Tensor, probability: float) -> Tensor:
    """`residual + dropout(x)`, in the precision of `residual`, in one pass less."""
    if probability == 0:
        return residual + x
    if not _is_ours(x):
        return residual + F.dropout(x, probability)
    return _CpuDropoutAdd.apply(residual, x, probability)  # type: ignore[no-untyped-call]


def relu_dropout(x: Tensor, probability: float) -> Tensor:
    """`dropout(relu(x))`. What is above zero afterwards is where the gradient passes, so no mask is kept."""
    if probability == 0 or not _is_ours(x):
        return dropout(F.relu(x), probability)
    return _CpuReluDropout.apply(x, probability)  # type: ignore[no-untyped-call]


def _is_ours(x: Tensor) -> bool:
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


class Dropout(nn.Module):
    """`dropout` as a module: active in training mode only."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.probability) if self.training else x


class _CpuDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        num_dropped = _num_dropped(probability)
        ctx.scale = _scale(num_dropped)
        keep = _keep(x, num_dropped)
        ctx.save_for_backward(keep)
        return _masked(x, keep, ctx.scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return _masked(gradients[0], keep, ctx.scale), None


class _CpuDropoutAdd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, residual: Tensor, x: Tensor, probability: float) -> Tensor:
        num_dropped = _num_dropped(probability)
        ctx.scale = _scale(num_dropped)
        ctx.dtype = x.dtype
        keep = _keep(x, num_dropped)
        ctx.save_for_backward(keep)
        if x.dtype is torch.float32:
            return torch.addcmul(residual, x, keep.float(), value=-ctx.scale)
        return torch.add(residual, _masked(x, keep, 1.0), alpha=ctx.scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (keep,) = ctx.saved_tensors
        return gradients[0], _masked(gradients[0].to(ctx.dtype), keep, ctx.scale), None


class _CpuReluDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        num_dropped = _num_dropped(probability)
        ctx.scale = _scale(num_dropped)
        out = _masked(x, _keep(x, num_dropped), ctx.scale).clamp_min_(0)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (out,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(gradients[0], out, 0).mul_(ctx.scale), None


def _num_dropped(probability: float) -> int:
    """How many of the 2^16 levels drop an element."""
    return min(round(probability * LEVELS), LEVELS - 1)


def _scale(num_dropped: int) -> float:
    """What kept values are multiplied by."""
    return LEVELS / (LEVELS - num_dropped)


def _keep(x: Tensor, num_dropped: int) -> Tensor:
    """All bits set (-1) where an element is kept, 0 where it is dropped; int16, in the shape of `x`."""
    bits = _random_bits(x.numel())
    # A comparison written to int16 vectorises; to bool it is seven times slower.
    return torch.ge(bits, num_dropped - LEVELS // 2, out=bits).neg_().view(x.shape)


def _masked(x: Tensor, keep: Tensor, scale: float) -> Tensor:
    """`scale` * x where kept, 0 elsewhere."""
    if x.dtype in (torch.bfloat16, torch.float16):
        masked = (x.contiguous().view(torch.int16) & keep).view(x.dtype)
        return masked if scale == 1 else masked.mul_(scale)
    return x * keep.to(x.dtype).mul_(-scale)


def _random_bits(num_values: int) -> Tensor:
    """`num_values` uniform int16, a function of the next number of PyTorch's generator alone."""
    seed = int(torch.randint(1 << 62, ()))
    num_words = -(-num_values // 4)
    starts = range(0, num_words, STREAM_WORDS)
    if len(starts) == 1:
        words = np.random.SFC64(seed).random_raw(num_words)
    else:
        words = np.empty(num_words, dtype=np.uint64)

        def fill(start: int) -> None:
            stop = min(start + STREAM_WORDS, num_words)
            words[start:stop] = np.random.SFC64([seed, start]).random_raw(stop - start)

        if len(starts) < THREADED_STREAMS:
            list(map(fill, starts))
        else:
            list(_threads().map(fill, starts))
    return torch.from_numpy(words.view(np.int16))[:num_values]


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, torch.get_num_threads()), thread_name_prefix="dropout")


os.register_at_fork(after_in_child=_threads.cache_clear)  # a forked child has none of its parent's threads
