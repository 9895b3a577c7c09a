"""Translations that are there already, and systems beside each other."""

import gzip
import json
import logging
import math
import os
import subprocess
import sys
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest

from headloom import commands, run
from headloom.config.schema_decoding import BeamConfig, GreedyConfig
from headloom.config.schema_training import Device, Precision
from headloom.config.schema_use import EvaluateConfig
from headloom.errors import CheckpointError, ConfigError, DataError
from headloom.work import systems, translation_scores
from headloom.work.systems import evaluate_systems, system_names

OURS = ["the cat sat on", "a dog ran home", "", "birds fly", "two men walk by the long river today"]
THEIRS = ["the cat", "a dog went home", "x", "birds fly", "men walk by a river"]
REFERENCE = ["the cat sat on it", "a dog ran home", "", "birds fly south", "two men walk along the long river today"]


@pytest.fixture
def texts(tmp_path) -> dict[str, Path]:
    found = {"ours": OURS, "theirs": THEIRS, "reference": REFERENCE, "source": REFERENCE, "short": OURS[:4]}
    for name, lines in found.items():
        (tmp_path / f"{name}.txt").write_bytes("".join(line + "\n" for line in lines).encode())
    return {name: tmp_path / f"{name}.txt" for name in found}


def config(texts: dict[str, Path], **options) -> EvaluateConfig:
    return EvaluateConfig(hypothesis=texts["ours"], reference=texts["reference"], decoding=BeamConfig(), **options)


def sacrebleu(*arguments: object, seed: int = 12345) -> str:
    """What the command prints."""
    line = [sys.executable, "-m", "sacrebleu", *map(str, arguments), "-m", "bleu", "chrf", "ter", "-w", "4"]
    environment = os.environ | {"SACREBLEU_SEED": str(seed), "PYTHONUTF8": "1"}
    return subprocess.run(line, capture_output=True, encoding="utf-8", check=True, env=environment).stdout


def test_what_does_not_translate_is_refused_beside_translations_before_anything_is_scored(texts, tmp_path, capsys):
    other = tmp_path / "other.pt"
    other.write_bytes(b"PK\x03\x04")
    tasks = {"task_of": lambda path: "language_modeling", "score_checkpoint": pytest.fail}
    with pytest.raises(ConfigError, match=rf"{other} is a checkpoint of task=language_modeling and writes no transla"):
        evaluate_systems(config(texts, compare=[other]), tmp_path / "out", **tasks)
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "out").exists()


def test_files_get_the_numbers_of_the_sacrebleu_command_and_load_no_torch(texts, tmp_path):
    """B82: to the last digit that is printed, with its signatures."""
    code = "import sys; from headloom import commands; sys.exit(commands.evaluate() or ('torch' in sys.modules))"
    options = [f"{name}={texts[other]}" for name, other in [("hypothesis", "ours"), ("reference", "reference")]]
    done = subprocess.run([sys.executable, "-c", code, *options], capture_output=True, text=True, check=True)
    printed = {line.split()[0]: line.split()[1:] for line in done.stdout.split("\n") if line}
    command = json.loads(sacrebleu(texts["reference"], "-i", texts["ours"]))
    for name, theirs in zip(("bleu", "chrf", "ter"), command, strict=True):
        assert printed[name] == [f"{theirs['score']:.4f}", theirs["signature"]]
    assert printed["exact_match"] == ["40.0000"]


def test_the_bootstrap_is_that_of_the_sacrebleu_command(texts, tmp_path, capsys):
    found = evaluate_systems(config(texts, compare=[texts["theirs"]], resamples=200, seed=7), tmp_path / "out")
    files = texts["ours"], texts["theirs"]
    table = sacrebleu(
        *(texts["reference"], "-i", *files, "--paired-bs", "--paired-bs-n", 200, "-f", "text", "--no-color"), seed=7
    )
    for name in ("bleu", "chrf", "ter"):
        ours, theirs = (found["paired_bootstrap"][name][system] for system in ("ours", "theirs"))
        for system in (ours, theirs):
            assert f"{system['value']:.4f} ({system['mean']:.4f} ± {system['interval']:.4f})" in table
        assert ours["p_value"] is None
        assert f"(p = {theirs['p_value']:.4f})" in table
        assert found["paired_bootstrap"]["signatures"][name] in table
    assert "p 0." in capsys.readouterr().out
    assert "SACREBLEU_SEED" not in os.environ
    assert json.loads((tmp_path / "out" / "comparison.json").read_bytes()) == found


def test_a_system_that_scores_as_the_first_does_not_differ_from_it(texts, tmp_path):
    """Nor one that differs in what a score does not see, as TER capitals."""
    same, capitals = tmp_path / "same.txt", tmp_path / "capitals.txt"
    same.write_bytes(texts["ours"].read_bytes())
    capitals.write_bytes(texts["ours"].read_bytes().upper())
    found = evaluate_systems(config(texts, compare=[same, capitals], resamples=50), None)["paired_bootstrap"]
    assert [found[name]["same"]["p_value"] for name in ("bleu", "chrf", "ter")] == [1, 1, 1]
    assert found["ter"]["capitals"]["p_value"] == 1
    assert found["bleu"]["capitals"]["p_value"] < 1


def test_of_tokenized_text_one_line_is_said_and_of_the_steps_of_a_test_none(texts, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    for name in ("ours", "theirs"):
        texts[name].write_bytes(b"the cat sat on it .\n" * 200)
    texts["reference"].write_bytes(b"the cat sat on me.\n" * 200)
    options = ["hypothesis", "ours"], ["reference", "reference"]
    command = ["evaluate.py", *(f"{option}={texts[name]}" for option, name in options), f"compare=[{texts['theirs']}]"]
    monkeypatch.setattr(sys, "argv", [*command, "resamples=2"])
    assert commands.evaluate() == 0
    assert [message.split(" are ")[0] for message in caplog.messages] == [
        f"the translations of {texts[name]}" for name in ("ours", "theirs")
    ]
    caplog.clear()
    texts["reference"].write_bytes(texts["ours"].read_bytes())
    assert commands.evaluate() == 0
    [message] = caplog.messages
    assert message.startswith("the references are tokenized")


def test_all_is_said_by_source_length_too(texts, tmp_path, capsys):
    results = evaluate_systems(config(texts, source=texts["source"], lengths=[2, 4]), tmp_path / "out")
    rows = results["by_source_length"]
    assert [(row["shortest"], row["longest"], row["num_pairs"]) for row in rows] == [(0, 2, 1), (3, 4, 2), (5, None, 2)]
    assert [row["exact_match"] for row in rows] == [100, 50, 0]
    assert rows[2]["ter"] == pytest.approx(translation_scores.metrics.ter(OURS[::4], REFERENCE[::4]).value)
    assert (tmp_path / "out" / "by_source_length.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "out" / "evaluation.json").read_bytes()) == results
    shown = capsys.readouterr().out
    assert "source words" in shown
    assert "5+" in shown


def test_a_compressed_file_has_the_scores_of_what_is_in_it(texts, tmp_path):
    plain = evaluate_systems(config(texts), None)
    for name in ("ours", "reference"):
        packed = tmp_path / f"{name}.gz"
        packed.write_bytes(gzip.compress(texts[name].read_bytes()))
        texts[name] = packed
    assert evaluate_systems(config(texts), None) == {**plain, "hypothesis": str(texts["ours"])}
    texts["reference"].write_bytes(texts["reference"].read_bytes()[:-9])
    with pytest.raises(DataError, match=r"reference\.gz is damaged and cannot be unpacked"):
        evaluate_systems(config(texts), None)


def test_files_may_be_pipes(texts, tmp_path):
    """As a shell's <(zcat ours.gz) is: read once, from the first byte on."""
    plain = evaluate_systems(config(texts), None)
    for name in ("ours", "reference"):
        pipe = tmp_path / f"{name}.pipe"
        os.mkfifo(pipe)
        Thread(target=pipe.write_bytes, args=[texts[name].read_bytes()], daemon=True).start()
        texts[name] = pipe
    assert evaluate_systems(config(texts), None) == {**plain, "hypothesis": str(texts["ours"])}


def test_texts_that_end_in_a_carriage_return_are_those_that_a_checkpoint_was_scored_on(texts, tmp_path):
    """B01: a file whose line ends were converted twice."""
    for name in ("source", "reference"):
        texts[name].write_bytes(texts[name].read_bytes().replace(b"\n", b"\r\r\n"))
    references = translation_scores.lines_of(texts["reference"])
    assert references[0].endswith("\r")
    checkpoint = tmp_path / "best.pt"
    checkpoint.write_bytes(b"PK\x03\x04")

    def score(path: Path, folder: Path) -> dict[str, object]:
        written = translation_scores.Texts(OURS, references, references)
        translation_scores.write_evaluation(folder, {"signatures": {}, "by_source_length": []}, written)
        return {}

    both = config(texts, source=texts["source"], compare=[checkpoint], resamples=2)
    assert list(evaluate_systems(both, tmp_path / "out", score)["systems"]) == ["ours", "best"]


@pytest.mark.parametrize("options", [{"hypothesis": "short"}, {"compare": "short"}, {"source": "short"}])
def test_files_of_unequal_length_are_refused_by_name(texts, tmp_path, options):
    """B06: with both counts and both paths, before anything is scored."""
    given = {name: [texts[value]] if name == "compare" else texts[value] for name, value in options.items()}
    some = config(texts)
    for name, value in given.items():
        setattr(some, name, value)
    with pytest.raises(DataError, match=r"short\.txt has 4 lines and .*reference\.txt 5"):
        evaluate_systems(some, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hypothesis": Path("a")}, "hypothesis needs reference beside it"),
        ({"source": Path("a"), "checkpoint": Path("b")}, "source has no effect"),
        ({"hypothesis": Path("a"), "reference": Path("b"), "checkpoint": Path("c")}, "to compare the two"),
        ({"hypothesis": Path("a"), "reference": Path("b"), "comet": "m"}, "set source"),
        ({"checkpoint": Path("a"), "compare": [Path("b"), Path("a")]}, "compare holds a, which is there twice"),
        ({"checkpoint": Path("a"), "compare": [Path("b")], "seed": 0}, "seed=0 is too small"),
        ({"checkpoint": Path("a"), "compare": [Path("b")], "resamples": 0}, "resamples=0 is too small"),
        ({"checkpoint": Path("a"), "seed": 3}, "seed=3 has no effect with nothing in compare"),
        ({"checkpoint": Path("a"), "lengths": [5, 5]}, r"lengths=\[5, 5\] must be"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(options, message):
    with pytest.raises(ConfigError, match=message):
        EvaluateConfig(decoding=BeamConfig(), **options)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"decoding": GreedyConfig()}, "decoding=greedy"),
        ({"decoding": BeamConfig(beam_size=3)}, "decoding.beam_size=3"),
        ({"device": Device.cpu}, "device=cpu"),
        ({"precision": Precision.float32}, "precision=float32"),
    ],
)
def test_options_of_a_model_are_refused_where_none_is(texts, options, option):
    given = {"hypothesis": texts["ours"], "reference": texts["reference"], "decoding": BeamConfig(), **options}
    with pytest.raises(ConfigError, match=f"{option} has no effect with files of translations"):
        evaluate_systems(EvaluateConfig(**given), None)


@pytest.mark.parametrize("option", ["decoding", "decoding.beam_size", "device", "data.folder", "baseline"])
def test_an_option_of_a_model_is_refused_where_none_is_also_if_it_says_what_holds_anyway(texts, option):
    with pytest.raises(ConfigError, match=f"^{option} has no effect with files of translations"):
        evaluate_systems(config(texts), None, given={"hypothesis", "reference", option})


def test_options_of_translations_and_of_their_sources_are_refused_where_there_are_none(texts, tmp_path):
    with pytest.raises(ConfigError, match=r"^lengths has no effect with no source"):
        evaluate_systems(config(texts, lengths=[3]), None, given={"hypothesis", "reference", "lengths"})
    evaluate_systems(config(texts, lengths=[]), None, given={"hypothesis", "reference", "lengths"})
    paths = [tmp_path / f"{name}.pt" for name in ("best", "last")]
    for path in paths:
        path.write_bytes(b"PK\x03\x04")
    for options in ({"resamples": 5}, {"seed": 3}):
        both = EvaluateConfig(checkpoint=paths[0], compare=paths[1:], decoding=BeamConfig(), **options)
        with pytest.raises(ConfigError, match="has no effect with checkpoints that write no translations"):
            evaluate_systems(both, tmp_path, pytest.fail, task_of=lambda path: "classification")


def test_a_text_is_no_checkpoint_and_a_checkpoint_no_text(texts, tmp_path):
    with pytest.raises(CheckpointError, match=r"ours\.txt"):
        run.evaluate(EvaluateConfig(checkpoint=texts["ours"], decoding=BeamConfig()))
    texts["ours"] = tmp_path / "best.pt"
    texts["ours"].write_bytes(b"PK\x03\x04\x80")
    with pytest.raises(ConfigError, match=r"best\.pt is a checkpoint: name it in checkpoint"):
        evaluate_systems(config(texts), None)


def test_a_run_folder_that_cannot_be_written_to_is_named_before_its_checkpoint_is_loaded(tmp_path):
    (tmp_path / "evaluation").write_text("a file in its place")
    with pytest.raises(ConfigError, match=r"^output=.*test cannot be written: .*evaluation is a file; choose another"):
        run.evaluate(EvaluateConfig(checkpoint=tmp_path / "best.pt", decoding=BeamConfig()))


def test_systems_are_named_by_what_tells_them_apart():
    assert system_names([Path("/r/checkpoints/best.pt"), Path("/r/checkpoints/last.pt")]) == ["best", "last"]
    assert system_names([Path("/r/a/checkpoints/best.pt"), Path("/r/b/checkpoints/best.pt")]) == ["a-best", "b-best"]
    runs = [Path("/r/a/checkpoints/best.pt"), Path("/r/theirs.txt"), Path("/r/b/checkpoints/best.pt")]
    assert system_names(runs) == ["a-best", "theirs", "b-best"]
    assert system_names([Path("/r/a.txt"), Path("/r/a.pt")]) == ["r-a-1", "r-a-2"]


def test_comet_without_its_package_is_refused_before_anything_is_scored(texts, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "comet", None)
    monkeypatch.setattr(systems.require_comet.__globals__["importlib"].util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"install headloom\[comet\]"):
        evaluate_systems(config(texts, source=texts["source"], comet="Unbabel/wmt22-comet-da"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_comet_adds_its_score_to_all_and_to_each_length(texts, monkeypatch):
    """With a stand-in for the package, which is an extra: how it is called, and what becomes of its scores."""

    class Model:
        def predict(self, samples, **options):
            assert set(samples[0]) == {"src", "mt", "ref"}
            return SimpleNamespace(scores=[len(sample["mt"]) / 100 for sample in samples])

    package = SimpleNamespace(download_model=lambda name: name, load_from_checkpoint=lambda path: Model(), __spec__=1)
    monkeypatch.setitem(sys.modules, "comet", package)
    monkeypatch.setattr(translation_scores.importlib.metadata, "version", lambda name: "2")
    some = config(texts, source=texts["source"], comet="stand-in", lengths=[4])
    results = evaluate_systems(some, None)
    assert results["comet"] == pytest.approx(sum(map(len, OURS)) / 500)
    assert results["signatures"]["comet"] == "model:stand-in|version:2"
    total = math.fsum(row["comet"] * row["num_pairs"] for row in results["by_source_length"])
    assert total == pytest.approx(5 * results["comet"])
