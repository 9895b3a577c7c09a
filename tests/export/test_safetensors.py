"""Exports that hold every model, and the command around them."""

import copy
import gzip
import json
import math
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from every_combination import shaken

from headloom.config.module_command import parse
from headloom.config.schema_export import ExportConfig
from headloom.data.tokenizer import load_tokenizer
from headloom.errors import CheckpointError, ConfigError, DataError
from headloom.export.command import export, sha256_of, write_checked
from headloom.export.folder import read_description
from headloom.export.gate import check
from headloom.export.own import own_runtime
from headloom.export.safetensors import Safetensors, read_weights
from headloom.export.sample import sample_of
from headloom.training.checkpoint import load_checkpoint, save_checkpoint
from headloom.work.base import Trained
from headloom.work.families import load_trained

safetensors = pytest.importorskip("safetensors")

TASKS = ["translation", "language_modeling", "classification", "masked_language_modeling", "embedding"]


def exported(checkpoint: Path, output: Path, *options: str) -> Path:
    arguments = [f"checkpoint={checkpoint}", f"output={output}", "format=safetensors", *options]
    export(parse(ExportConfig, arguments, base=output.parent))
    return output


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_exported_and_read_again(checkpoints, tmp_path, caplog, task):
    with caplog.at_level("INFO"):
        output = exported(checkpoints[task], tmp_path / "out")
    assert "line" in caplog.text  # what was compared
    description = read_description(output)
    contents = load_checkpoint(checkpoints[task])
    assert description.checkpoint == sha256_of(checkpoints[task])
    assert description.step == contents["step"]
    assert description.contents["tokenizers"] == contents["tokenizers"]
    assert description.contents["labels"] == contents.get("labels")
    assert description.config.task.kind.name == task
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_export_that_finds_no_room_leaves_nothing(checkpoint, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, limits[1]))  # what a full disk looks like to one file
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            exported(checkpoint, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(caught.value.filename).startswith(f"{tmp_path}/out.partial-")
    assert list(tmp_path.iterdir()) == []


def test_weights_that_are_not_finite_are_not_exported(checkpoint, tmp_path):
    contents = load_checkpoint(checkpoint)
    name = [*contents["model"]][3]
    contents["model"][name].view(-1)[0] = math.nan
    del contents["magic"], contents["format"]
    save_checkpoint(tmp_path / "broken.pt", contents)
    with pytest.raises(CheckpointError, match=rf"broken\.pt: {name} holds numbers that are not finite"):
        exported(tmp_path / "broken.pt", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_is_plain_tensors_and_standard_tokenizers(checkpoint, tmp_path):
    """B111: nothing in it can run; other programs read it without us."""
    output = exported(checkpoint, tmp_path / "out")
    assert {path.name for path in output.iterdir()} == {"headloom.json", "model.safetensors", "tokenizer.model"}
    assert len({path.stat().st_mode for path in output.iterdir()}) == 1  # whoever may read one may read all
    with safetensors.safe_open(output / "model.safetensors", framework="np") as file:
        names, tied = set(file.keys()), json.loads(file.metadata()["tied"])
    weights = load_checkpoint(checkpoint)["model"]
    assert names | set(tied) == set(weights)
    assert names & set(tied) == set()
    assert set(tied) == {"decoder.embedding.table.weight", "output.weight"}  # model.tying=all
    assert load_tokenizer(output / "tokenizer.model").encode(["a b"])


class Wrong(Safetensors):
    """Writes another model than it is given."""

    def write(self, trained: Trained, folder: Path) -> None:
        super().write(replace(trained, model=shaken(copy.deepcopy(trained.model))), folder)


@pytest.mark.parametrize("task", TASKS)
def test_what_does_not_answer_alike_is_refused_and_not_left(checkpoints, tmp_path, task):
    trained = load_trained(checkpoints[task], device="cpu", precision="float32")
    sample = sample_of(trained, None)
    with pytest.raises(CheckpointError, match="the export is refused: line"):
        write_checked(Wrong(), trained, sample, checkpoints[task], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    write_checked(Safetensors(), trained, sample, checkpoints[task], tmp_path / "out")


def test_rounded_weights_may_cost_a_little_and_no_more(checkpoint, tmp_path, caplog):
    """With references and without; the checkpoint itself costs nothing."""
    trained = load_trained(checkpoint, device="cpu", precision="float32")
    (tmp_path / "lines").write_text("a b c d e a\nc d a b b\n\nb c d a a e\n")
    sample = sample_of(trained, tmp_path / "lines")
    (tmp_path / "lines.gz").write_bytes(gzip.compress((tmp_path / "lines").read_bytes()))
    assert sample_of(trained, tmp_path / "lines.gz").lines == sample.lines
    referenced = replace(sample, references=["a b c d e a", "c d a b b", "b c d a a e"])
    Wrong().write(trained, tmp_path)
    for some in (sample, referenced):
        with caplog.at_level("INFO"):
            check(trained, own_runtime(trained), some, is_exact=False)
        with pytest.raises(CheckpointError, match="choose another quantization"):
            check(trained, Wrong().opened(trained, tmp_path), some, is_exact=False)
    assert "100.00, the checkpoint 100.00 (30.0 less is allowed)" in caplog.text
    assert "BLEU against the references of 3 lines" in caplog.text


def test_the_command_says_what_it_compared(checkpoint, tmp_path):
    (tmp_path / "lines.txt").write_text("a b c\n\nb\n")
    command = [sys.executable, "-m", "headloom.export", f"checkpoint={checkpoint}", "format=safetensors"]
    done = subprocess.run(
        [*command, "output=deep/out", "sample=lines.txt"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "greedy: 2 of 2 lines of" in done.stderr
    assert (tmp_path / "deep" / "out" / "headloom.json").is_file()
    again = subprocess.run([*command, "output=deep/out"], cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 2
    assert "holds files already: remove them, or name another folder" in again.stderr
    assert again.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "checkpoint is missing, as are format and output: set checkpoint="),
        (["checkpoint=FILE", "output=o", "format=pickle"], "'format=pickle' is refused: it takes"),
        (["checkpoint=nowhere.pt", "output=o", "format=safetensors"], "does not exist: check the path"),
        (["checkpoint=FILE", "output=FILE", "format=safetensors"], "is a file: name a folder"),
        (["checkpoint=FILE", "output=o", "format=safetensors", "sample=none"], "none does not exist"),
        (["checkpoint=FILE", "output=o", "formt=safetensors"], "Did you mean 'format'?"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(checkpoint, tmp_path, arguments, message):
    given = [argument.replace("FILE", str(checkpoint)) for argument in arguments]
    with pytest.raises(ConfigError) as error:
        export(parse(ExportConfig, given, base=tmp_path))
    assert message in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_sample_without_a_token_and_data_that_is_gone_are_named(checkpoint, checkpoints, tmp_path):
    (tmp_path / "blank").write_text("\n  \n")
    with pytest.raises(DataError, match="has no line with a token: name a file of lines with sample=FILE"):
        exported(checkpoint, tmp_path / "out", f"sample={tmp_path / 'blank'}")
    trained = load_trained(checkpoints["classification"], device="cpu", precision="float32")
    moved = replace(trained, config=replace(trained.config, data=replace(trained.config.data, path=Path("gone.tsv"))))
    with pytest.raises(DataError, match=r"validation data of the training is not here \(.*\): set sample=FILE"):
        sample_of(moved, None)


def test_a_folder_that_is_no_export_is_named(checkpoint, tmp_path):
    with pytest.raises(CheckpointError, match=r"is no export: it has no headloom\.json"):
        read_description(tmp_path)
    output = exported(checkpoint, tmp_path / "out")
    (output / "tokenizer.model").unlink()
    with pytest.raises(CheckpointError, match=r"is not whole: tokenizer\.model is missing; export again"):
        read_description(output)
    (output / "model.safetensors").write_bytes(b"{}")
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read"):
        read_weights(output / "model.safetensors")


@pytest.mark.parametrize("missing", ["version", "format", "checkpoint", "step", "tokenizers", "labels", "config"])
def test_a_description_that_is_not_whole_is_said_to_be_damaged(checkpoint, tmp_path, missing):
    file = exported(checkpoint, tmp_path / "out") / "headloom.json"
    described = json.loads(file.read_text())
    del described[missing]
    file.write_text(json.dumps(described))
    with pytest.raises(CheckpointError, match=rf"headloom\.json is damaged \(KeyError\('{missing}'\)\): export again"):
        read_description(file.parent)


def test_an_export_of_which_a_byte_has_changed_is_said_to_be_damaged(checkpoint, tmp_path):
    output = exported(checkpoint, tmp_path / "out")
    weights = output / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"out is damaged: model\.safetensors is not as it was exported"):
        read_description(output)


def test_an_export_warns_that_it_averages_no_segmentations(checkpoints, tmp_path, caplog):
    contents = load_checkpoint(checkpoints["classification"])
    contents["config"]["tokenizer"] = {"kind": "bpe", "dropout": 0.1}
    contents["config"]["task"]["num_segmentations"] = 4
    save_checkpoint(tmp_path / "averaged.pt", contents)
    exported(tmp_path / "averaged.pt", tmp_path / "out")
    assert "takes the mean over 4" in caplog.text
    caplog.clear()
    exported(checkpoints["classification"], tmp_path / "plain")
    assert "takes the mean" not in caplog.text
