"""Sentence embedding through `headloom.run`."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from headloom import run
from headloom.config.schema_data import TsvConfig
from headloom.config.schema_decoding import BeamConfig
from headloom.config.schema_labelled import ClassifierConfig, LabelledConfig
from headloom.config.schema_language import Batching, Documents, TextConfig
from headloom.config.schema_pretraining import EmbeddingConfig, EmbeddingHeadline
from headloom.config.schema_text import ByteConfig
from headloom.config.schema_training import Device, Precision
from headloom.config.schema_use import EvaluateConfig, EvaluateDataConfig, LineFormat, OnBadLine, Split, TranslateConfig
from headloom.errors import ConfigError, DataError
from headloom.training.checkpoint import load_checkpoint

EXACT = {"device": Device.cpu, "precision": Precision.float32}
WORDS = ["red", "green", "blue", "cat", "dog", "bird", "sits", "runs", "sleeps", "on", "a", "mat"]
SENTENCES = [" ".join(WORDS[i * k % 12] for k in range(1, 3 + i % 3)) for i in range(1, 40)]


@pytest.fixture
def config(make_config, tmp_path):
    """Lines that are read twice."""
    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in SENTENCES))
    (tmp_path / "sts.tsv").write_text(
        "".join(f"{a}\t{b}\t{i % 6}\n" for i, (a, b) in enumerate(itertools.pairwise(SENTENCES)))
    )
    return make_config(
        model=ClassifierConfig(d_model=16, num_heads=2, d_ff=32, num_layers=1, dropout=0.1),
        task=EmbeddingConfig(sts=tmp_path / "sts.tsv"),
        data=TextConfig(
            path=tmp_path / "lines.txt",
            folder=tmp_path / "data",
            max_length=24,
            documents=Documents.line,
            batching=Batching.documents,
            valid_share=0.2,
        ),
        tokenizer=ByteConfig(),
        trainer=EXACT | {"max_tokens": 200, "max_steps": 4, "evaluate_every": 2, "save_every": 2},
    )


@pytest.fixture
def pairs(config, tmp_path):
    """Lines with what belongs to them."""
    (tmp_path / "pairs.tsv").write_text("".join(f"{line}\t{line[::-1]}\n" for line in SENTENCES))
    data = TsvConfig(path=tmp_path / "pairs.tsv", folder=tmp_path / "data", max_length=24, valid_share=0.2)
    return replace(config, data=data, task=EmbeddingConfig(), model=replace(config.model, dropout=0.0))


def last(run_dir):
    return run_dir / "checkpoints" / "last.pt"


def translate(run_dir, folder, text, **options):
    (folder / "in").write_bytes(text.encode("utf-8"))
    files = {"input": folder / "in", "output": folder / "out.npy"}
    run.translate(TranslateConfig(checkpoint=last(run_dir), decoding=BeamConfig(), **EXACT, **files | options))


def evaluate(run_dir, output, **data):
    data = EvaluateDataConfig(**data)
    return run.evaluate(
        EvaluateConfig(checkpoint=last(run_dir), data=data, decoding=BeamConfig(), output=output, **EXACT)
    )


@pytest.mark.parametrize("kind", ["config", "pairs"])
def test_a_resumed_run_ends_with_the_weights_of_one_that_never_stopped(kind, tmp_path, request):
    config = request.getfixturevalue(kind)
    run.train(config, tmp_path / "whole")
    run.train(replace(config, trainer=replace(config.trainer, max_steps=3)), tmp_path / "parts")
    run.train(replace(config, resume="auto"), tmp_path / "parts")
    whole, parts = (load_checkpoint(last(tmp_path / name))["model"] for name in ("whole", "parts"))
    for name, weight in whole.items():
        assert torch.equal(weight, parts[name]), name


def test_lines_become_rows_of_an_array_and_json_lines_fields(config, tmp_path):
    run.train(replace(config, trainer=replace(config.trainer, max_steps=1)), tmp_path / "run")
    translate(tmp_path / "run", tmp_path, "red cat\n\na dog runs\nred cat\n", buffer_lines=2)
    vectors = np.load(tmp_path / "out.npy")
    assert (vectors.shape, vectors.dtype) == ((4, 16), np.float32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(vectors[0], vectors[3], atol=1e-6)
    assert abs(vectors[0] - vectors[2]).max() > 1e-3
    translate(tmp_path / "run", tmp_path, "red cat\n", normalize=False)
    raw = np.load(tmp_path / "out.npy")[0]
    np.testing.assert_allclose(raw / np.linalg.norm(raw), vectors[0], atol=1e-6)
    translate(
        tmp_path / "run", tmp_path, '{"text": "red cat", "id": 3}\n', format=LineFormat.jsonl, output=tmp_path / "out"
    )
    fields = json.loads((tmp_path / "out").read_text())
    assert list(fields) == ["text", "id", "vector"]
    np.testing.assert_allclose(fields["vector"], vectors[0], atol=1e-6)
    with pytest.raises(ConfigError, match=r"answers with vectors, .*: set output=FILE\.npy or format=jsonl"):
        translate(tmp_path / "run", tmp_path, "red cat\n", output=tmp_path / "out")


def test_a_line_that_is_skipped_is_a_row_of_nan_and_no_line_is_an_empty_array(config, tmp_path):
    run.train(replace(config, trainer=replace(config.trainer, max_steps=1)), tmp_path / "run")
    lines = '{"text": "a"}\n{"none": 1}\n{"text": "b"}\n'
    translate(tmp_path / "run", tmp_path, lines, format=LineFormat.jsonl, on_bad_line=OnBadLine.skip)
    assert np.isnan(np.load(tmp_path / "out.npy")).all(axis=1).tolist() == [False, True, False]
    translate(tmp_path / "run", tmp_path, "")
    assert np.load(tmp_path / "out.npy").shape == (0, 16)
    with pytest.raises(DataError, match="line 2 has no field 'text'"):
        translate(tmp_path / "run", tmp_path, lines, format=LineFormat.jsonl)
    assert np.load(tmp_path / "out.npy").shape == (0, 16)  # as it was


def test_likeness_is_validated_and_evaluated_alike(config, tmp_path, capsys):
    run.train(config, tmp_path / "run")
    validated = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last_one = [values["valid/spearman"] for values in validated if "valid/spearman" in values][-1]
    assert evaluate(tmp_path / "run", tmp_path / "out", path=tmp_path / "sts.tsv")["spearman"] == pytest.approx(
        last_one
    )
    assert "spearman" in capsys.readouterr().out
    assert {"loss", "accuracy"} < evaluate(tmp_path / "run", tmp_path / "out", split=Split.valid).keys()
    (tmp_path / "sts.tsv").write_text("a\tb\t1\nc\td\tmuch\n")
    with pytest.raises(DataError, match="row 2: 'much' is no number"):
        evaluate(tmp_path / "run", tmp_path / "out", path=tmp_path / "sts.tsv")


def test_vectors_and_their_file_are_of_an_embedding_alone(make_config, tmp_path):
    run.train(make_config(folder=tmp_path / "data", trainer=EXACT | {"max_steps": 1}), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"out\.npy is for the vectors of a checkpoint of task=embedding"):
        translate(tmp_path / "run", tmp_path, "a\n")
    with pytest.raises(ConfigError, match="normalize=true has no effect with task=translation"):
        translate(tmp_path / "run", tmp_path, "a\n", normalize=True, output=tmp_path / "out")


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"data": LabelledConfig(path="x")}, "task=embedding needs pairs of lines, such as data=tsv, or running text"),
        ({"data": TextConfig(path="x")}, "not data.batching=blocks: set data.batching=documents"),
        (
            {"model": ClassifierConfig(dropout=0.0)},
            r"told|tells a sentence read twice by its dropout, and model\.dropout=0",
        ),
        ({"model": ClassifierConfig(head_dropout=0.1)}, r"model\.head_dropout=0\.1 has no effect with task=embedding"),
    ],
)
def test_what_does_not_go_together_is_refused(config, sections, words):
    with pytest.raises(ConfigError, match=words):
        replace(config, **sections)


@pytest.mark.parametrize("kind", ["config", "pairs"])
def test_sentences_that_are_alone_in_their_batch_are_refused_or_warned_of(kind, tmp_path, request, caplog):
    """Their loss is 0: a run of them would end well and have learnt nothing."""
    config = request.getfixturevalue(kind)
    unequal = config.data.path.read_text()
    lines = [f"{line[:14]:x<14}" for line in SENTENCES]
    config.data.path.write_text("".join(f"{line}\t{line}\n" if kind == "pairs" else f"{line}\n" for line in lines))
    with pytest.raises(
        ConfigError, match=r"every sentence would be alone in its batch, .*: raise trainer\.max_tokens="
    ):
        run.train(replace(config, trainer=replace(config.trainer, max_tokens=24)), tmp_path / "alone")
    config.data.path.write_text(unequal)
    run.train(replace(config, trainer=replace(config.trainer, max_tokens=30, max_steps=1)), tmp_path / "some")
    assert any(" of the sentences are alone in their batch and teach nothing" in line for line in caplog.messages)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": 0.0}, "task.temperature=0.0 is out of range"),
        ({"headline": EmbeddingHeadline.spearman}, "task.headline=spearman needs sentences to compare: set task.sts"),
    ],
)
def test_a_wrong_option_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        EmbeddingConfig(**options)
