"""Exports for transformers of Hugging Face: the command, its folder, and what its user does with it."""

import copy
import json
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from every_combination import shaken
from random_exports import TOKENIZER, changed, of, random_model

from headloom import build, run
from headloom.build_model import build_model
from headloom.config import schema_parts
from headloom.config.module_command import parse
from headloom.config.schema_data import ParallelConfig
from headloom.config.schema_export import ExportConfig
from headloom.config.schema_model import Tying
from headloom.config.schema_text import CharConfig
from headloom.data.tokenizer import load_tokenizer
from headloom.errors import CheckpointError, ConfigError
from headloom.export.command import export, write_checked
from headloom.export.huggingface.format import HuggingFace
from headloom.export.own import OwnTranslation, own_runtime
from headloom.export.sample import sample_of
from headloom.work.base import Trained
from headloom.work.families import load_trained

transformers = pytest.importorskip("transformers")

DOCUMENT = Path(__file__).parents[2] / "docs" / "export.md"
TASKS = ["translation", "language_modeling", "masked_language_modeling", "embedding"]


def exported(checkpoint: Path, output: Path, *options: str) -> Path:
    arguments = [f"checkpoint={checkpoint}", f"output={output}", "format=huggingface", *options]
    export(parse(ExportConfig, arguments, base=output.parent))
    return output


@pytest.fixture(scope="session")
def folder(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(checkpoint, tmp_path_factory.mktemp("exports") / "copy")


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_exported_without_a_network(checkpoints, tmp_path, monkeypatch, caplog, task):
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    with caplog.at_level("INFO"):
        output = exported(checkpoints[task], tmp_path / "out")
    assert "line" in caplog.text  # what was compared
    names = {path.name for path in output.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "headloom.json"} <= names
    assert ("generation_config.json" in names) == (task in ("translation", "language_modeling"))


class Wrong(HuggingFace):
    """Writes another model than it is given."""

    def write(self, trained: Trained, folder: Path) -> None:
        super().write(replace(trained, model=shaken(copy.deepcopy(trained.model))), folder)


@pytest.mark.parametrize("task", TASKS)
def test_what_does_not_answer_alike_is_refused_and_not_left(checkpoints, tmp_path, task):
    trained = load_trained(checkpoints[task], device="cpu", precision="float32")
    with pytest.raises(CheckpointError, match="the export is refused: line"):
        write_checked(Wrong(), trained, sample_of(trained, None), checkpoints[task], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


class Retokenized(HuggingFace):
    """Has two ids of its tokenizer change places."""

    def write(self, trained: Trained, folder: Path) -> None:
        super().write(trained, folder)
        path = folder / "tokenizer.json"
        content = json.loads(path.read_text())
        ids = content["model"]["vocab"]
        ids["a"], ids["b"] = ids["b"], ids["a"]
        path.write_text(json.dumps(content))


def test_a_tokenizer_with_other_ids_is_refused(checkpoint, tmp_path):
    trained = load_trained(checkpoint, device="cpu", precision="float32")
    with pytest.raises(CheckpointError, match=r"its tokenizer gives line \d+ of those with a token in .* other ids: '"):
        write_checked(Retokenized(), trained, sample_of(trained, None), checkpoint, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_command_names_the_option_that_stands_in_the_way(checkpoints, tmp_path):
    with pytest.raises(ConfigError, match=r"format=huggingface cannot express model\.pooling=mean in Megatron.*, with"):
        exported(checkpoints["classification"], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_what_it_compared_and_nothing_else(checkpoint, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "headloom.export", f"checkpoint={checkpoint}", "format=huggingface", "output=out"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stderr.rstrip("\n").split("\n")
    assert [line for line in lines if not re.search("greedy: |beam 4: |for huggingface$", line)] == []
    assert len(lines) == 3


def test_the_example_of_the_documents_translates_as_translate_py_does(checkpoint, folder, tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), flags=re.DOTALL)
    [code] = [block for block in blocks if "import AutoModelForSeq2SeqLM" in block]
    sentences = ["a b c", "d a", "e d c b a"]
    monkeypatch.chdir(folder.parent)
    code = code.replace('"FOLDER"', repr(folder.name)).replace('["A man sleeps.", "Two dogs run."]', repr(sentences))
    written: dict[str, Any] = {}
    exec(code, written)
    trained = load_trained(checkpoint, device="cpu", precision="float32")
    own = own_runtime(trained)
    assert isinstance(own, OwnTranslation)
    found = own.search(own.tokenizer.encode(sentences), beam_size=4, max_length=64)
    assert written["texts"] == [own.tokenizer.decode(ids) for ids in found]


def test_two_vocabularies_have_two_tokenizers(make_config, tmp_path):
    sides = {"source": "one two\n", "target": "eins zwei drei vier\n"}
    for name, line in sides.items():
        (tmp_path / name).write_text(line * 20)
    paths = {f"{split}{name}": tmp_path / name for split in ("", "valid_") for name in sides}
    config = make_config(
        tmp_path / "data",
        data=ParallelConfig(folder=tmp_path / "data", **paths),
        tokenizer=CharConfig(joint=False),
        model={"tying": Tying.decoder},
        trainer={"max_steps": 2, "evaluate_every": None, "save_every": None},
    )
    run.train(config, tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoints" / "last.pt"
    output = exported(checkpoint, tmp_path / "out")
    read, written = (
        transformers.AutoTokenizer.from_pretrained(output, **options) for options in ({}, {"subfolder": "target"})
    )
    contents = load_trained(checkpoint, device="cpu", precision="float32").contents
    source, target = build.saved_tokenizers(contents["tokenizers"])
    assert len(source.encode(["one two"])[0]) == len("_one two")
    assert read("one two")["input_ids"] == [*source.encode(["one two"])[0], source.eos_id]
    assert written("drei")["input_ids"] == [*target.encode(["drei"])[0], target.eos_id]
    assert written.decode(target.encode(["eins zwei"])[0]) == "eins zwei"


@pytest.mark.parametrize("norm", [schema_parts.PreNormConfig, schema_parts.PostNormConfig])
def test_what_a_class_saves_again_is_still_the_model(norm, tmp_path):
    """Marian makes its table of positions anew, and Blenderbot keeps its own."""
    trained = random_model(of(norm=norm())(changed("seq2seq", "position=sinusoidal")))
    HuggingFace().write(trained, tmp_path / "one")
    again = HuggingFace().opened(trained, tmp_path / "one")
    again.model.save_pretrained(tmp_path / "two")
    rows = [[9, 8, 7], [5, 6]]
    other = HuggingFace().opened(trained, tmp_path / "two")
    assert other.search(rows, beam_size=1, max_length=9) == own_runtime(trained).search(rows, beam_size=1, max_length=9)


@pytest.mark.parametrize("norm", [schema_parts.PreNormConfig, schema_parts.PostNormConfig])
def test_specials_of_a_source_may_have_other_ids(norm, tmp_path):
    """SentencePiece's own default: eos is 2 and there is no pad, so that it becomes the last."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c d e"] * 9), model_prefix=str(tmp_path / "own"), vocab_size=10, minloglevel=2
    )
    source = load_tokenizer(tmp_path / "own.model")
    assert (source.eos_id, source.pad_id) == (2, source.vocab_size - 1)
    config = of(norm=norm(), model={"tying": Tying.decoder})(changed("seq2seq", "position=sinusoidal"))
    plain = random_model(config)
    model = build_model(config, source_vocab_size=source.vocab_size, target_vocab_size=TOKENIZER.vocab_size)
    contents = {"tokenizers": {"source": source.state(), "target": TOKENIZER.state()}}
    trained = replace(plain, model=shaken(model), contents=contents)
    HuggingFace().write(trained, tmp_path / "out")
    rows = source.encode(["a b", "c", "e d c b a"])
    found = HuggingFace().opened(trained, tmp_path / "out").search(rows, beam_size=1, max_length=9)
    assert found == own_runtime(trained).search(rows, beam_size=1, max_length=9)
