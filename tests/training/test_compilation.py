"""trainer.compile where nothing can be compiled; tests/slow/test_compilation.py has a compiler."""

import logging

import torch

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
