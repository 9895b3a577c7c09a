"""Runs that begin with another run's weights and tokenizer, through `headloom.run`."""

import logging
from dataclasses import replace

import pytest
import torch

from headloom import run
from headloom.config.schema_model import Tying
from headloom.config.schema_optimizer import SgdConfig
from headloom.config.schema_position import RopeConfig
from headloom.config.schema_text import BpeConfig, ByteConfig, CharConfig, UnigramConfig
from headloom.config.schema_training import Device, Precision
from headloom.errors import CheckpointError, ConfigError
from headloom.training.checkpoint import load_checkpoint

ONE = {"max_steps": 1, "evaluate_every": None, "save_every": None, "device": Device.cpu, "precision": Precision.float32}


@pytest.fixture
def first(make_config, tmp_path):
    """A trained run: its configuration, and the path of its checkpoint."""
    config = make_config(folder=tmp_path / "data", trainer=ONE)
    run.train(config, tmp_path / "first")
    return config, tmp_path / "first" / "checkpoints" / "last.pt"


def standing(config, path, **sections):
    """A run from `path` that moves no weight."""
    return replace(config, warm_start=path, optimizer=SgdConfig(lr=1e-30, momentum=0.0, weight_decay=0.0), **sections)


def test_a_run_begins_with_the_weights_and_the_tokenizer_of_a_checkpoint(first, tmp_path, caplog):
    config, path = first
    # Other symbols: a tokenizer that was trained here would be another one.
    with caplog.at_level(logging.INFO):
        run.train(standing(config, path, data=replace(config.data, num_symbols=3)), tmp_path / "second")
    before, after = load_checkpoint(path), load_checkpoint(tmp_path / "second" / "checkpoints" / "last.pt")
    assert after["tokenizers"] == before["tokenizers"]
    for name, weight in before["model"].items():
        torch.testing.assert_close(after["model"][name], weight)
    (line,) = [line for line in caplog.messages if line.startswith("warm start from")]
    num = len(before["model"])
    assert line.endswith(f"step 1: took {num} of {num} weights, 100.0 % of the parameters: encoder, decoder, output")


def test_the_log_says_what_was_not_taken(first, tmp_path, caplog):
    config, path = first
    model = replace(config.model, num_decoder_layers=1, d_ff=24, tying=Tying.decoder)
    with caplog.at_level(logging.INFO):
        run.train(standing(config, path, model=model, position=RopeConfig()), tmp_path / "second")
    text = "\n".join(caplog.messages)
    [warned] = [r.message for r in caplog.records if "shapes differ" in r.message and r.levelno == logging.WARNING]
    assert warned.startswith("warm start: fresh, since their shapes differ: ")
    assert "encoder.blocks.0.feed_forward.up.weight (32, 16), here (24, 16)" in warned
    assert "warm start: not taken, since this model lacks them: decoder.blocks.1" in text
    assert "trained with other parts: position.kind=rope (there sinusoidal)" in text


def test_a_resumed_run_goes_on_from_its_own_checkpoint(first, tmp_path, caplog):
    """Even where the checkpoint that it began with is gone."""
    config, path = first
    warm = replace(config, warm_start=path, resume="auto", trainer=replace(config.trainer, max_steps=4, save_every=2))
    run.train(warm, tmp_path / "whole")
    run.train(replace(warm, trainer=replace(warm.trainer, max_steps=2)), tmp_path / "parts")
    path.unlink()
    caplog.clear()
    with caplog.at_level(logging.INFO):
        run.train(warm, tmp_path / "parts")
    assert not [line for line in caplog.messages if "warm" in line]
    whole, parts = (load_checkpoint(tmp_path / name / "checkpoints" / "last.pt") for name in ("whole", "parts"))
    for name, weight in whole["model"].items():
        assert torch.equal(weight, parts["model"][name]), name


@pytest.mark.parametrize(
    ("tokenizer", "words"),
    [
        (ByteConfig(), "tokenizer=byte is not that of warm_start=.*: set tokenizer=char"),
        (BpeConfig(), "tokenizer=bpe is not that of warm_start=.*: set tokenizer=char"),
    ],
)
def test_another_tokenizer_is_refused(first, tmp_path, tokenizer, words):
    config, path = first
    with pytest.raises(ConfigError, match=words):
        run.train(replace(config, warm_start=path, tokenizer=tokenizer), tmp_path / "second")


def test_options_of_the_tokenizer_must_be_those_it_was_trained_with(make_config, tmp_path):
    config = make_config(folder=tmp_path / "data", trainer=ONE, tokenizer=BpeConfig(vocab_size=20, byte_fallback=False))
    run.train(config, tmp_path / "first")
    warm = replace(config, warm_start=tmp_path / "first", tokenizer=BpeConfig(vocab_size=300, dropout=0.1))
    asked = r"tokenizer\.vocab_size=300 tokenizer\.byte_fallback=True is not so in warm_start=.*best\.pt"
    with pytest.raises(ConfigError, match=f"{asked}.*: set tokenizer.vocab_size=20 tokenizer.byte_fallback=false"):
        run.train(warm, tmp_path / "second")
    other = replace(config, tokenizer=CharConfig())
    run.train(other, tmp_path / "other")
    model = tmp_path / "chars.model"
    model.write_bytes(load_checkpoint(tmp_path / "other" / "checkpoints" / "last.pt")["tokenizers"]["source"]["model"])
    given = BpeConfig(vocab_size=20, byte_fallback=False, source_model=model)
    with pytest.raises(ConfigError, match=r"tokenizer\.source_model=.*chars\.model is not the tokenizer of warm_start"):
        run.train(replace(config, warm_start=tmp_path / "first", tokenizer=given), tmp_path / "second")
    sampled = replace(config.tokenizer, dropout=0.1)
    run.train(replace(config, warm_start=tmp_path / "first", tokenizer=sampled), tmp_path / "second")
    assert load_checkpoint(tmp_path / "second" / "checkpoints" / "last.pt")["tokenizers"]["source"]["sampling"] == 0.1


def test_a_given_model_may_be_taken_as_the_kind_that_it_is(make_config, tmp_path):
    """The first run had tokenizer=bpe, as everywhere, and a unigram model of the user's."""
    made = UnigramConfig(vocab_size=20, byte_fallback=False)
    config = make_config(folder=tmp_path / "data", trainer=ONE, tokenizer=made)
    run.train(config, tmp_path / "made")
    model = tmp_path / "unigram.model"
    model.write_bytes(load_checkpoint(tmp_path / "made" / "checkpoints" / "last.pt")["tokenizers"]["source"]["model"])
    given = BpeConfig(vocab_size=20, byte_fallback=False, source_model=model)
    run.train(replace(config, tokenizer=given), tmp_path / "first")
    warm = replace(config, warm_start=tmp_path / "first", tokenizer=replace(made, sampling_alpha=0.2))
    run.train(warm, tmp_path / "second")
    assert load_checkpoint(tmp_path / "second" / "checkpoints" / "last.pt")["tokenizers"]["source"]["sampling"] == 0.2


def test_a_checkpoint_of_which_nothing_fits_is_refused(first, tmp_path):
    config, path = first
    narrow = replace(config.model, d_model=8, d_ff=24)
    with pytest.raises(CheckpointError, match=r"has no weight that fits model=seq2seq: .* \(.*16.*\), here \("):
        run.train(replace(config, warm_start=path, model=narrow), tmp_path / "second")


def test_a_run_that_names_the_checkpoint_it_goes_on_from_takes_no_other(make_config, tmp_path):
    with pytest.raises(ConfigError, match=r"warm_start=.* has no effect with resume="):
        make_config(warm_start=tmp_path / "a.pt", resume=str(tmp_path / "b.pt"))
