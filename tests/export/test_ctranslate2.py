"""Exports for CTranslate2, and evaluate.py and translate.py with it in place of our own search."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from headloom import run
from headloom.config.module_command import parse
from headloom.config.schema_decoding import (
    BeamConfig,
    DecodingConfig,
    DecodingEngine,
    GreedyConfig,
    MbrConfig,
    SampleConfig,
    ScoreConfig,
)
from headloom.config.schema_export import ExportConfig
from headloom.config.schema_position import Scaling, StretchConfig
from headloom.config.schema_training import Device, Precision
from headloom.config.schema_use import EvaluateConfig, EvaluateDataConfig, LineFormat, Split, TranslateConfig
from headloom.decoding import ctranslate2_engine
from headloom.errors import CheckpointError, ConfigError, DataError
from headloom.export.command import export
from headloom.export.ctranslate2 import CTranslate2
from headloom.work.families import load_trained

ctranslate2 = pytest.importorskip("ctranslate2")

LINES = ["a b c", "", "e d c b a", "  ", "b", "c c a", "d a e", "a", "b b", "e a b d c a b e"]
THERE = {"engine": DecodingEngine.ctranslate2}
CPU: dict[str, Any] = {"device": Device.cpu}


def exported(checkpoint: Path, output: Path, *options: str) -> Path:
    arguments = [f"checkpoint={checkpoint}", f"output={output}", "format=ctranslate2", *options]
    export(parse(ExportConfig, arguments, base=output.parent))
    return output


@pytest.fixture(scope="session")
def folder(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(checkpoint, tmp_path_factory.mktemp("exports") / "copy")


def translate(checkpoint: Path, lines: Sequence[str], folder: Path, **options: Any) -> list[str]:
    source, target = folder / "in.txt", folder / "out.txt"
    source.write_text("".join(f"{line}\n" for line in lines))
    run.translate(TranslateConfig(checkpoint=checkpoint, input=source, output=target, **CPU, **options))
    return target.read_text().split("\n")[:-1]


def replies(checkpoint: Path, requests: Sequence[dict[str, Any]], folder: Path, **options: Any) -> list[dict[str, Any]]:
    lines = [json.dumps(request) for request in requests]
    return [json.loads(line) for line in translate(checkpoint, lines, folder, format=LineFormat.jsonl, **options)]


@pytest.mark.parametrize("task", ["translation", "language_modeling"])
def test_models_that_write_are_exported(checkpoints, tmp_path, caplog, task):
    with caplog.at_level("INFO"):
        output = exported(checkpoints[task], tmp_path / "out")
    assert "greedy: " in caplog.text
    assert "beam 4: " in caplog.text
    assert {"model.bin", "config.json", "headloom.json"} <= {path.name for path in output.iterdir()}


@pytest.mark.parametrize("quantization", ["int8", "int8_float32", "int16", "float16"])
def test_rounded_weights_are_smaller_and_compared_by_their_translations(
    wide_checkpoint, tmp_path, caplog, quantization
):
    with caplog.at_level("INFO"):
        output = exported(wide_checkpoint, tmp_path / "out", f"quantization={quantization}")
    assert "BLEU against the references of" in caplog.text
    whole = exported(wide_checkpoint, tmp_path / "whole")
    assert (output / "model.bin").stat().st_size < (whole / "model.bin").stat().st_size
    assert len(translate(output, LINES, tmp_path, decoding=GreedyConfig())) == len(LINES)


@pytest.mark.parametrize("quantization", [None, "int8", "float16"])
def test_an_export_leaves_the_model_that_it_is_compared_with_as_it_was(checkpoint, tmp_path, quantization):
    trained = load_trained(checkpoint, device="cpu", precision="float32")
    before = {name: weight.clone() for name, weight in trained.model.state_dict().items()}
    CTranslate2(quantization).write(trained, tmp_path)
    after = trained.model.state_dict()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())


def test_what_cannot_be_expressed_is_refused_by_its_option(checkpoints, tmp_path):
    with pytest.raises(ConfigError, match="format=ctranslate2 cannot express task=classification, with which"):
        exported(checkpoints["classification"], tmp_path / "out")
    with pytest.raises(ConfigError, match="quantization=int8 has no effect with format=safetensors: remove it"):
        exported(checkpoints["translation"], tmp_path / "out", "quantization=int8", "format=safetensors")
    assert list(tmp_path.iterdir()) == []


EXACT_SEARCHES = [
    GreedyConfig(max_length=12),
    GreedyConfig(max_length=12, max_ratio=0.5),
    GreedyConfig(max_length=1),
    GreedyConfig(max_length=12, forbidden=["b", "c a"]),
    BeamConfig(max_length=12, beam_size=3, length_penalty=0.0),
]


@pytest.mark.parametrize("decoding", EXACT_SEARCHES, ids=str)
def test_the_filter_writes_what_it_writes_with_our_own_search(checkpoint, folder, tmp_path, decoding):
    """B04, B76: blank lines stay blank, and order is kept."""
    ours = translate(checkpoint, LINES, tmp_path, decoding=decoding, precision=Precision.float32)
    assert translate(folder, LINES, tmp_path, decoding=decoding) == ours
    assert ours[1] == ours[3] == ""
    alone = [line for part in LINES for line in translate(folder, [part], tmp_path, decoding=decoding)]
    assert alone == ours


def test_json_lines_have_the_n_best_with_what_they_are_ranked_by(folder, tmp_path):
    decoding = BeamConfig(max_length=12, beam_size=4, num_best=3, length_penalty=0.6)
    [reply] = replies(folder, [{"source": "a b c", "id": 7}], tmp_path, decoding=decoding)
    assert reply["id"] == 7
    assert reply["translation"] == reply["n_best"][0]["translation"]
    scores = [best["score"] for best in reply["n_best"]]
    assert scores == sorted(scores, reverse=True)
    assert all(best["log_probability"] < best["score"] < 0 for best in reply["n_best"])


def test_a_checkpoint_is_exported_once_beside_it_and_anew_when_it_changes(checkpoint, tmp_path, caplog):
    mine = tmp_path / "best.pt"
    shutil.copyfile(checkpoint, mine)
    ours = translate(mine, LINES, tmp_path, decoding=GreedyConfig(max_length=12), precision=Precision.float32)
    decoding = GreedyConfig(max_length=12, **THERE)
    with caplog.at_level("INFO"):
        assert translate(mine, LINES, tmp_path, decoding=decoding) == ours
        [kept] = tmp_path.glob("best-*.ctranslate2")
        written = (kept / "model.bin").stat().st_mtime_ns
        assert translate(mine, LINES, tmp_path, decoding=decoding) == ours
    assert caplog.text.count("for CTranslate2, once") == 1
    assert (kept / "model.bin").stat().st_mtime_ns == written
    contents = run.load_trained(mine, device="cpu", precision="float32").step
    assert contents == 150
    with mine.open("ab") as file:  # a zip file may have a comment behind it: another checkpoint by its hash
        file.write(b"\0")
    stale = mine.read_bytes()
    mine.write_bytes(stale[:-3] + b"\x01\x00" + b"x")
    assert translate(mine, LINES, tmp_path, decoding=decoding) == ours
    [renewed] = tmp_path.glob("best-*.ctranslate2")
    assert renewed != kept


def with_other_bytes(whole: bytes) -> bytes:
    middle = len(whole) // 2
    return whole[:middle] + bytes(255 - byte for byte in whole[middle : middle + 40]) + whole[middle + 40 :]


@pytest.mark.parametrize("damaged", ["model.bin", "config.json", "headloom.json", "shared_vocabulary.json"])
@pytest.mark.parametrize("content", [lambda whole: b"{", lambda whole: b'["<pad>"]', with_other_bytes, None])
def test_a_damaged_export_beside_a_checkpoint_is_made_anew(checkpoint, tmp_path, caplog, damaged, content):
    """Also where CTranslate2 reads it, and would write something else."""
    mine = tmp_path / "best.pt"
    shutil.copyfile(checkpoint, mine)
    decoding = GreedyConfig(max_length=12, **THERE)
    whole = translate(mine, LINES, tmp_path, decoding=decoding)
    [kept] = tmp_path.glob("best-*.ctranslate2")
    file = kept / damaged
    before = file.read_bytes()
    file.unlink()
    if content is not None:
        file.write_bytes(content(before))
    caplog.clear()
    assert translate(mine, LINES, tmp_path, decoding=decoding) == whole
    assert [record.message.count("made anew") for record in caplog.records if record.levelname == "WARNING"] == [1]
    assert file.stat().st_size > 1


def test_evaluating_scores_what_it_writes(checkpoint, folder, tmp_path):
    """Of a checkpoint with the engine the loss is our own; an export has none."""

    def score(path: Path, name: str, decoding: DecodingConfig) -> dict[str, Any]:
        data = EvaluateDataConfig(split=Split.valid)
        config = EvaluateConfig(checkpoint=path, data=data, decoding=decoding, output=tmp_path / name, **CPU)
        return run.evaluate(config)

    ours = score(checkpoint, "ours", GreedyConfig(max_length=12))
    mine = tmp_path / "best.pt"
    shutil.copyfile(checkpoint, mine)
    mixed = score(mine, "mixed", GreedyConfig(max_length=12, **THERE))
    theirs = score(folder, "theirs", GreedyConfig(max_length=12))
    for metric in ("bleu", "chrf", "ter", "exact_match"):
        assert mixed[metric] == theirs[metric] == ours[metric]
    assert mixed["loss"] == ours["loss"]
    assert "loss" not in theirs
    compared = run.evaluate(
        EvaluateConfig(
            checkpoint=checkpoint,
            compare=[folder],
            data=EvaluateDataConfig(split=Split.valid),
            decoding=GreedyConfig(max_length=12),
            output=tmp_path / "both",
            resamples=10,
            **CPU,
        )
    )
    assert len(compared["systems"]) == 2
    assert "paired_bootstrap" in compared
    refused = tmp_path / "refused"
    exact = {**CPU, "precision": Precision.float32, "decoding": GreedyConfig(max_length=12)}
    data = EvaluateDataConfig(split=Split.valid)
    with pytest.raises(ConfigError, match="precision=float32 has no effect"):  # before the checkpoint is scored
        run.evaluate(EvaluateConfig(checkpoint=checkpoint, compare=[folder], data=data, output=refused, **exact))
    assert not refused.exists()


@pytest.mark.parametrize(
    ("decoding", "message"),
    [
        (SampleConfig, "has no decoding=sample: choose greedy or beam"),
        (MbrConfig, "has no decoding=mbr: choose greedy or beam"),
        (ScoreConfig, "has no decoding=score: choose greedy or beam"),
    ],
)
def test_a_search_that_it_has_not_is_refused(folder, tmp_path, decoding, message):
    with pytest.raises(ConfigError, match=message):
        TranslateConfig(checkpoint=folder, decoding=decoding(**THERE))
    with pytest.raises(ConfigError, match=message):
        translate(folder, LINES, tmp_path, decoding=decoding())


@pytest.mark.parametrize(
    ("search", "options", "message"),
    [
        ({"coverage_penalty": 0.2}, {}, r"has no decoding\.coverage_penalty=0\.2: remove it, or name"),
        ({"max_tokens": 99}, {}, r"decoding\.max_tokens=99 has no effect with CTranslate2, which makes"),
        ({"required": ["a"]}, {}, r"has no decoding\.required=\['a'\]"),
        ({}, {"alignments": True, "format": LineFormat.jsonl}, "has no alignments: remove it"),
        ({}, {"ensemble": [Path("other.pt")]}, "has no ensemble: remove it"),
        ({}, {"precision": Precision.float32}, "precision=float32 has no effect with CTranslate2"),
        ({}, {"position": StretchConfig(scaling=Scaling.yarn, factor=2.0)}, "position has no effect with"),
    ],
)
def test_an_option_that_it_has_not_is_refused_by_name(folder, tmp_path, search, options, message):
    """Before anything is loaded where the engine is named; else where the export is seen."""
    with pytest.raises(ConfigError, match=message):
        TranslateConfig(checkpoint=folder, decoding=BeamConfig(**search, **THERE), **options)
    with pytest.raises(ConfigError, match=message):
        run._load(TranslateConfig(checkpoint=folder, decoding=BeamConfig(**search), **options), folder)


def test_wishes_of_a_line_that_it_has_not_are_refused_by_name(folder, tmp_path):
    decoding = BeamConfig(max_length=12, beam_size=3)
    refused = r"line 2 has a field .prefix., which CTranslate2 does not take"
    with pytest.raises(DataError, match=refused):
        replies(folder, [{"source": "a"}, {"source": "a", "prefix": "b"}], tmp_path, decoding=decoding)
    plain, other = replies(
        folder, [{"source": "a b c"}, {"source": "a b c", "forbidden": ["b"]}], tmp_path, decoding=decoding
    )
    assert "b" in plain["translation"]
    assert "b" not in other["translation"]


@pytest.mark.parametrize("listed", [0, 1000])
def test_forbidden_phrases_are_kept_out_though_few_of_their_tokens_are_listed(
    checkpoint, folder, tmp_path, monkeypatch, listed
):
    monkeypatch.setattr(ctranslate2_engine, "MOST_SEQUENCES", listed)
    for phrases in (["b"], ["a b", "c"], ["a", "b", "c"]):
        decoding = GreedyConfig(max_length=12, forbidden=phrases)
        ours = translate(checkpoint, LINES, tmp_path, decoding=decoding, precision=Precision.float32)
        assert translate(folder, LINES, tmp_path, decoding=decoding) == ours
        beam = BeamConfig(max_length=12, beam_size=3, num_best=2, forbidden=phrases)
        text = "\n ".join(translate(folder, LINES, tmp_path, decoding=beam)).replace("\t", "\n ")
        assert not any(f" {phrase}" in f" {text}" for phrase in phrases)


def test_what_is_no_translation_is_refused(checkpoints, folder, tmp_path):
    decoding = GreedyConfig(**THERE)
    with pytest.raises(ConfigError, match="no effect with a checkpoint of task=language_modeling"):
        translate(checkpoints["language_modeling"], LINES, tmp_path, decoding=decoding)
    output = exported(checkpoints["language_modeling"], tmp_path / "out")
    with pytest.raises(CheckpointError, match="an export of format=ctranslate2 and task=language_modeling, which runs"):
        translate(output, LINES, tmp_path, decoding=GreedyConfig())
    with pytest.raises(ConfigError, match=r"decoding\.engine=headloom needs a checkpoint's file"):
        translate(folder, LINES, tmp_path, decoding=GreedyConfig(engine=DecodingEngine.headloom))


def test_training_keeps_to_our_own_search(make_config):
    with pytest.raises(ConfigError, match="searches with a finished model"):
        make_config(decoding=GreedyConfig(**THERE))


def test_a_damaged_export_is_named(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy" / "model.bin").write_bytes(b"no model")
    described = json.loads((tmp_path / "copy" / "headloom.json").read_text())
    del described["files"]  # as in an export from before they were counted
    (tmp_path / "copy" / "headloom.json").write_text(json.dumps(described))
    with pytest.raises(CheckpointError, match="cannot be read by CTranslate2"):
        translate(tmp_path / "copy", LINES, tmp_path, decoding=GreedyConfig())
