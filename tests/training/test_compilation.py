"""trainer.compile where nothing can be compiled; tests/slow/test_compilation.py has a compiler."""

import logging
from functools import partial

import pytest
import torch

from headloom.errors import TrainingDiverged
from headloom.nn.attention import MultiHeadAttention, prefer_kernel
from headloom.nn.kernels import Asked, Preference
from headloom.training.compilation import compile_blocks, num_graphs
from headloom.training.interrupt import Interrupt


def test_a_missing_compiler_is_one_warning_and_the_model_as_it_is(make_model, monkeypatch, caplog):
    model, graphs = make_model(9), num_graphs()
    before = [block.forward for block in model.modules()]

    def missing(function):
        def call(*arguments):
            raise RuntimeError("no C++ compiler\nmore that nobody reads")

        return call

    monkeypatch.setattr(torch, "compile", missing)
    with caplog.at_level(logging.WARNING):
        assert not compile_blocks(model, torch.device("cpu"))
    assert caplog.messages == ["trainer.compile: nothing can be compiled here (no C++ compiler): going on without"]
    assert [block.forward for block in model.modules()] == before
    assert num_graphs() == graphs


def test_written_out_attention_over_padding_is_one_graph():
    """It was cut where it asked on a CPU whether a row sees nothing, into three for each attention, with 40 lines of
    warning on stderr."""
    attention = MultiHeadAttention(8, 2, dropout=0.1)
    prefer_kernel(attention, Preference(Asked.eager, frozenset()))
    allowed_BS = torch.arange(5) < torch.tensor([[5], [3], [0]])
    traced = torch.compile(attention, backend="eager", dynamic=True, fullgraph=True)
    assert traced(torch.randn(3, 5, 8), torch.randn(3, 5, 8), allowed_BS, causal=False).isfinite().all()


of_pytorch_itself = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.fixture
def traced(monkeypatch):
    """torch.compile without a compiler: graphs are made and run as they are."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))


@of_pytorch_itself
def test_each_kind_of_block_is_one_graph_and_only_where_there_is_a_gradient(make_model, traced):
    """Validation searches with packed weights, which PyTorch's compiler ends on."""
    model, graphs = make_model(9), num_graphs()
    names = list(model.state_dict())
    assert compile_blocks(model, torch.device("cpu"))
    graphs = num_graphs()
    ids = torch.randint(2, 9, (2, 5))
    for length in (3, 4, 5):
        model(ids[:, :length], None, ids[:, :length]).sum().backward()
    assert num_graphs() == graphs + 2
    with torch.no_grad():
        model(ids, None, ids)
    assert num_graphs() == graphs + 2
    assert list(model.state_dict()) == names


@of_pytorch_itself
def test_the_cause_of_what_is_not_finite_is_found_inside_compiled_blocks(make_loop, make_trainer, traced):
    """Hooks inside a graph are not called."""
    trainer = make_trainer(dropout=0.1)
    compile_blocks(trainer.model, torch.device("cpu"))
    loop = make_loop(trainer=trainer)

    def spoil(step: int, loss: float, rate: float) -> None:
        with torch.no_grad():
            trainer.model.decoder.blocks[1].feed_forward.up.weight.mul_(1e38)

    loop.progress = spoil
    with pytest.raises(TrainingDiverged, match=r"is that of decoder\.blocks\.1\.feed_forward"):
        loop.run(Interrupt())
