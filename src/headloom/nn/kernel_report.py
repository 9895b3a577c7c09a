"""Which kernel computes which attention of a model, in words: what a run logs once."""

import torch
from torch import nn

from headloom.nn.attention import MultiHeadAttention
from headloom.nn.blocks import DecoderBlock, EncoderBlock
from headloom.nn.kernels import Choice

FEW_KEYS, MANY_KEYS = 32, 2048
"""Lengths at which kernels are told apart: what limits a pattern or the precision lies between them as a rule."""


def kernel_report(model: nn.Module, *, device: torch.device, dtype: torch.dtype) -> list[str]:
    """One line for each kind of attention: the kernel of training and of evaluation, with the reason.

    `dtype`: of the matrix products. The layers of a stack are alike, so the
    first one speaks for all. The choice is that of `kernels.choose`, which
    makes it for every product too.
    """
    lines: dict[str, str] = {}
    for name, block in model.named_modules():
        stack = name.partition(".blocks.")[0].removesuffix("blocks.0") or "model"
        match block:
            case EncoderBlock():
                lines.setdefault(f"{stack} self-attention", _line(block.self_attention, block.causal, device, dtype))
            case DecoderBlock():
                lines.setdefault(f"{stack} self-attention", _line(block.self_attention, True, device, dtype))
                lines.setdefault(f"{stack} cross-attention", _line(block.cross_attention, False, device, dtype))
    return [f"{place}: {line}" for place, line in lines.items()]


def _line(module: MultiHeadAttention, causal: bool, device: torch.device, dtype: torch.dtype) -> str:
    parts = []
    for phase, training in (("training", True), ("evaluation", False)):
        cases: list[tuple[str, Choice]] = []
        # Right padding needs no mask under a causal one.
        for padded in (False,) if causal else (False, True):
            for num_keys in (FEW_KEYS, MANY_KEYS):
                choice = module.kernel(
                    num_keys, causal=causal, padded=padded, training=training, device=device, dtype=dtype
                )
                where = ", ".join(word for word, said in (("padded", padded), ("long", num_keys == MANY_KEYS)) if said)
                cases.append((where, choice))
        first = cases[0][1]
        told = [f"{phase} {first.kernel.value} ({first.reason})"]
        seen = {first}
        for where, choice in cases[1:]:
            if choice not in seen:
                seen.add(choice)
                told.append(f"{where} {choice.kernel.value} ({choice.reason})")
        parts.append("; ".join(told))
    return " | ".join(parts)
