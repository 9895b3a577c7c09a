"""The lesson: it learns, shows shapes, and leaves log files readable."""

import re

import pytest

from headloom.reference import alice

SMALL = ["--steps", "25", "--batch", "4", "--length", "8", "--width", "16", "--layers", "1", "--sample", "40"]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("twinkle, twinkle, little bat\n" * 20, encoding="utf-8")
    return path


def test_the_loss_falls_and_text_is_written(text, capsys):
    loss_nats = alice.main(["--text", str(text), *SMALL])
    out, err = capsys.readouterr()
    losses = [float(loss) for loss in re.findall(r"^step +\d+   loss (\S+)", out, re.MULTILINE)]
    assert losses[-1] < losses[0] - 0.5
    assert f"held-out text: {loss_nats:.3f} nats a character" in out
    assert set(out[-41:]) <= set("twinkle, twinkle, little bat\n")
    assert err == ""
    assert "\r" not in out


def test_the_first_step_shows_each_array_once_with_its_shape_and_equation(text, capsys):
    alice.main(["--text", str(text), *SMALL])
    rows = [line.split(maxsplit=2) for line in capsys.readouterr().out.split("\n") if " et al. (" in line]
    shapes = {name: shape for name, shape, _ in rows}
    assert len(shapes) == len(rows)
    assert shapes["decoder.0.self.weights_BHTS"] == "4x4x8x8"
    assert shapes["decoder.x_BTD"] == "4x8x16"
    assert all(
        name.rsplit("_")[-1].isupper() and len(shape.split("x")) == len(name.rsplit("_")[-1])
        for name, shape in shapes.items()
    )


def test_the_same_seed_gives_the_same_text(text, capsys):
    def run(seed: str) -> str:
        alice.main(["--text", str(text), *SMALL, "--seed", seed])
        return capsys.readouterr().out.split("held-out text:")[1]

    assert run("3") == run("3") != run("4")


def test_without_a_text_it_reads_pythons_help_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    alice.main([*SMALL, "--steps", "1"])
    assert capsys.readouterr().out.startswith("no --text and no data/alice29.txt, so Python's help: ")


def test_a_prepared_corpus_is_found(tmp_path, monkeypatch, capsys, text):
    (tmp_path / "data").mkdir()
    text.rename(tmp_path / "data" / "alice29.txt")
    monkeypatch.chdir(tmp_path)
    alice.main([*SMALL, "--steps", "1"])
    assert capsys.readouterr().out.startswith("data/alice29.txt: 580 characters, ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", "missing.txt"], "--text missing.txt cannot be read as UTF-8 text"),
        (["--text", "latin.txt"], "--text latin.txt cannot be read as UTF-8 text"),
        (["--text", "short.txt"], "short.txt has 5 characters, too few for pieces of 64: give a longer --text"),
        (["--width", "12"], "--width 12 (width of the residual stream, a multiple of 8) must be at least 8"),
        (["--steps", "0"], "--steps 0 (updates of the weights) must be at least 1"),
        (["--seed", "-1"], "--seed -1 (of weights, pieces and sample) must be at least 0"),
    ],
)
def test_what_cannot_work_gets_one_line(tmp_path, monkeypatch, arguments, message):
    (tmp_path / "latin.txt").write_bytes(b"\xe9" * 4000)
    (tmp_path / "short.txt").write_bytes(b"short")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as error:
        alice.main(arguments)
    assert message in error.value.code
    assert "\n" not in error.value.code
