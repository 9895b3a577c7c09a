"""Encoder tasks end to end: trained, resumed, scored and used as a filter through `headloom.run`."""

import json
import random
from dataclasses import replace

import pytest
import torch

from headloom import run
from headloom.build_labelled import build_classifier
from headloom.config.schema_decoding import BeamConfig
from headloom.config.schema_labelled import (
    ClassificationConfig,
    ClassifierConfig,
    ConllConfig,
    LabelledConfig,
    PoolingKind,
    RegressionConfig,
    TaggingConfig,
    TaggingHeadline,
)
from headloom.config.schema_text import BpeConfig, ByteConfig
from headloom.config.schema_training import Device, Precision
from headloom.config.schema_use import EvaluateConfig, EvaluateDataConfig, LineFormat, OnBadLine, Split, TranslateConfig
from headloom.data.tokenizer import ByteTokenizer
from headloom.errors import ConfigError, DataError
from headloom.nn.packing import packed_weights
from headloom.training.checkpoint import load_checkpoint
from headloom.work import families

TASKS = {"classification": ClassificationConfig, "regression": RegressionConfig, "tagging": TaggingConfig}
EXACT = {"device": Device.cpu, "precision": Precision.float32}
SIZE = {"d_model": 16, "num_heads": 2, "d_ff": 32, "num_layers": 1}


def write_corpus(folder, task, *, pairs=False):
    """Texts of which the first letter decides."""
    draw = random.Random(0)
    for split, size in (("train", 40), ("valid", 6), ("test", 9)):
        lines = []
        for _ in range(size):
            word = draw.choice("ab") + "".join(draw.choices("cde", k=draw.randint(1, 4)))
            text = f"{word}\t{word[::-1]}" if pairs else word
            match task:
                case "classification":
                    lines.append(f"{text}\t{word[0]}")
                case "regression":
                    lines.append(f"{text}\t{len(word) + (word[0] == 'a')}")
                case "tagging":
                    lines.append(f"{word}\t{'B-x' if word[0] == 'a' else 'O'}\nxyz\tO\n")
        (folder / f"{split}.tsv").write_text("".join(line + "\n" for line in lines))


@pytest.fixture
def corpus(tmp_path, make_config):
    """A corpus of the task below `tmp_path`, and a configuration that trains on it."""

    def build(task, *, pairs=False, **sections):
        write_corpus(tmp_path, task, pairs=pairs)
        data = (ConllConfig if task == "tagging" else LabelledConfig)(
            folder=tmp_path / "data",
            max_length=32,
            **{
                name: tmp_path / f"{split}.tsv"
                for name, split in (("path", "train"), ("valid_path", "valid"), ("test_path", "test"))
            },
            **({"second_text": "1"} if pairs else {}),
        )
        sections = {"model": ClassifierConfig(**SIZE, dropout=0.1), "task": TASKS[task](), **sections}
        trainer = EXACT | {"max_tokens": 80} | sections.pop("trainer", {})
        return make_config(tokenizer=ByteConfig(), data=data, trainer=trainer, **sections)

    return build


def best(run_dir):
    return run_dir / "checkpoints" / "best.pt"


def evaluate(run_dir, output, **data):
    return run.evaluate(
        EvaluateConfig(
            checkpoint=best(run_dir), data=EvaluateDataConfig(**data), decoding=BeamConfig(), output=output, **EXACT
        )
    )


def answers(run_dir, folder, text, **options):
    (folder / "in").write_text(text)
    files = {"input": folder / "in", "output": folder / "out"}
    run.translate(TranslateConfig(checkpoint=best(run_dir), **files, decoding=BeamConfig(), **EXACT, **options))
    return (folder / "out").read_bytes().decode().split("\n")[:-1]


@pytest.mark.parametrize(
    ("task", "pairs"), [("classification", False), ("classification", True), ("regression", True), ("tagging", False)]
)
def test_validation_evaluation_and_filter_agree(corpus, tmp_path, capsys, task, pairs):
    """B41, and one number everywhere; the filter's line is what evaluate.py wrote about that text."""
    headline = run.train(corpus(task, pairs=pairs), tmp_path / "run")
    results = evaluate(tmp_path / "run", tmp_path / "valid", split=Split.valid)
    name = {"classification": "accuracy", "regression": "pearson", "tagging": "f1"}[task]
    assert results[name] == headline
    assert json.loads((tmp_path / "valid" / "evaluation.json").read_bytes())["loss"] == results["loss"]
    assert f"{name:<12}{headline:>9.4f}" in capsys.readouterr().out
    if task == "tagging":
        written = (tmp_path / "valid" / "predictions.conll").read_text().split("\n\n")[:-1]
        sentences = [[line.split("\t") for line in block.split("\n")] for block in written]
        texts = [" ".join(word for word, _, _ in sentence) for sentence in sentences]
        expected = [" ".join(tag for _, _, tag in sentence) for sentence in sentences]
    else:
        written = [line.split("\t") for line in (tmp_path / "valid" / "predictions.tsv").read_text().split("\n")[1:-1]]
        count = 1 if task == "regression" else 2
        texts = ["\t".join(columns[1 + count :]) for columns in written]
        expected = ["\t".join(columns[1 : 1 + count]) for columns in written]
    assert answers(tmp_path / "run", tmp_path, "".join(text + "\n" for text in texts)) == expected
    assert (tmp_path / "valid" / "confusion.png").exists() == (task == "classification")


def test_tags_in_another_scheme_are_not_counted_as_entities(corpus, tmp_path, capsys):
    """An S- or a NOUN would be no entity, and the F1 of all others would look like one."""
    config = corpus("tagging", trainer={"max_steps": 2})
    for split in ("train", "valid", "test"):
        path = tmp_path / f"{split}.tsv"
        path.write_text(path.read_text().replace("B-x", "S-x"))
    with pytest.raises(
        ConfigError, match=r"task\.headline=f1 counts .* has the tag 'S-x': .* set task.headline=accuracy"
    ):
        run.train(config, tmp_path / "refused")
    run.train(replace(config, task=TaggingConfig(headline=TaggingHeadline.accuracy)), tmp_path / "run")
    results = evaluate(tmp_path / "run", tmp_path / "valid", split=Split.valid)
    assert 0 < results["accuracy"] < 1
    assert "f1" not in results
    assert "f1" not in capsys.readouterr().out


@pytest.mark.parametrize("pooling", PoolingKind)
def test_one_answer_a_text_is_computed_in_float32_also_where_weights_are_packed(corpus, pooling):
    """So that translate.py does not round the number that evaluate.py has."""
    config = corpus("regression", model=ClassifierConfig(**SIZE, pooling=pooling))
    model = build_classifier(config, ByteTokenizer(), {}).eval()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), packed_weights(model, torch.bfloat16):
        assert model(torch.tensor([[2, 5, 6, 3]]), None).dtype is torch.float32


@pytest.mark.parametrize(("task", "pairs"), [("classification", True), ("regression", False)])
def test_a_mean_over_segmentations_is_one_number_everywhere_too(corpus, tmp_path, task, pairs):
    tokenizer = BpeConfig(vocab_size=20, byte_fallback=False, dropout=0.5)
    config = replace(corpus(task, pairs=pairs), tokenizer=tokenizer, task=TASKS[task](num_segmentations=4))
    headline = run.train(config, tmp_path / "run")
    name = {"classification": "accuracy", "regression": "pearson"}[task]
    assert evaluate(tmp_path / "run", tmp_path / "valid", split=Split.valid)[name] == headline
    rows = [line.split("\t") for line in (tmp_path / "valid" / "predictions.tsv").read_text().split("\n")[1:-1]]
    count = 1 if task == "regression" else 2
    texts = ["\t".join(columns[1 + count :]) + "\n" for columns in rows]
    told = answers(tmp_path / "run", tmp_path, "".join(texts))
    assert told == ["\t".join(columns[1 : 1 + count]) for columns in rows]
    assert answers(tmp_path / "run", tmp_path, texts[-1]) == told[-1:]


@pytest.mark.parametrize("task", TASKS)
def test_every_line_gets_one_line(corpus, tmp_path, task):
    """B04: nothing, blanks, strange white space and far more text than was ever trained on."""
    run.train(corpus(task, trainer={"max_steps": 2}), tmp_path / "run")
    lines = ["ab cd", "", "   ", "\u3000\u2028", "e" * 10_000, " ab  cd ", "a\tb"]
    out = answers(tmp_path / "run", tmp_path, "".join(line + "\n" for line in lines))
    assert len(out) == len(lines)
    if task == "tagging":
        assert [len(line.split()) for line in out] == [2, 0, 0, 1, 1, 2, 2]
    else:
        assert all(out)
        assert not any("nan" in line for line in out)
    assert answers(tmp_path / "run", tmp_path, "ab cd\n") == out[:1]
    assert answers(tmp_path / "run", tmp_path, "") == []


def test_json_lines_get_the_answer_as_fields_and_keep_their_own(corpus, tmp_path):
    run.train(corpus("classification", pairs=True, trainer={"max_steps": 2}), tmp_path / "run")
    plain = answers(tmp_path / "run", tmp_path, "ab\tba\n")
    line = json.dumps({"id": 7, "text": "ab", "second_text": "ba"})
    (reply,) = answers(tmp_path / "run", tmp_path, line + "\n", format=LineFormat.jsonl)
    fields = json.loads(reply)
    assert list(fields) == ["id", "text", "second_text", "label", "probability"]
    assert plain == [f"{fields['label']}\t{fields['probability']:.6f}"]
    with pytest.raises(DataError, match="line 1 has no field 'second_text'"):
        answers(tmp_path / "run", tmp_path, '{"text": "ab"}\n', format=LineFormat.jsonl)
    with pytest.raises(DataError, match="line 1 has 1 columns where this checkpoint needs 2"):
        answers(tmp_path / "run", tmp_path, "ab\n")
    assert len(answers(tmp_path / "run", tmp_path, "ab\nab\tba\n", on_bad_line=OnBadLine.skip)) == 2
    with pytest.raises(ConfigError, match="ensemble is for translation"):
        answers(tmp_path / "run", tmp_path, "ab\tba\n", ensemble=[best(tmp_path / "run")])


def test_a_resumed_run_ends_with_the_weights_of_one_that_never_stopped(corpus, tmp_path):
    config = corpus("classification", trainer={"max_steps": 9, "evaluate_every": 3, "save_every": 3})
    run.train(config, tmp_path / "whole")
    run.train(replace(config, trainer=replace(config.trainer, max_steps=5)), tmp_path / "parts")
    run.train(replace(config, resume="auto"), tmp_path / "parts")
    whole, parts = (load_checkpoint(tmp_path / name / "checkpoints" / "last.pt") for name in ("whole", "parts"))
    for name, weights in whole["model"].items():
        assert torch.equal(weights, parts["model"][name]), name


def test_a_new_label_is_named_in_training_and_in_evaluation(corpus, tmp_path):
    """B21."""
    config = corpus("classification", trainer={"max_steps": 1})
    (tmp_path / "new.tsv").write_text("ab\ta\nab\tnew\n")
    with pytest.raises(DataError, match=r"new\.tsv: line 2: label 'new' is none of the 2 .* \(a, b\)"):
        run.train(replace(config, data=replace(config.data, valid_path=tmp_path / "new.tsv")), tmp_path / "refused")
    run.train(config, tmp_path / "run")
    with pytest.raises(DataError, match=r"new\.tsv: line 2: label 'new'"):
        evaluate(tmp_path / "run", tmp_path / "out", path=tmp_path / "new.tsv")
    with pytest.raises(ConfigError, match=r"score a labelled file with data\.path="):
        evaluate(tmp_path / "run", tmp_path / "out", source=tmp_path / "new.tsv", target=tmp_path / "new.tsv")
    trained = families.load_trained(best(tmp_path / "run"), device="cpu", precision="float32")
    use = EvaluateConfig(checkpoint=best(tmp_path / "run"), decoding=BeamConfig(), output=tmp_path / "out", **EXACT)
    for options in ({"comet": "x"}, {"lengths": [3]}):
        with pytest.raises(ConfigError, match=f"{next(iter(options))} has no effect with a checkpoint of task=classi"):
            families.evaluate(trained, replace(use, **options), use.output)


def test_a_validation_set_of_one_row_is_scored_and_a_tiny_training_set_trained(corpus, tmp_path):
    """B19: one row in a batch with room for many; fewer training rows than a batch holds."""
    config = corpus("classification", trainer={"max_steps": 3, "max_tokens": 4096, "accumulation": 4})
    (tmp_path / "one.tsv").write_text("ab\ta\n")
    (tmp_path / "few.tsv").write_text("ab\ta\nba\tb\n")
    paths = {"path": tmp_path / "few.tsv", "valid_path": tmp_path / "one.tsv"}
    assert run.train(replace(config, data=replace(config.data, **paths)), tmp_path / "run") in (0.0, 1.0)
    (tmp_path / "one.tsv").write_text("")
    with pytest.raises(DataError, match=r"one\.tsv is empty"):
        run.train(replace(config, data=replace(config.data, **paths)), tmp_path / "empty")


def test_weights_of_classes_must_be_as_many_as_the_classes(corpus, tmp_path):
    config = replace(corpus("classification"), task=ClassificationConfig(weights=[1.0, 2.0, 3.0]))
    with pytest.raises(ConfigError, match=r"task\.weights has 3 numbers for 2 labels \(a, b\)"):
        run.train(config, tmp_path / "run")


def test_a_validation_share_can_be_split_off(corpus, tmp_path):
    config = corpus("classification", trainer={"max_steps": 1})
    data = replace(config.data, valid_path=None, valid_share=0.3)
    run.train(replace(config, data=data), tmp_path / "run")
    assert evaluate(tmp_path / "run", tmp_path / "out", split=Split.valid)["num_rows"] > 1
