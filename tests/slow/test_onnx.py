"""Every choice of every family in ONNX Runtime: an export takes seconds."""

import pytest
from every_combination import config_of
from every_graph import OnnxRuntime, check_graphs, check_head, covering, name_of

from headloom.config.schema_labelled import PoolingKind

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.mark.parametrize("choices", list(covering()), ids=name_of)
@pytest.mark.parametrize("family", ["seq2seq", "classifier"])
def test_onnx_runtime_computes_what_the_model_does_with_every_choice(family, choices, tmp_path):
    check_graphs(family, config_of(family, choices), OnnxRuntime(tmp_path))


@pytest.mark.parametrize("pooling", [*PoolingKind, None])
def test_onnx_runtime_computes_every_head(pooling, tmp_path):
    check_head(pooling, OnnxRuntime(tmp_path))
