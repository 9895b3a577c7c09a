"""Models for ONNX Runtime: encoder.onnx reads, decoder.onnx writes a token at a time with a cache.

What the files take and give: onnx_graphs.py and docs/export.md. They are
searched here by our own searches; any loop over them will do.
"""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headloom import build
from headloom.config.schema import TrainConfig
from headloom.config.schema_language import LmConfig
from headloom.config.schema_model import Seq2SeqConfig
from headloom.data.tokenizer import tokenizer_from_state
from headloom.data.tokenizer_base import Tokenizer
from headloom.decoding.beam import beam_search
from headloom.export.base import Runtime
from headloom.export.folding import num_positions
from headloom.export.onnx_graphs import DECODER, ENCODER, Graph, graphs
from headloom.models.lm import LanguageModel
from headloom.models.seq2seq import Seq2Seq
from headloom.work.base import Trained
from headloom.work.running_text import saved_tokenizer

LARGEST_FILE = 2**30
"""Bytes of weights from which on they lie in a file of their own: a message of protobuf holds 2 GiB."""
BATCH = 16
"""Sources that are searched at once."""


class Onnx:
    """See `base.Format`. It holds every model. `quantization`: int8, matrices of bytes; None: float32."""

    name = "onnx"

    def __init__(self, quantization: str | None = None) -> None:
        self.is_exact = quantization is None

    def obstacle(self, config: TrainConfig) -> str | None:
        reads = not isinstance(config.model, Seq2SeqConfig | LmConfig)
        return None if self.is_exact or not reads else f"quantization=int8 of task={config.task.kind.name}"

    def write(self, trained: Trained, folder: Path) -> None:
        assert trained.model is not None
        length = num_positions(trained.config)
        for name, graph in graphs(trained.model, pad_id=_read(trained).pad_id, num_positions=length).items():
            if self.is_exact:
                export_graph(graph, folder / name)
                continue
            with TemporaryDirectory() as whole:
                export_graph(graph, Path(whole) / name)
                _quantize(Path(whole) / name, folder / name)

    def opened(self, trained: Trained, folder: Path) -> Runtime:
        match trained.model:
            case Seq2Seq():
                return Translation(trained, folder)
            case LanguageModel():
                return Continuation(trained, folder)
            case _:
                return Outputs(trained, folder)


def _read(trained: Trained) -> Tokenizer:
    """The tokenizer of what an encoder reads, or a language model."""
    states = trained.contents["tokenizers"]
    return tokenizer_from_state(states["text"] if "text" in states else states["source"])


def export_graph(graph: Graph, path: Path) -> None:
    dims = {name: torch.export.Dim(name) for axes in graph.axes.values() for name in axes.values()}
    with torch.no_grad(), _quiet():
        program = torch.onnx.export(
            graph.module.eval(),
            tuple(graph.inputs.values()),
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_shapes=tuple({axis: dims[name] for axis, name in axes.items()} for axes in graph.axes.values()),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # which line of which file of this machine it came from
    num_bytes = sum(tensor.nbytes for tensor in graph.module.state_dict().values())
    program.save(path, external_data=num_bytes > LARGEST_FILE)


def _quantize(whole: Path, path: Path) -> None:
    """Write `whole` to `path` with matrices of bytes, one scale for each; positions stay as they are."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = onnx.load(whole, load_external_data=False).graph
    kept = [node.name for node in graph.node if node.op_type == "Gather" and ".positional." in node.input[0]]
    with _quiet():
        quantize_dynamic(whole, path, weight_type=QuantType.QInt8, nodes_to_exclude=kept)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter says of itself step by step, and its warnings about what is so on purpose."""
    levels = {"torch.onnx._internal.exporter._registration": logging.ERROR}  # no torchvision, of which nothing is used
    levels |= dict.fromkeys(["onnxscript", "onnx_ir"], logging.WARNING)
    before = {name: logging.getLogger(name).level for name in levels}
    root = logging.getLogger()
    root.addFilter(_is_of_others)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
            # Inputs share their axes.
            warnings.filterwarnings("ignore", "# The axis name: .* will not be used", UserWarning)
            yield
    finally:
        root.removeFilter(_is_of_others)
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def _is_of_others(record: logging.LogRecord) -> bool:
    """Not of ONNX Runtime's quantisation, which logs every matrix product to the root."""
    return "onnxruntime" not in Path(record.pathname).parts


def session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


class _Steps:
    """decoder.onnx as a step function: see `decoding.search.StepFunction`. `memory`: its inputs of a source."""

    def __init__(self, decoder: Any, past: np.ndarray, memory: Mapping[str, np.ndarray]) -> None:
        self.decoder = decoder
        self.past = past
        self.memory = memory

    def read(self, token_NT: np.ndarray) -> np.ndarray:
        """logits_NV behind the last token."""
        logits_NV, self.past = self.decoder.run(None, {"token": token_NT, "past": self.past, **self.memory})
        return logits_NV

    def step(self, token_N: Tensor) -> Tensor:
        return torch.from_numpy(self.read(token_N[:, None].numpy()))

    def reorder(self, index_N: Tensor) -> None:
        index = index_N.numpy()
        self.past = self.past[index]
        self.memory = {name: rows[index] for name, rows in self.memory.items()}


def _searched(
    steps: _Steps, tokenizer: Tokenizer, first_ids: Sequence[int], *, beam_size: int, max_length: int
) -> list[list[int]]:
    found = beam_search(
        steps,
        num_sentences=len(first_ids),
        beam_size=beam_size,
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        pad_id=tokenizer.pad_id,
        max_lengths=[max_length] * len(first_ids),
        start_ids=first_ids,
    )
    return [best.ids for [best, *_] in found]


class Translation:
    """See `base.Writer`."""

    def __init__(self, trained: Trained, folder: Path) -> None:
        self.source, self.target = build.saved_tokenizers(trained.contents["tokenizers"])
        self.encoder, self.decoder = session(folder / ENCODER), session(folder / DECODER)

    def search(self, sources: Sequence[Sequence[int]], *, beam_size: int, max_length: int) -> list[list[int]]:
        found = []
        for start in range(0, len(sources), BATCH):
            batch = [[*source, self.source.eos_id] for source in sources[start : start + BATCH]]
            found += self._search(_padded(batch, self.source.pad_id), beam_size, max_length)
        return found

    def _search(self, source_BS: np.ndarray, beam_size: int, max_length: int) -> list[list[int]]:
        names = [output.name for output in self.encoder.get_outputs()]
        outputs = self.encoder.run(names, {"source": source_BS})
        memory = {name: np.repeat(rows, beam_size, axis=0) for name, rows in zip(names, outputs, strict=True)}
        steps = _Steps(self.decoder, memory["memory"][:, :, :, :, :0], memory)
        first_ids = [self.target.bos_id] * len(source_BS)
        return _searched(steps, self.target, first_ids, beam_size=beam_size, max_length=max_length)


class Continuation:
    """See `base.Writer`."""

    def __init__(self, trained: Trained, folder: Path) -> None:
        self.tokenizer = saved_tokenizer(trained.contents)
        self.decoder = session(folder / DECODER)

    def search(self, sources: Sequence[Sequence[int]], *, beam_size: int, max_length: int) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in sources]
        by_length: dict[int, list[int]] = {}  # a batch has prompts of one length
        for place, source in enumerate(sources):
            by_length.setdefault(len(source), []).append(place)
        for places in by_length.values():
            prompt_BT = np.array([[self.tokenizer.bos_id, *sources[place]] for place in places])
            for place, ids in zip(places, self._search(prompt_BT, beam_size, max_length), strict=True):
                found[place] = ids
        return found

    def _search(self, prompt_BT: np.ndarray, beam_size: int, max_length: int) -> list[list[int]]:
        read_NT = np.repeat(prompt_BT[:, :-1], beam_size, axis=0)
        [_, past] = self.decoder.get_inputs()
        _, num_layers, _, num_heads, _, width = past.shape
        steps = _Steps(self.decoder, np.zeros((len(read_NT), num_layers, 2, num_heads, 0, width), np.float32), {})
        if read_NT.size:
            steps.read(read_NT)
        return _searched(steps, self.tokenizer, prompt_BT[:, -1].tolist(), beam_size=beam_size, max_length=max_length)


class Outputs:
    """See `base.Reader`."""

    def __init__(self, trained: Trained, folder: Path) -> None:
        self.pad_id = _read(trained).pad_id
        self.encoder = session(folder / ENCODER)

    def outputs(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        found = []
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            [outputs] = self.encoder.run(None, {"source": _padded(batch, self.pad_id)})
            is_of_tokens = outputs.ndim == 3
            found += [one[: len(row)] if is_of_tokens else one for row, one in zip(batch, outputs, strict=True)]
        return found


def _padded(rows: Sequence[Sequence[int]], pad_id: int) -> np.ndarray:
    width = max(map(len, rows))
    return np.array([[*row, *[pad_id] * (width - len(row))] for row in rows], dtype=np.int64)
