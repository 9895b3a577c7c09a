import subprocess
import sys

import pytest

from headloom.metrics import bleu, chrf

REFERENCES = ["The cat sat on the mat, did it?", "Fünf Äpfel.", "It is nine o'clock now.", "Turn the light on"]
HYPOTHESES = ["The cat sat on a mat, did it?", "fünf Äpfel.", "It is nine now.", ""]


@pytest.mark.parametrize(("metric", "name"), [(bleu, "bleu"), (chrf, "chrf")])
def test_the_score_is_that_of_the_sacrebleu_command(metric, name, tmp_path):
    """B82: to two decimals, on detokenised text; an empty hypothesis is a line like any other."""
    (tmp_path / "ref").write_text("\n".join(REFERENCES) + "\n", encoding="utf-8", newline="\n")
    (tmp_path / "hyp").write_text("\n".join(HYPOTHESES) + "\n", encoding="utf-8", newline="\n")
    command = [sys.executable, "-m", "sacrebleu", "ref", "-i", "hyp", "-m", name, "-b", "-w", "2"]
    printed = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert f"{metric(HYPOTHESES, REFERENCES).value:.2f}" == printed.strip()


@pytest.mark.parametrize("metric", [bleu, chrf])
def test_hypotheses_come_first(metric):
    """B82: the brevity penalty and recall tell the two apart."""
    references = [*REFERENCES[:3], "Turn the light on in the kitchen before the guests come"]
    hypotheses = [*REFERENCES[:3], "Turn the light on"]
    assert metric(hypotheses, references).value != pytest.approx(metric(references, hypotheses).value, abs=0.5)


def test_a_copy_of_the_references_scores_100():
    assert bleu(REFERENCES, REFERENCES).value == pytest.approx(100)
    assert chrf(REFERENCES, REFERENCES).value == pytest.approx(100)


def test_case_counts():
    assert bleu([r.lower() for r in REFERENCES], REFERENCES).value < 90


def test_signatures_say_how_the_score_was_made():
    """B82: case and tokenizer are in it."""
    assert bleu(HYPOTHESES, REFERENCES).signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert chrf(HYPOTHESES, REFERENCES).signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")


@pytest.mark.parametrize("metric", [bleu, chrf])
@pytest.mark.parametrize("hypotheses", [[], HYPOTHESES[:3], [*HYPOTHESES, ""]])
def test_unequal_numbers_of_lines_are_refused(metric, hypotheses):
    """B06: with both counts."""
    with pytest.raises(ValueError, match=f"{len(hypotheses)} hypotheses and 4 references"):
        metric(hypotheses, REFERENCES)


@pytest.mark.parametrize("metric", [bleu, chrf])
def test_nothing_to_score_is_refused(metric):
    with pytest.raises(ValueError, match="0 hypotheses and 0 references"):
        metric([], [])


@pytest.mark.parametrize("metric", [bleu, chrf])
def test_hypotheses_of_nothing_score_zero(metric):
    assert metric([""] * 4, REFERENCES).value == 0.0
