import logging
import sys

import pytest
import torch

from headloom.errors import ConfigError
from headloom.training import precision
from headloom.training.memory import keep_freed_memory
from headloom.training.precision import autocast_dtype, choose_device, dtype_of_use, has_fast_bfloat16

CPU = torch.device("cpu")


def test_float32_is_no_autocast():
    assert autocast_dtype("float32", CPU) is None


def test_float16_on_a_cpu_is_refused():
    """B50: there is no loss scaler there."""
    with pytest.raises(ConfigError, match=r"precision=float16 needs a GPU; on a CPU use auto"):
        autocast_dtype("float16", CPU)


def test_float16_on_a_cpu_is_for_use_alone_and_needs_what_multiplies_it(monkeypatch):
    monkeypatch.setattr(precision, "can_be_packed", lambda dtype: True)
    assert dtype_of_use("float16", CPU) is torch.float16
    monkeypatch.setattr(precision, "can_be_packed", lambda dtype: False)
    with pytest.raises(ConfigError, match="precision=float16 on a CPU needs x86 with AVX2: use float32 or bfloat16"):
        dtype_of_use("float16", CPU)


@pytest.mark.parametrize("name", ["float32", "auto"])
def test_a_model_in_use_has_the_other_precisions_of_training(name):
    assert dtype_of_use(name, CPU) is autocast_dtype(name, CPU)


def test_bfloat16_is_taken_where_asked_with_a_warning_where_it_is_slow(caplog):
    """B50."""
    with caplog.at_level(logging.WARNING):
        assert autocast_dtype("bfloat16", CPU) is torch.bfloat16
    assert bool(caplog.records) is not has_fast_bfloat16(CPU)


def test_auto_is_bfloat16_where_it_is_fast():
    assert autocast_dtype("auto", CPU) is (torch.bfloat16 if has_fast_bfloat16(CPU) else None)


def test_a_device_is_a_gpu_where_there_is_one():
    there = torch.cuda.is_available()
    assert choose_device("auto").type == ("cuda" if there else "cpu")
    assert choose_device("cpu") == CPU
    if not there:
        with pytest.raises(ConfigError, match="device=cuda: PyTorch sees no GPU here"):
            choose_device("cuda")


def test_keeping_memory_says_whether_it_could():
    assert keep_freed_memory() in ((True, False) if sys.platform.startswith("linux") else (False,))
