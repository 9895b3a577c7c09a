"""Real trainings of a language model through `run`: text in, perplexity and continuations out."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headloom import run
from headloom.config.schema import TrainConfig
from headloom.config.schema_decoding import BeamConfig, GreedyConfig
from headloom.config.schema_language import Batching, Documents, LanguageModelingConfig, LmConfig, TextConfig
from headloom.config.schema_optimizer import AdamConfig
from headloom.config.schema_position import LearnedConfig, RopeConfig
from headloom.config.schema_text import ByteConfig, CharConfig
from headloom.config.schema_use import EvaluateConfig, EvaluateDataConfig, Split, TranslateConfig
from headloom.errors import ConfigError, DataError


@pytest.fixture
def train(make_config, tmp_path) -> Callable[..., tuple[float, Path]]:
    """Trains on a text; the headline and the run's folder."""

    def trained(
        text: str | bytes,
        *,
        name: str = "run",
        data: dict[str, Any] | None = None,
        trainer: dict[str, Any] | None = None,
        task: LanguageModelingConfig | None = None,
        **sections: Any,
    ) -> tuple[float, Path]:
        path = tmp_path / "text.txt"
        path.write_bytes(text.encode("utf-8") if isinstance(text, str) else text)
        options = {"path": path, "folder": tmp_path / "data", "max_length": 16, "valid_share": 0.1, **(data or {})}
        config: TrainConfig = make_config(
            model=LmConfig(d_model=16, num_heads=2, d_ff=32, num_layers=1, dropout=0.0),
            data=TextConfig(**options),
            task=task or LanguageModelingConfig(),
            trainer={"max_tokens": 64, "evaluate_every": None, "save_every": None, **(trainer or {})},
            **{"tokenizer": CharConfig(), "optimizer": AdamConfig(lr=1e-2), **sections},
        )
        return run.train(config, tmp_path / name), tmp_path / name

    return trained


def continued(run_dir: Path, lines: list[str], *, max_length: int = 8) -> list[str]:
    given, output = run_dir / "prompts.txt", run_dir / "continued.txt"
    given.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    run.translate(
        TranslateConfig(
            checkpoint=run_dir / "checkpoints" / "last.pt",
            input=given,
            output=output,
            decoding=GreedyConfig(max_length=max_length),
        )
    )
    return output.read_text(encoding="utf-8").split("\n")[:-1]


def scores(run_dir: Path, **data: Any) -> dict[str, Any]:
    run.evaluate(
        EvaluateConfig(
            checkpoint=run_dir / "checkpoints" / "last.pt",
            data=EvaluateDataConfig(**data),
            decoding=BeamConfig(),
            output=run_dir / "scores",
        )
    )
    return json.loads((run_dir / "scores" / "evaluation.json").read_bytes())


def test_a_cycle_is_learned_and_continued(train):
    """B44: the next token is predicted, not the one after it nor the one that is read."""
    loss, run_dir = train("abc" * 300, trainer={"max_steps": 60})
    assert loss < 0.1
    assert continued(run_dir, ["ab", "abcabca", "c"]) == ["cabcabc", "bcabcab", "abcabca"]


def test_random_text_is_not_learned(train):
    """B44, B29: a model that reads its target, or the future, would be far below ln 4."""
    draw = random.Random(1)
    loss, _ = train("".join(draw.choices("abcd", k=4000)), trainer={"max_steps": 40})
    assert loss == pytest.approx(math.log(4), abs=0.1)


@pytest.mark.parametrize("batching", Batching)
def test_documents_begin_and_end(train, batching):
    """Every line is "ab" or "cd": what follows a start is a or c, what follows b or d is the end."""
    draw = random.Random(1)
    text = "".join(draw.choice(["ab\n", "cd\n"]) for _ in range(300))
    loss, run_dir = train(text, data={"documents": Documents.line, "batching": batching}, trainer={"max_steps": 60})
    assert loss == pytest.approx(math.log(2) / 3, abs=0.06)
    assert continued(run_dir, ["a", "c", "ab"]) == ["b", "d", ""]
    assert continued(run_dir, [""])[0] in ("ab", "cd")


def test_line_ends_are_learned_and_written_as_blanks(train):
    """B12 in training; B01: one line out for one line in."""
    _, run_dir = train("a\n\tb \n" * 150, position=RopeConfig(), trainer={"max_steps": 60})
    assert continued(run_dir, ["a"], max_length=7) == [" \tb  a"]


def test_training_that_was_stopped_goes_on_bit_by_bit(train):
    """B54, B55: 8 updates are 5 and 3, over the end of an epoch."""
    _, whole = train("abcde" * 60, name="whole", trainer={"max_steps": 8})
    train("abcde" * 60, name="parts", trainer={"max_steps": 5})
    _, parts = train("abcde" * 60, name="parts", trainer={"max_steps": 8}, resume="auto")

    def records(run_dir: Path) -> dict[tuple[int, str], float]:
        lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
        return {
            (entry["step"], name): value
            for entry in map(json.loads, lines)
            for name, value in entry.items()
            if name.startswith(("train/loss", "train/gradient_norm", "train/epoch"))
        }

    assert records(whole) == records(parts)
    assert max(value for (_, name), value in records(whole).items() if name == "train/epoch") > 0
    assert scores(whole, split=Split.valid)["loss"] == scores(parts, split=Split.valid)["loss"]


def test_perplexity_and_bits_are_those_of_the_whole_text(train):
    """B40, B41: every token once, eos counted; bits are counted by characters and bytes of the text."""
    _, run_dir = train("äbc " * 60, tokenizer=ByteConfig(), trainer={"max_steps": 3})
    found = scores(run_dir, split=Split.valid)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert found["num_tokens"] == found["num_characters"] * 5 / 4 + 1 or found["num_characters"] % 4
    bits = found["loss"] * found["num_tokens"] / math.log(2)
    assert found["bits_per_character"] == pytest.approx(bits / found["num_characters"])
    assert found["bits_per_byte"] == pytest.approx(bits / (found["num_tokens"] - 1))


def test_more_context_for_each_token_costs_nothing_but_time(train):
    """A stride of 1 scores the same tokens, each with a full window before it."""
    text = "".join(f"{i % 7} {i % 7} " for i in range(300))
    _, run_dir = train(text, trainer={"max_steps": 60})
    results = [scores(run_dir, split=Split.valid, stride=stride) for stride in (None, 1)]
    assert results[0]["num_tokens"] == results[1]["num_tokens"]
    assert results[1]["loss"] < results[0]["loss"]


def test_a_text_of_ones_own_and_the_training_text_can_be_scored(train, tmp_path):
    _, run_dir = train("abc" * 100, trainer={"max_steps": 60})
    other = tmp_path / "other.txt"
    other.write_bytes(b"cba" * 20)
    seen, unseen = scores(run_dir, split=Split.train), scores(run_dir, path=other)
    assert (seen["num_characters"], unseen["num_characters"]) == (270, 60)
    assert unseen["loss"] > seen["loss"] + 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"stride": 17}, r"data\.stride=17 passes the window of the checkpoint, data\.max_length=16: lower it"),
        ({}, r"has no test split: score data\.split=valid, or a text with data\.path="),
    ],
)
def test_what_cannot_be_scored_gets_one_line(train, data, message):
    _, run_dir = train("abc" * 100, trainer={"max_steps": 1})
    with pytest.raises((ConfigError, DataError), match=message):
        scores(run_dir, **data)


def test_a_run_leaves_samples_and_attention_maps(train):
    _, run_dir = train("abc" * 100, trainer={"max_steps": 2})
    samples = (run_dir / "samples" / "step_2.txt").read_text(encoding="utf-8")
    assert samples.count("source:") == 5 or samples.count("translation:") >= 1
    assert "abcabc" in samples


def test_a_table_of_few_positions_is_enough_for_short_rows(train):
    """B16: what is drawn of the validation text is no longer than the rows that are trained on."""
    _, run_dir = train("abc" * 300, trainer={"max_steps": 2}, position=LearnedConfig(max_length=16))
    assert continued(run_dir, ["abc" * 10], max_length=30)[0]
