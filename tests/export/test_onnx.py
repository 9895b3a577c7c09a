"""Exports for ONNX Runtime, and their graphs."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from every_combination import config_of, shaken
from every_graph import OnnxRuntime, check_graphs, check_head, covering, name_of
from random_exports import CHANGES, changed
from torch import Tensor

from headloom.combinations import ATTENTIONS
from headloom.config.module_command import parse
from headloom.config.schema import CHOICES
from headloom.config.schema_export import ExportConfig
from headloom.config.schema_labelled import PoolingKind
from headloom.errors import CheckpointError, ConfigError
from headloom.export.command import export
from headloom.export.gate import check
from headloom.export.onnx import Onnx
from headloom.export.onnx_graphs import Graph
from headloom.export.own import own_runtime
from headloom.export.sample import sample_of
from headloom.work.families import load_trained

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

DOCUMENT = Path(__file__).parents[2] / "docs" / "export.md"
TASKS = ["translation", "language_modeling", "classification", "masked_language_modeling", "embedding"]


def as_module(graph: Graph) -> Callable[..., Sequence[Tensor]]:
    def call(**inputs: Tensor) -> Sequence[Tensor]:
        outputs = graph.module(*(inputs[name] for name in graph.inputs))
        return [outputs] if isinstance(outputs, Tensor) else outputs

    return call


@pytest.mark.parametrize("name", [*CHANGES, *ATTENTIONS])
@pytest.mark.parametrize("family", list(CHOICES["model"]))
def test_a_graph_is_the_model_with_every_choice(family, name):
    check_graphs(family, changed(family, name), as_module)


@pytest.mark.parametrize("pooling", [*PoolingKind, None])
def test_a_graph_is_the_model_with_every_head(pooling):
    check_head(pooling, as_module)


@pytest.mark.parametrize("choices", list(covering()), ids=name_of)
def test_onnx_runtime_computes_what_a_language_model_does_with_every_choice(choices, tmp_path):
    """The other families: tests/slow."""
    config = config_of("lm", choices)
    check_graphs("lm", replace(config, model=replace(config.model, num_layers=1)), OnnxRuntime(tmp_path))


@pytest.fixture(scope="session")
def exported(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The export of a task's checkpoint, made when it is first asked for."""

    @cache
    def folder(task: str) -> Path:
        return run_export(checkpoints[task], tmp_path_factory.mktemp("exports") / task)

    return folder


def run_export(checkpoint: Path, output: Path, *options: str) -> Path:
    arguments = [f"checkpoint={checkpoint}", f"output={output}", "format=onnx", *options]
    export(parse(ExportConfig, arguments, base=output.parent))
    return output


FILES = {"translation": {"encoder.onnx", "decoder.onnx", "tokenizer.model"}, "language_modeling": {"decoder.onnx"}}


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_exported_and_only_its_own_export_passes(checkpoints, exported, task):
    """What other weights would answer is refused."""
    folder = exported(task)
    assert {path.name for path in folder.iterdir()} == FILES.get(task, {"encoder.onnx"}) | {"headloom.json"}
    trained = load_trained(checkpoints[task], device="cpu", precision="float32")
    shaken(trained.model)
    with pytest.raises(CheckpointError, match="the export is refused: line"):
        check(trained, Onnx().opened(trained, folder), sample_of(trained, None), is_exact=True)


def test_a_graph_says_nothing_of_the_machine_that_wrote_it(exported):
    content = (exported("translation") / "decoder.onnx").read_bytes()
    assert b"logits" in content
    assert b".py" not in content


def test_int8_makes_bytes_of_the_matrices_and_not_of_positions(checkpoint, tmp_path, caplog):
    with caplog.at_level("INFO"):
        folder = run_export(checkpoint, tmp_path / "out", "quantization=int8")
    assert "chrF against the checkpoint's outputs" in caplog.text
    assert {record.name.partition(".")[0] for record in caplog.records} == {"headloom"}
    for name in ("encoder.onnx", "decoder.onnx"):
        initializers = onnx.load(folder / name).graph.initializer
        matrices = {tensor.name: tensor.data_type for tensor in initializers if len(tensor.dims) == 2}
        positions = {matrix for matrix in matrices if ".positional." in matrix}
        assert {matrices[matrix] for matrix in positions} == {onnx.TensorProto.FLOAT}
        rest = {matrices[matrix] for matrix in matrices.keys() - positions}
        assert rest == {onnx.TensorProto.INT8, onnx.TensorProto.UINT8}  # the latter of embeddings


def test_what_cannot_be_rounded_is_named(checkpoints, tmp_path):
    with pytest.raises(ConfigError, match="cannot express quantization=int8 of task=classification, with which"):
        run_export(checkpoints["classification"], tmp_path / "out", "quantization=int8")
    with pytest.raises(ConfigError, match="quantization=float16 is not to be had with format=onnx: set"):
        run_export(checkpoints["translation"], tmp_path / "out", "quantization=float16")
    assert list(tmp_path.iterdir()) == []


def test_many_weights_lie_beside_the_graph(checkpoints, tmp_path, monkeypatch):
    """A message of protobuf cannot hold 2 GiB."""
    monkeypatch.setattr("headloom.export.onnx.LARGEST_FILE", 0)
    folder = run_export(checkpoints["embedding"], tmp_path / "out")
    assert {path.name for path in folder.iterdir()} == {"encoder.onnx", "encoder.onnx.data", "headloom.json"}


def test_the_program_of_the_document_translates_as_the_checkpoint_does(checkpoint, exported, capsys):
    text = DOCUMENT.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    [program] = [block for block in blocks if "import onnxruntime" in block]
    exec(program.replace("FOLDER", str(exported("translation"))), {})
    own = own_runtime(load_trained(checkpoint, device="cpu", precision="float32"))
    [source] = own.tokenizer.encode(["a b c"])
    [ids] = own.search([source], beam_size=1, max_length=100)
    assert capsys.readouterr().out == own.tokenizer.decode(ids) + "\n" != "\n"


def test_what_is_missing_is_named(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"format=onnx needs the package onnx, .*: pip install 'headloom\[onnx\]'"):
        run_export(checkpoint, tmp_path / "out")
