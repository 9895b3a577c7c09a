"""The log says what happens: the operations that run are those of the kernel that was named.

Shapes: B batch, T length, D model width.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from headloom.nn import masks
from headloom.nn.attention import MultiHeadAttention
from headloom.nn.blocks import DecoderBlock, EncoderBlock
from headloom.nn.feed_forward import FeedForward
from headloom.nn.kernel_report import kernel_report
from headloom.nn.kernels import CPU_FUSED_MIN_KEYS, Kernel
from headloom.nn.norm import LayerNorm
from headloom.nn.positional import Rotary
from headloom.nn.relative import Alibi, RelativeBuckets
from headloom.nn.residual import PreNorm

D, H = 16, 4
CPU = torch.device("cpu")
VARIANTS = {
    "plain": lambda: {"positional": Rotary(D // H, base=100.0)},
    "dropout": lambda: {"dropout": 0.1},
    "alibi": lambda: {"positional": Alibi(H)},
    "t5": lambda: {"positional": RelativeBuckets(H, num_buckets=8, max_distance=6, causal=True)},
    "window": lambda: {"pattern": masks.Window(9)},
    "cap": lambda: {"soft_cap": 5.0},
}


class Fused(TorchDispatchMode):
    """Notes the fused attention that runs inside: None, or whether it had a mask."""

    has_mask: bool | None = None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if "scaled_dot_product" in str(func):
            self.has_mask = kwargs.get("attn_mask") is not None
        return func(*args, **kwargs)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("causal", "padded"), [(True, False), (False, False), (False, True)])
@pytest.mark.parametrize("length", [8, CPU_FUSED_MIN_KEYS])
def test_what_was_announced_is_what_runs(variant, training, dtype, causal, padded, length):
    module = MultiHeadAttention(D, H, **VARIANTS[variant]()).train(training)
    choice = module.kernel(length, causal=causal, padded=padded, training=training, device=CPU, dtype=dtype)
    x_BTD = torch.randn(2, length, D)
    allowed_BS = torch.arange(length) < torch.tensor([[length], [length - 2]]) if padded else None
    with (
        torch.set_grad_enabled(training),
        torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16),
        Fused() as fused,
    ):
        module(x_BTD, x_BTD, allowed_BS, causal=causal)
    assert fused.has_mask is {Kernel.written_out: None, Kernel.flash: False, Kernel.masked: True}[choice.kernel]


def test_a_model_without_dropout_bias_or_window_never_needs_a_mask_for_causal_attention():
    """FlashAttention stays eligible; padding of the source takes a mask."""

    def residual() -> nn.Module:
        return PreNorm(LayerNorm(D, epsilon=1e-5), 0.0)

    def feed_forward() -> nn.Module:
        return FeedForward(D, 8, activation=F.relu, bias=True, dropout=0.0)

    def attention() -> MultiHeadAttention:
        return MultiHeadAttention(D, H)

    model = nn.ModuleDict(
        {
            "lm": nn.ModuleDict(
                {"blocks": nn.ModuleList([EncoderBlock(attention(), feed_forward(), residual, causal=True)])}
            ),
            "decoder": nn.ModuleDict(
                {
                    "blocks": nn.ModuleList(
                        [DecoderBlock(attention(), attention(), feed_forward(), residual) for _ in range(2)]
                    )
                }
            ),
        }
    )
    lm, own, cross = kernel_report(model, device=torch.device("cuda"), dtype=torch.bfloat16)
    unmasked = "PyTorch's fused kernel without a mask, Flash where the device has it"
    assert lm == (
        f"lm self-attention: training {unmasked} (causality alone needs no mask) | "
        f"evaluation {unmasked} (causality alone needs no mask)"
    )
    assert own.removeprefix("decoder") == lm.removeprefix("lm")
    assert cross.startswith(
        f"decoder cross-attention: training {unmasked} (every key may be seen); "
        "padded PyTorch's fused kernel with a mask (not every key may be seen, and Flash takes no mask)"
    )


def test_the_report_tells_short_rows_from_long_ones():
    block = EncoderBlock(
        MultiHeadAttention(D, H, pattern=masks.Window(100)),
        FeedForward(D, 8, activation=F.relu, bias=True, dropout=0.0),
        lambda: PreNorm(LayerNorm(D, epsilon=1e-5), 0.0),
        causal=True,
    )
    (line,) = kernel_report(nn.ModuleDict({"blocks": nn.ModuleList([block])}), device=CPU, dtype=torch.bfloat16)
    assert "training written out (faster than the fused backward on a CPU in bfloat16 below" in line
    assert "; long PyTorch's fused kernel with a mask (not every key may be seen" in line
    assert "evaluation PyTorch's fused kernel without a mask" in line
