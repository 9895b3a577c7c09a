"""What the graphs of an export must compute for every choice of parts; tests choose how the graphs are run.

Shapes: B batch, S source length, T length.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from every_combination import FACTORS, PAD, V, build, config_of, shaken
from torch import Tensor, nn

from headloom.config.schema import TrainConfig
from headloom.config.schema_labelled import PoolingKind
from headloom.data.tokenizer import ByteTokenizer
from headloom.export.onnx import export_graph, session
from headloom.export.onnx_graphs import DECODER, ENCODER, Graph, graphs

Run = Callable[[Graph], Callable[..., Sequence[Tensor]]]
"""From a graph to what computes its outputs from its inputs, by name."""
GROUPS = ("position", "norm", "feed_forward", "attention")
LENGTH = 12
"""Tokens of a row: more than the patterns of `config_of` reach, and other than the lengths that are traced."""


class OnnxRuntime:
    """Runs a graph from a file that is written to `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, graph: Graph) -> Callable[..., Sequence[Tensor]]:
        path = self.folder / f"{len(list(self.folder.iterdir()))}.onnx"
        export_graph(graph, path)
        program = session(path)
        return lambda **inputs: [
            torch.from_numpy(output)
            for output in program.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
        ]


def covering() -> Iterator[dict[str, Any]]:
    """Combinations that hold every choice of every group, as few as there are choices of the largest."""
    for number in range(max(len(FACTORS[group]) for group in GROUPS)):
        chosen = {group: FACTORS[group][number % len(FACTORS[group])] for group in GROUPS}
        yield {**chosen, "num_kv_heads": FACTORS["num_kv_heads"][number % 3], "stochastic_depth": 0.0}


def name_of(choices: dict[str, Any]) -> str:
    return " ".join(str(choices[group]) for group in GROUPS)


@torch.no_grad()
def check_graphs(family: str, config: TrainConfig, run: Run) -> None:
    """Rows of several lengths, written token by token after prompts of several lengths, as the model in one pass."""
    torch.manual_seed(1)
    model = shaken(build(family, config))
    calls = {name: run(graph) for name, graph in graphs(model, pad_id=PAD, num_positions=2 * LENGTH).items()}
    token_BT = torch.randint(1, V, (4, LENGTH))
    source_BS = token_BT.flip(1)[:, : LENGTH - 1]
    source_BS[0, 3:] = PAD
    match family:
        case "seq2seq":
            expected = model.logits(model(source_BS, source_BS != PAD, token_BT))
            memory, allowed = calls[ENCODER](source=source_BS)
            past = memory[:, :, :, :, :0]
            for t in range(LENGTH):
                logits, past = calls[DECODER](
                    token=token_BT[:, t : t + 1], memory=memory, memory_allowed=allowed, past=past
                )
                torch.testing.assert_close(logits, expected[:, t], atol=2e-5, rtol=1e-5)
        case "lm":
            expected = model.logits(model(token_BT))
            attention = model.stack.blocks[0].self_attention
            past = torch.zeros(4, len(model.stack.blocks), 2, attention.num_kv_heads, 0, attention.head_width)
            for start, stop in [(0, 1), (1, 7), *((t, t + 1) for t in range(7, LENGTH))]:
                logits, past = calls[DECODER](token=token_BT[:, start:stop], past=past)
                torch.testing.assert_close(logits, expected[:, stop - 1], atol=2e-5, rtol=1e-5)
        case "classifier":
            check_reader(model, calls[ENCODER], source_BS)
        case _:
            raise AssertionError(f"write here how the graphs of a model={family} are run")


def check_reader(model: nn.Module, call: Callable[..., Sequence[Tensor]], source_BS: Tensor) -> None:
    [output] = call(source=source_BS)
    torch.testing.assert_close(output, model(source_BS, source_BS != PAD), atol=2e-5, rtol=1e-5)


@torch.no_grad()
def check_head(pooling: PoolingKind | None, run: Run) -> None:
    """A classifier of two texts; None: one that answers for each token."""
    config = config_of("classifier", next(covering()))
    config = replace(
        config, model=replace(config.model, pooling=pooling), data=replace(config.data, second_text="second")
    )
    model = build("classifier", config)
    if pooling is None:
        model.pool = None
    [graph] = graphs(shaken(model), pad_id=PAD, num_positions=LENGTH).values()
    eos = ByteTokenizer.eos_id
    check_reader(model, run(graph), torch.tensor([[5, 6, eos, 7, eos], [8, eos, 9, eos, PAD], [5, eos, PAD, PAD, PAD]]))
