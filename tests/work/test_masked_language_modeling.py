"""Masked language modelling through `headloom.run`, and what begins with it."""

import json
import logging
from dataclasses import replace

import pytest
import torch

from headloom import build_pretraining, run
from headloom.config.schema_data import TsvConfig
from headloom.config.schema_decoding import BeamConfig
from headloom.config.schema_labelled import ClassificationConfig, ClassifierConfig, LabelledConfig, PoolingKind
from headloom.config.schema_language import Batching, Documents, TextConfig
from headloom.config.schema_model import Seq2SeqConfig
from headloom.config.schema_pretraining import MaskedLanguageModelingConfig
from headloom.config.schema_text import BpeConfig, ByteConfig, TranslationConfig
from headloom.config.schema_training import Device, Precision
from headloom.config.schema_use import EvaluateConfig, EvaluateDataConfig, Split, TranslateConfig
from headloom.data.tokenizer import ByteTokenizer
from headloom.errors import ConfigError
from headloom.training.checkpoint import load_checkpoint

EXACT = {"device": Device.cpu, "precision": Precision.float32}
SIZE = {"d_model": 16, "num_heads": 2, "d_ff": 32, "num_layers": 1}


@pytest.fixture
def config(make_config, tmp_path):
    """Words of letters that follow each other: what is hidden can be told from what is beside it."""
    words = ["abcdefgh"[i % 5 :][:4] for i in range(300)]
    (tmp_path / "text.txt").write_text("".join(f"{' '.join(words[i : i + 3])}\n" for i in range(0, 300, 3)))
    return make_config(
        model=ClassifierConfig(**SIZE, dropout=0.1),
        task=MaskedLanguageModelingConfig(),
        data=TextConfig(
            path=tmp_path / "text.txt",
            folder=tmp_path / "data",
            max_length=20,
            documents=Documents.line,
            valid_share=0.2,
        ),
        tokenizer=ByteConfig(),
        trainer=EXACT | {"max_tokens": 200, "max_steps": 6, "evaluate_every": 3, "save_every": 3},
    )


def last(run_dir):
    return run_dir / "checkpoints" / "last.pt"


@pytest.mark.parametrize("batching", [Batching.blocks, Batching.documents])
def test_a_resumed_run_ends_with_the_weights_of_one_that_never_stopped(config, tmp_path, batching):
    config = replace(config, data=replace(config.data, batching=batching))
    run.train(config, tmp_path / "whole")
    run.train(replace(config, trainer=replace(config.trainer, max_steps=4)), tmp_path / "parts")
    run.train(replace(config, resume="auto"), tmp_path / "parts")
    whole, parts = (load_checkpoint(last(tmp_path / name))["model"] for name in ("whole", "parts"))
    for name, weight in whole.items():
        assert torch.equal(weight, parts[name]), name


def test_validation_and_evaluation_agree(config, tmp_path, capsys):
    headline = run.train(config, tmp_path / "run")
    results = run.evaluate(
        EvaluateConfig(
            checkpoint=tmp_path / "run" / "checkpoints" / "best.pt",
            data=EvaluateDataConfig(split=Split.valid),
            decoding=BeamConfig(),
            output=tmp_path / "scores",
            **EXACT,
        )
    )
    assert results["loss"] == headline
    assert json.loads((tmp_path / "scores" / "evaluation.json").read_bytes())["accuracy"] == results["accuracy"]
    assert f"loss        {headline:>9.4f}" in capsys.readouterr().out
    samples = sorted((tmp_path / "run" / "samples").iterdir())[-1].read_text(encoding="utf-8")
    assert "[MASK]" in samples
    with pytest.raises(ConfigError, match=r"has no answer for a line: .* warm_start="):
        run.translate(TranslateConfig(checkpoint=last(tmp_path / "run"), decoding=BeamConfig(), **EXACT))


def test_classifiers_and_encoder_decoders_begin_with_its_encoder(config, tmp_path, caplog):
    run.train(replace(config, trainer=replace(config.trainer, max_steps=1)), tmp_path / "mlm")
    (tmp_path / "rows.tsv").write_text("ab\tx\nba\ty\n" * 3)
    files = {"path": tmp_path / "rows.tsv", "valid_path": tmp_path / "rows.tsv", "folder": tmp_path / "data"}
    one = replace(config.trainer, max_steps=1, evaluate_every=None, save_every=None)
    warm = replace(config, warm_start=last(tmp_path / "mlm"), trainer=one)
    classifier = replace(warm, task=ClassificationConfig(), data=LabelledConfig(**files, max_length=20))

    translation = replace(
        warm, task=TranslationConfig(), model=Seq2SeqConfig(**SIZE), data=TsvConfig(**files, max_length=20)
    )
    with caplog.at_level(logging.INFO):
        run.train(classifier, tmp_path / "classifier")
        run.train(translation, tmp_path / "translation")
    took, fresh, lacked, *others = [line for line in caplog.messages if line.startswith("warm start")]
    assert took.endswith("of the parameters: encoder")
    assert fresh == "warm start: fresh, since the checkpoint lacks them: head"
    assert lacked == "warm start: not taken, since this model lacks them: encoder.embedding.mask, output"
    assert others[0].endswith("of the parameters: encoder, decoder.embedding, output")
    assert others[1] == "warm start: fresh, since the checkpoint lacks them: decoder.blocks, decoder.norm"


def test_a_hidden_token_has_a_vector_of_its_own(config):
    model = build_pretraining.build_masked_model(config, ByteTokenizer())
    vocab_size = ByteTokenizer.vocab_size
    vectors = model.encoder.embedding.vectors(torch.tensor([[vocab_size, 7]]))[0]
    scale = model.encoder.embedding.scale
    assert torch.equal(vectors[0], model.encoder.embedding.mask.weight[0] * scale)
    assert torch.equal(vectors[1], model.encoder.embedding.table.weight[7] * scale)
    assert model.output_weight is model.encoder.embedding.table.weight
    assert model.output_weight.size(0) == vocab_size  # never predicted


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"probability": 0.0}, "task.probability=0.0 is out of range"),
        ({"mask_share": 1.1}, "task.mask_share=1.1 is out of range"),
        ({"random_share": -0.1}, "task.random_share=-0.1 is out of range"),
        ({"random_share": 0.3}, "task.mask_share=0.8 and task.random_share=0.3 pass 1 in sum"),
    ],
)
def test_a_wrong_share_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        MaskedLanguageModelingConfig(**options)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"model": ClassifierConfig(pooling=PoolingKind.cls)}, "model.pooling=cls has no effect with task=masked_lang"),
        ({"model": ClassifierConfig(head_dropout=0.1)}, r"model\.head_dropout=0\.1 has no effect"),
        (
            {"tokenizer": BpeConfig(dropout=0.1)},
            r"tokenizer\.dropout=0\.1 has no effect with task=masked_language_modeling on running",
        ),
        ({"data": LabelledConfig(path="x")}, "task=masked_language_modeling needs running text"),
        (
            {"data": TextConfig(path="x", batching=Batching.packed)},
            "data.batching=packed is for task=language_modeling",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(config, sections, words):
    with pytest.raises(ConfigError, match=words):
        replace(config, **sections)
