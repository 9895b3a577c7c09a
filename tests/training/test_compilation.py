"""trainer.compile where nothing can be compiled; tests/slow/test_compilation.py has a compiler."""

import logging

import torch

from headloom.nn.attention import MultiHeadAttention, prefer_kernel
from headloom.nn.kernels import Asked, Preference
from headloom.training.compilation import compile_blocks, num_graphs


def test_a_missing_compiler_is_one_warning_and_the_model_as_it_is(make_model, monkeypatch, caplog):
    model, graphs = make_model(9), num_graphs()
    before = [block._compiled_call_impl for block in model.modules()]

    def missing(function):
        def call(*arguments):
            raise RuntimeError("no C++ compiler\nmore that nobody reads")

        return call

    monkeypatch.setattr(torch, "compile", missing)
    with caplog.at_level(logging.WARNING):
        assert not compile_blocks(model, torch.device("cpu"))
    assert caplog.messages == ["trainer.compile: nothing can be compiled here (no C++ compiler): going on without"]
    assert [block._compiled_call_impl for block in model.modules()] == before
    assert num_graphs() == graphs


def test_written_out_attention_over_padding_is_one_graph():
    """It was cut where it asked on a CPU whether a row sees nothing, into three for each attention, with 40 lines of
    warning on stderr."""
    attention = MultiHeadAttention(8, 2, dropout=0.1)
    prefer_kernel(attention, Preference(Asked.eager, frozenset()))
    allowed_BS = torch.arange(5) < torch.tensor([[5], [3], [0]])
    traced = torch.compile(attention, backend="eager", dynamic=True, fullgraph=True)
    assert traced(torch.randn(3, 5, 8), torch.randn(3, 5, 8), allowed_BS, causal=False).isfinite().all()
