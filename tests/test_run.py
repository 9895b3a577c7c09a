"""Train, evaluate and translate through all floors, as the commands call them."""

import json
import logging
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import sacrebleu
import torch

from headloom import run
from headloom.config import saved
from headloom.config.schema import TrainConfig
from headloom.config.schema_data import TsvConfig
from headloom.config.schema_decoding import BeamConfig, GreedyConfig
from headloom.config.schema_position import LearnedConfig
from headloom.config.schema_text import BpeConfig, ByteConfig, Headline, TranslationConfig
from headloom.config.schema_training import Device, Precision
from headloom.config.schema_use import EvaluateConfig, EvaluateDataConfig, Split, TranslateConfig
from headloom.errors import CheckpointError, ConfigError, DataError, TrainingDiverged
from headloom.nn import packed
from headloom.nn.packed import can_be_packed
from headloom.training.checkpoint import load_checkpoint, save_checkpoint
from headloom.work.families import load_trained
from headloom.work.results_file import write_results

ROOT = Path(__file__).parent.parent
FLOAT32 = {"device": Device.cpu, "precision": Precision.float32}
BEAM = BeamConfig(beam_size=3, max_length=20)


def records(run_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_bytes().split(b"\n")[:-1]]


def best(run_dir: Path) -> Path:
    return run_dir / "checkpoints" / "best.pt"


def lines_of(path: Path) -> list[str]:
    """Lines as `wc -l` counts them."""
    return path.read_bytes().decode().split("\n")[:-1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def trained(make_config, folder) -> Path:
    """A run of a few steps over made-up words, with a beam search in its validations."""
    config = make_config(
        folder / "data",
        model={"dropout": 0.1},
        data={"num_valid": 12},
        decoding=BEAM,
        trainer={"average_decay": 0.5, "precision": Precision.float32, "max_steps": 8},
    )
    run.train(config, folder / "trained")
    return folder / "trained"


def translate(checkpoint: Path, text: bytes, tmp_path: Path, **options) -> bytes:
    source, output = tmp_path / "input.txt", tmp_path / "output.txt"
    source.write_bytes(text)
    options = {"decoding": GreedyConfig(max_length=20), **FLOAT32, **options}
    run.translate(TranslateConfig(checkpoint=checkpoint, input=source, output=output, **options))
    return output.read_bytes()


def test_a_run_s_folder_holds_what_it_should(trained):
    names = {str(path.relative_to(trained)) for path in trained.rglob("*") if path.is_file()}
    assert {name for name in names if not name.startswith("tensorboard/")} == {
        "metrics.jsonl",
        "samples/step_4.txt",
        "samples/step_8.txt",
        "checkpoints/best.pt",
        "checkpoints/last.pt",
        "checkpoints/step_4.pt",
        "checkpoints/step_8.pt",
    }
    assert sum(name.startswith("tensorboard/") for name in names) == 1


def test_every_step_and_every_validation_is_recorded(trained):
    found = records(trained)
    assert [record["step"] for record in found if "train/loss" in record] == [1, 2, 3, 4, 5, 6, 7, 8]
    validations = [record for record in found if "valid/loss" in record]
    assert [record["step"] for record in validations] == [4, 8]
    for record in validations:
        names = {name for name in record if name.startswith("valid/")}
        assert names == {"valid/loss", "valid/perplexity", "valid/accuracy", "valid/bleu", "valid/chrf"}
    seconds = [record["elapsed_seconds"] for record in found]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize("split", ["valid", "test"])
def test_one_number_whichever_command_gives_it(trained, tmp_path, split):
    """B41, B82: validation, evaluate and sacreBLEU over translate's output agree, averaged weights and all."""
    checkpoint = best(trained)
    results = run.evaluate(
        EvaluateConfig(
            checkpoint=checkpoint,
            data=EvaluateDataConfig(split=Split[split]),
            decoding=BEAM,
            output=tmp_path / "scores",
            **FLOAT32,
        )
    )
    if split == "valid":
        (record,) = (r for r in records(trained) if r["step"] == results["step"] and "valid/loss" in r)
        for name in ("loss", "perplexity", "accuracy", "bleu", "chrf"):
            assert results[name] == pytest.approx(record[f"valid/{name}"], rel=1e-6)
    source, reference, hypotheses = (tmp_path / "scores" / f"{n}.txt" for n in ("source", "reference", "hypotheses"))
    assert translate(checkpoint, source.read_bytes(), tmp_path, decoding=BEAM) == hypotheses.read_bytes()
    texts = lines_of(hypotheses), [lines_of(reference)]
    assert results["bleu"] == pytest.approx(sacrebleu.corpus_bleu(*texts).score)
    assert results["chrf"] == pytest.approx(sacrebleu.corpus_chrf(*texts).score)
    if split == "valid":
        command = [sys.executable, "-m", "sacrebleu", str(reference), "-i", str(tmp_path / "output.txt")]
        options = ["-m", "bleu", "chrf", "ter", "-w", "4"]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
        shown = [f"{score['score']:.4f}" for score in json.loads(done.stdout)]
        assert shown == [f"{results[name]:.4f}" for name in ("bleu", "chrf", "ter")]
        assert shown[:2] == [f"{record[f'valid/{name}']:.4f}" for name in ("bleu", "chrf")]
    written = json.loads((tmp_path / "scores" / "evaluation.json").read_bytes())
    assert written["num_pairs"] == len(texts[0]) == 12
    assert "version" in written["signatures"]["bleu"]


def test_two_files_are_scored_as_the_split_they_are_copied_from(trained, tmp_path):
    """B06 is refused, not cut to the shorter one."""
    options = {"checkpoint": best(trained), "decoding": GreedyConfig(max_length=20), **FLOAT32}
    split = run.evaluate(EvaluateConfig(output=tmp_path / "split", **options))
    source, target = tmp_path / "split" / "source.txt", tmp_path / "split" / "reference.txt"
    data = EvaluateDataConfig(source=source, target=target)
    files = run.evaluate(EvaluateConfig(data=data, output=tmp_path / "files", **options))
    assert {n: files[n] for n in ("loss", "bleu", "chrf")} == {n: split[n] for n in ("loss", "bleu", "chrf")}
    target.write_bytes(target.read_bytes().split(b"\n", 1)[1])
    with pytest.raises(DataError, match=r"12 .*11"):
        run.evaluate(EvaluateConfig(data=data, output=tmp_path / "unequal", **options))
    assert not (tmp_path / "unequal").exists()


def test_one_text_is_no_translation_to_score(trained, tmp_path):
    options = {"checkpoint": best(trained), "decoding": GreedyConfig(), "output": tmp_path / "out", **FLOAT32}
    with pytest.raises(ConfigError, match=r"score a translation with data\.source= and data\.target="):
        run.evaluate(EvaluateConfig(data=EvaluateDataConfig(path=tmp_path / "new.en"), **options))


def test_a_checkpoint_whose_data_folder_cannot_be_had_here_is_scored_with_another(trained, tmp_path):
    """Such as one from another machine, where the folder was somebody's home."""
    contents = load_checkpoint(best(trained))
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    contents["config"]["data"]["folder"] = str(tmp_path / "file" / "data")
    save_checkpoint(tmp_path / "best.pt", contents)
    options = {"checkpoint": tmp_path / "best.pt", "decoding": GreedyConfig(max_length=20), **FLOAT32}
    with pytest.raises(ConfigError, match=rf"data\.folder={tmp_path}/file/data cannot be written.*another place"):
        run.evaluate(EvaluateConfig(**options))
    results = run.evaluate(EvaluateConfig(data=EvaluateDataConfig(folder=tmp_path / "data"), **options))
    assert results["num_pairs"] > 0
    assert list((tmp_path / "data" / "prepared").iterdir())


def test_checkpoints_and_translations_are_compared_in_one_table(trained, tmp_path, capsys):
    """Best, last and a file; all by source length, the losses of which make up the loss."""
    text = tmp_path / "text.txt"
    text.write_text("a b\n" * 12, encoding="utf-8")
    checkpoints = trained / "checkpoints"
    found = run.evaluate(
        EvaluateConfig(
            checkpoint=checkpoints / "best.pt",
            compare=[checkpoints / "step_4.pt", text],
            decoding=GreedyConfig(max_length=20),
            resamples=20,
            lengths=[2, 4],
            **FLOAT32,
        )
    )
    assert list(found["systems"]) == ["best", "step_4", "text"]
    assert [p["p_value"] is None for p in found["paired_bootstrap"]["bleu"].values()] == [True, False, False]
    for name, results in found["systems"].items():
        assert results["bleu"] == pytest.approx(found["paired_bootstrap"]["bleu"][name]["value"])
        assert sum(row["num_pairs"] for row in results["by_source_length"]) == 12
    rows = found["systems"]["best"]["by_source_length"]
    assert min(row["loss"] for row in rows) <= found["systems"]["best"]["loss"] <= max(row["loss"] for row in rows)
    folder = trained / "comparison" / "test"
    assert (folder / "by_source_length.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "step_4" / "evaluation.json").exists()
    assert "step_4" in capsys.readouterr().out
    with text.open("a", encoding="utf-8") as stream:
        stream.write("one more\n")
    with pytest.raises(DataError, match=r"text\.txt has 13 lines and what .*best\.pt translates 12"):
        run.evaluate(
            EvaluateConfig(
                checkpoint=checkpoints / "best.pt", compare=[text], decoding=GreedyConfig(max_length=20), **FLOAT32
            )
        )


def test_checkpoints_of_other_test_sets_are_refused_before_one_is_scored(trained, tmp_path, capsys):
    contents = load_checkpoint(best(trained))
    contents["config"]["data"]["num_symbols"] = 4
    save_checkpoint(tmp_path / "other.pt", contents)
    output = tmp_path / "compared"
    options = {"compare": [tmp_path / "other.pt"], "decoding": BEAM, "output": output, **FLOAT32}
    with pytest.raises(
        DataError, match=rf"{tmp_path}/other\.pt is scored on other pairs than .*: set data\.source and"
    ):
        run.evaluate(EvaluateConfig(checkpoint=best(trained), **options))
    assert capsys.readouterr().out == ""
    assert not output.exists()
    (tmp_path / "text.txt").write_text("a b\n", encoding="utf-8")
    files = EvaluateDataConfig(source=tmp_path / "text.txt", target=tmp_path / "text.txt")
    run.evaluate(EvaluateConfig(checkpoint=best(trained), data=files, **options))
    assert (output / "comparison.json").exists()


def test_numbers_that_are_none_are_null_in_json(tmp_path):
    write_results(tmp_path / "a.json", {"loss": math.nan, "rows": [{"loss": math.inf, "bleu": 1.5}], "name": "x"})
    found = json.loads((tmp_path / "a.json").read_text(), parse_constant=pytest.fail)
    assert found == {"loss": None, "rows": [{"loss": None, "bleu": 1.5}], "name": "x"}


def test_scores_go_into_the_run_s_folder_and_to_stdout(trained, capsys):
    run.evaluate(EvaluateConfig(checkpoint=best(trained), decoding=GreedyConfig(max_length=20), **FLOAT32))
    assert (trained / "evaluation" / "test" / "evaluation.json").exists()
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("loss", "perplexity", "accuracy", "bleu", "chrf"))


def test_there_is_a_line_for_each_line(trained, tmp_path):
    """B01, B02, B04, B76: odd characters end no line, CRLF leaves no trace, blank lines stay blank, order stays."""
    odd = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei\rj"
    text = "\n".join(["a b", "", "   ", "\u3000\t", odd, "b", "日本 😀 é", "a b"]).encode()
    output = translate(best(trained), text, tmp_path)
    translations = output.decode().split("\n")
    assert translations.pop() == ""
    assert len(translations) == 8
    assert translations[1:4] == ["", "", ""]
    assert translations[0] == translations[7]
    assert translate(best(trained), text + b"\n", tmp_path) == output
    assert translate(best(trained), text.replace(b"\n", b"\r\n"), tmp_path) == output
    assert translate(best(trained), b"a b\n", tmp_path) == translations[0].encode() + b"\n"
    assert translate(best(trained), b"", tmp_path) == b""
    assert translate(best(trained), b"\n\n", tmp_path) == b"\n\n"


def test_the_same_translation_comes_every_time(trained, tmp_path):
    """B28: no dropout is left on."""
    text = b"a b c\nb\nc d\n"
    assert translate(best(trained), text, tmp_path) == translate(best(trained), text, tmp_path)


def test_a_file_that_cannot_be_read_leaves_the_output_as_it_was(trained, tmp_path):
    """B14, B77: the line is named."""
    (tmp_path / "output.txt").write_bytes(b"earlier\n")
    with pytest.raises(DataError, match=r"input\.txt.* line 2"):
        translate(best(trained), b"a\nb\xe9\nc\n", tmp_path)
    assert (tmp_path / "output.txt").read_bytes() == b"earlier\n"
    with pytest.raises(DataError, match=r"input=.*missing\.txt cannot be read"):
        run.translate(
            TranslateConfig(
                checkpoint=best(trained), input=tmp_path / "missing.txt", decoding=GreedyConfig(), **FLOAT32
            )
        )


def test_a_run_folder_translates_where_it_was_moved(make_config, tmp_path, monkeypatch):
    """B67, B83: without its data, its tokenizer or a target text, from another working directory."""
    config = make_config(tmp_path / "data", trainer={"max_steps": 1})
    run.train(config, tmp_path / "run")
    before = translate(best(tmp_path / "run"), b"a b\nc\n", tmp_path)
    for path in sorted((tmp_path / "data").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (tmp_path / "run").rename(tmp_path / "moved")
    monkeypatch.chdir("/")
    assert translate(best(tmp_path / "moved"), b"a b\nc\n", tmp_path) == before


def test_averaged_weights_are_the_ones_that_are_used(trained):
    contents = load_checkpoint(best(trained))
    model = run.load_trained(best(trained), **{name: value.name for name, value in FLOAT32.items()}).model
    averages = contents["average"]["weights"]
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, averages[name])
        assert not torch.equal(parameter, contents["model"][name])
    assert model.output_weight is model.encoder.embedding.table.weight  # B61
    assert not model.training


def test_loading_a_checkpoint_draws_no_number(trained):
    state = torch.get_rng_state()
    run.load_trained(best(trained), device="cpu", precision="float32")
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("command", ["train", "evaluate", "translate"])
def test_a_checkpoint_that_would_run_code_is_refused_by_every_command(make_config, tmp_path, command):
    """B111."""

    class Payload:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/pwned.txt",)

    checkpoint = tmp_path / "stranger.pt"
    torch.save({"magic": "headloom", "format": 1, "config": {}, "model": Payload()}, checkpoint)
    commands = {
        "train": lambda: run.train(replace(make_config(tmp_path / "data"), resume=str(checkpoint)), tmp_path / "run"),
        "evaluate": lambda: run.evaluate(EvaluateConfig(checkpoint=checkpoint, decoding=GreedyConfig(), **FLOAT32)),
        "translate": lambda: translate(checkpoint, b"a\n", tmp_path),
    }
    with pytest.raises(CheckpointError, match="could run code when opened: it was not opened"):
        commands[command]()
    assert not (tmp_path / "pwned.txt").exists()
    assert not (tmp_path / "run").exists()


def test_float16_without_a_gpu_is_refused_before_anything_is_written(make_config, tmp_path):
    """B50."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    config = make_config(tmp_path / "data", trainer={"device": Device.auto, "precision": Precision.float16})
    with pytest.raises(ConfigError, match="precision=float16 needs a GPU"):
        run.train(config, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_bfloat16_trains_and_translates_with_float32_weights(make_config, tmp_path):
    """B50."""
    config = make_config(tmp_path / "data", model={"dropout": 0.1}, trainer={"precision": Precision.bfloat16})
    run.train(config, tmp_path / "run")
    losses = [record["train/loss"] for record in records(tmp_path / "run") if "train/loss" in record]
    assert losses[-1] < losses[0]
    assert {w.dtype for w in load_checkpoint(best(tmp_path / "run"))["model"].values()} == {torch.float32}
    assert len(translate(best(tmp_path / "run"), b"a\nb c\n", tmp_path, precision=Precision.bfloat16).split(b"\n")) == 3


@pytest.mark.skipif(not can_be_packed(torch.float16), reason="FBGEMM is not here")
def test_in_float16_on_a_cpu_translating_and_scoring_use_the_rounded_weights(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(packed, "SMALLEST_PACKED", 1)
    exact, rounded = (
        load_trained(best(trained), device="cpu", precision=name).model.state_dict() for name in ("float32", "float16")
    )
    name = "decoder.blocks.0.feed_forward.up.weight"
    assert torch.equal(rounded[name], exact[name].half().float())
    assert not torch.equal(rounded[name], exact[name])

    source, text = tmp_path / "source.txt", b"a\nb c\nc b a\n"
    source.write_bytes(text)
    data = EvaluateDataConfig(source=source, target=source)
    options = {"decoding": BEAM, "device": Device.cpu, "precision": Precision.float16}
    run.evaluate(EvaluateConfig(checkpoint=best(trained), data=data, output=tmp_path / "scores", **options))
    translated = translate(best(trained), text, tmp_path, **options)
    assert (tmp_path / "scores" / "hypotheses.txt").read_bytes() == translated


@pytest.mark.skipif(not can_be_packed(torch.float16), reason="FBGEMM is not here")
def test_a_weight_beyond_float16_is_one_line(trained, tmp_path):
    contents = torch.load(best(trained), weights_only=True)
    for weights in (contents["model"], contents["average"]["weights"]):
        weights["decoder.blocks.0.feed_forward.up.weight"].fill_(1e5)
    torch.save(contents, tmp_path / "large.pt")
    with pytest.raises(CheckpointError, match=r"large.pt: decoder.*up.weight holds 1e\+05.*use precision=float32"):
        load_trained(tmp_path / "large.pt", device="cpu", precision="float16")


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_weights_that_are_not_finite_are_used_by_no_command(trained, tmp_path, precision):
    if precision == "float16" and not can_be_packed(torch.float16):
        pytest.skip("FBGEMM is not here")
    contents = torch.load(best(trained), weights_only=True)
    name = "decoder.blocks.0.feed_forward.up.weight"
    contents["average"]["weights"][name].view(-1)[0] = torch.nan
    torch.save(contents, tmp_path / "broken.pt")
    with pytest.raises(CheckpointError, match=rf"broken\.pt: {name} holds numbers that are not finite"):
        load_trained(tmp_path / "broken.pt", device="cpu", precision=precision)


def write_tsv(path: Path, pairs: list[tuple[str, str]]) -> Path:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8", newline="\n")
    return path


def test_two_pairs_and_one_to_validate_on_are_enough_to_train(make_config, tmp_path, caplog):
    """B07, B19: fewer pairs than a batch holds, fewer batches than an update takes, a vocabulary asked too large."""
    data = TsvConfig(
        path=write_tsv(tmp_path / "train.tsv", [("ein Haus", "a house"), ("ein Baum", "a tree")]),
        valid_path=write_tsv(tmp_path / "valid.tsv", [("ein Haus", "a house")]),
        folder=tmp_path / "data",
        max_length=64,
    )
    config = make_config(
        data=data, tokenizer=BpeConfig(vocab_size=8000), trainer={"max_steps": 3, "accumulation": 4, "max_tokens": 4096}
    )
    with caplog.at_level(logging.WARNING):
        run.train(config, tmp_path / "run")
    found = records(tmp_path / "run")
    assert [record["step"] for record in found if "train/loss" in record] == [1, 2, 3]
    assert {record["train/epoch"] for record in found if "train/epoch" in record} == {4, 8, 12}
    assert any("8000" in message or "8,000" in message for message in caplog.messages)


def test_no_sentence_is_too_long(make_config, tmp_path, caplog):
    """B16: in training, in validation and in translation, with a table of positions as long as the data may be."""
    words = " ".join("ab" for _ in range(200))
    pairs = [("ab cd", "cd ab"), (words, "ab"), ("ab", words), ("a" * 13, "a" * 14), ("a" * 15, "b" * 15)] * 3
    data = TsvConfig(
        path=write_tsv(tmp_path / "train.tsv", pairs),
        valid_path=write_tsv(tmp_path / "valid.tsv", [*pairs[:4], ("b", "a")]),
        folder=tmp_path / "data",
        max_length=16,
    )
    config = make_config(
        data=data,
        tokenizer=ByteConfig(),
        position=LearnedConfig(max_length=16),
        decoding=GreedyConfig(max_length=16),
        trainer={"max_steps": 2, "evaluate_every": 1},
    )
    with caplog.at_level(logging.WARNING):
        run.train(config, tmp_path / "run")
    assert len(caplog.messages) >= 2  # one for each split
    text = "\n".join(["ab", words * 10, "a" * 15]).encode()
    assert translate(best(tmp_path / "run"), text, tmp_path, decoding=GreedyConfig()).count(b"\n") == 3


def test_a_loss_can_choose_the_best_without_translating(make_config, tmp_path):
    config = make_config(tmp_path / "data", task=TranslationConfig(headline=Headline.loss), trainer={"max_steps": 4})
    headline = run.train(config, tmp_path / "run")
    (record,) = (record for record in records(tmp_path / "run") if "valid/loss" in record)
    assert headline == record["valid/loss"]
    assert "valid/bleu" not in record


def test_a_rate_far_too_high_ends_the_run_with_the_step_and_the_remedy(make_config, tmp_path):
    config = make_config(tmp_path / "data", trainer={"max_steps": 50, "evaluate_every": None, "max_grad_norm": None})
    config = replace(config, optimizer=replace(config.optimizer, lr=1e30))
    with pytest.raises(TrainingDiverged, match=r"^step \d+: loss nan, .+ that of encoder\..+ Lower optimizer\.lr"):
        run.train(config, tmp_path / "run")


def test_a_terminated_run_is_continued_to_the_weights_of_one_that_was_not(make_config, tmp_path):
    """B54 across processes: SIGTERM leaves last.pt and status 143; B97: no carriage return in the log."""
    options = [
        *("data=copy", "data.num_train=60", "data.num_valid=4", "data.num_symbols=5", "data.max_symbols=6"),
        *("data.max_length=64", f"data.folder={tmp_path}/data", "tokenizer=char", "size=tiny", "decoding=greedy"),
        *("model.d_model=16", "model.d_ff=32", "model.num_encoder_layers=1", "model.num_decoder_layers=1"),
        *("trainer.max_steps=100", "trainer.max_tokens=160", "trainer.log_every=1", "trainer.evaluate_every=null"),
        *("trainer.save_every=null", "trainer.num_threads=1", "trainer.precision=float32", "schedule=cosine"),
        f"hydra.run.dir={tmp_path}/run",
    ]
    command = [sys.executable, str(ROOT / "train.py"), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        metrics = tmp_path / "run" / "metrics.jsonl"
        while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 2):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate()
    assert process.returncode == 143, err.decode()
    assert b"\r" not in out + err
    assert b"Go on with resume=auto" in out + err
    last = tmp_path / "run" / "checkpoints" / "last.pt"
    contents = load_checkpoint(last)
    assert 2 <= contents["step"] < 100
    config = saved.from_plain(contents["config"])
    assert isinstance(config, TrainConfig)
    resumed, straight = tmp_path / "run", tmp_path / "straight"
    run.train(replace(config, resume="auto"), resumed)
    run.train(config, straight)
    ends = [load_checkpoint(folder / "checkpoints" / "last.pt") for folder in (resumed, straight)]
    assert all(torch.equal(ends[0]["model"][name], value) for name, value in ends[1]["model"].items())
    assert torch.equal(ends[0]["random"]["torch"], ends[1]["random"]["torch"])
    curves = [[(r["step"], r["train/loss"]) for r in records(f) if "train/loss" in r] for f in (resumed, straight)]
    assert curves[0] == curves[1]
    assert [step for step, _ in curves[0]] == list(range(1, 101))


def test_a_sweep_gives_each_job_its_own_folder_and_the_same_run(tmp_path):
    """B88: two jobs with one seed are one curve, wherever they stand in the sweep."""
    options = [
        *("experiment=copy", "data.num_train=60", "data.num_valid=4", "data.max_symbols=6", "data.folder=data"),
        *("model.d_model=16", "model.d_ff=32", "trainer.max_steps=3", "trainer.log_every=1", "trainer.max_tokens=300"),
        *("trainer.num_threads=1", "model.num_encoder_layers=1", "model.num_decoder_layers=1", "hydra.sweep.dir=sweep"),
    ]
    command = [sys.executable, str(ROOT / "train.py"), "-m", *options, "seed=1,2,1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    curves = [[r["train/loss"] for r in records(tmp_path / "sweep" / n) if "train/loss" in r] for n in ("0", "1", "2")]
    assert len(curves[0]) == 3
    assert curves[0] == curves[2] != curves[1]
