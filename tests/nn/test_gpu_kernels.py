"""Kernels that not every machine has: right where they run, and left with one warning where they do not.

bench/gpu_check.sh shows the same on a GPU.
"""

import logging

import pytest
import torch

from headloom.nn import gpu_kernels
from headloom.nn.attention import prefer_kernel
from headloom.nn.kernel_report import kernel_report
from headloom.nn.kernels import Asked, Kernel, Preference, choose

CPU = torch.device("cpu")


def test_a_kernel_is_tried_and_one_that_fails_is_left_with_one_warning(caplog):
    gpu_kernels.works.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert not gpu_kernels.works(Kernel.packed, CPU, torch.bfloat16)
    (message,) = caplog.messages
    assert message.startswith("variable-length Flash over the real keys alone cannot be used on this cpu (")


BOTH = frozenset({Kernel.flex, Kernel.packed})
ON_GPU = {
    "device_type": "cuda",
    "dtype": torch.bfloat16,
    "num_queries": 64,
    "num_keys": 64,
    "causal": False,
    "hides": False,
    "dropout_probability": 0.0,
    "with_gradient": True,
    "preference": Preference(working=BOTH),
}
PADDING = {"hides": True, "is_padding": True}


@pytest.mark.parametrize(
    ("situation", "kernel"),
    [
        ({}, Kernel.flash),
        ({"causal": True}, Kernel.flash),
        (PADDING, Kernel.packed),
        (PADDING | {"dtype": torch.float32}, Kernel.masked),
        (PADDING | {"dropout_probability": 0.1}, Kernel.masked),
        (PADDING | {"num_queries": 1}, Kernel.masked),  # a step of a search
        (PADDING | {"causal": True}, Kernel.masked),
        ({"hides": True}, Kernel.flex),  # a window
        ({"biased": True}, Kernel.flex),
        ({"biased": True, "learns_bias": True}, Kernel.masked),
        ({"capped": True}, Kernel.flex),
        ({"capped": True, "dropout_probability": 0.1}, Kernel.written_out),
        (PADDING | {"preference": Preference()}, Kernel.masked),
        (PADDING | {"preference": Preference(Asked.sdpa)}, Kernel.masked),
        ({"preference": Preference(Asked.eager, BOTH)}, Kernel.written_out),
        ({"preference": Preference(Asked.flex, frozenset({Kernel.flex}))}, Kernel.flex),
    ],
)
def test_a_gpu_takes_the_kernel_made_for_it(situation, kernel):
    assert choose(**ON_GPU | situation).kernel is kernel


def test_a_cpu_takes_pytorchs_kernel_where_it_is_asked_for():
    short = ON_GPU | {"device_type": "cpu", "dropout_probability": 0.1}
    assert choose(**short | {"preference": Preference()}).kernel is Kernel.written_out
    assert choose(**short | {"preference": Preference(Asked.sdpa)}).kernel is Kernel.flash


@torch.no_grad()
@pytest.mark.parametrize("asked", [Asked.eager, Asked.sdpa])
def test_every_attention_of_a_model_takes_what_is_asked_for(make_model, asked):
    model = make_model(17, dropout=0.0)
    source_BS, target_BT = torch.randint(17, (2, 5)), torch.randint(17, (2, 4))
    allowed_BS = torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
    before = model(source_BS, allowed_BS, target_BT)
    prefer_kernel(model, Preference(asked))
    torch.testing.assert_close(model(source_BS, allowed_BS, target_BT), before, atol=1e-4, rtol=1e-4)
    lines = kernel_report(model, device=CPU, dtype=torch.float32)
    assert len(lines) == 3
    for line in lines:
        assert ("written out (trainer.attention=eager)" in line) is (asked is Asked.eager)
        assert ("PyTorch's fused kernel" in line) is (asked is Asked.sdpa)
