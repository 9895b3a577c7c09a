"""Blocks that are compiled for training: few graphs, made once, for every layer and every shape.

The blocks of a stack share their code, so each kind of block is one graph, with
lengths and rows left open. A model is compiled in place: no name of a weight
changes (a module wrapped by `torch.compile` would save `_orig_mod.` names).

Where no gradient is wanted nothing is compiled: a validation scores as
evaluate.py does, and a search, whose lengths grow with each step and whose
weights are packed on a CPU (nn/packed.py), would need graphs of its own.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from headloom.nn.recomputation import blocks

logger = logging.getLogger(__name__)


def compile_blocks(model: nn.Module, device: torch.device) -> bool:
    """Compile the blocks of `model`, when they are first called. Without a compiler: a warning, and False."""
    try:
        compiled = torch.compile(_something)
        compiled(torch.ones(8, device=device, requires_grad=True)).sum().backward()  # type: ignore[no-untyped-call]
    except Exception as error:  # what a missing or unfit compiler raises differs by device and version
        reason = str(error).strip().split("\n", 1)[0][:200]
        logger.warning("trainer.compile: nothing can be compiled here (%s): going on without", reason)
        return False
    found = [block for stack in blocks(model) for block in stack]
    for block in found:
        block.forward = _compiled(block.forward)
    logger.info("%d blocks are compiled when they are first used: the first updates take far longer", len(found))
    return True


def _compiled(forward: Callable[..., Any]) -> Callable[..., Any]:
    compiled = torch.compile(forward, dynamic=True)

    def call(*arguments: Any, **options: Any) -> Any:
        return (compiled if torch.is_grad_enabled() else forward)(*arguments, **options)

    return call


@contextmanager
def nothing_compiled() -> Iterator[None]:
    """Inside, what is compiled runs as it is written: a graph calls no hooks of the modules in it."""
    if "torch._dynamo" not in sys.modules:  # loading it takes a second
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def num_graphs() -> int:
    """Graphs compiled so far in this process."""
    # Its modules are loaded by the first compilation, and take a second.
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["stats"]["unique_graphs"])


def _something(x: torch.Tensor) -> torch.Tensor:
    return (x * 2 + 1).relu()
