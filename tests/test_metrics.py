import math
import subprocess
import sys

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from headloom import metrics
from headloom.metrics import bleu, chrf, mutual_bleu, mutual_chrf

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


def test_scores_of_classes_are_those_counted_by_hand():
    confusion = metrics.confusion_matrix(np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 2, 2]), num_classes=4)
    assert confusion.tolist() == [[2, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    scores = metrics.class_scores(confusion, ["a", "b", "c", "never"])
    assert [(s.precision, s.recall) for s in scores] == [(1.0, 2 / 3), (0.5, 0.5), (0.5, 1.0), (0.0, 0.0)]
    assert [(s.num_gold, s.num_predicted) for s in scores] == [(3, 2), (2, 2), (1, 2), (0, 0)]
    # A class that neither occurs nor is predicted is no part of the mean.
    assert metrics.macro_f1(scores) == pytest.approx((0.8 + 0.5 + 2 / 3) / 3)
    assert metrics.macro_f1([]) == 0


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("B-x I-x O", {(0, 2, "x")}),
        ("B-x B-x I-x", {(0, 1, "x"), (1, 3, "x")}),
        ("O I-x I-x", {(1, 3, "x")}),
        ("B-x I-y", {(0, 1, "x"), (1, 2, "y")}),
        ("B-a-b I-a-b", {(0, 2, "a-b")}),
        ("O O", set()),
        ("", set()),
        ("B I B", {(0, 2, ""), (2, 3, "")}),
    ],
)
def test_entities_are_those_of_conll(tags, expected):
    assert metrics.entities(tags.split()) == expected


def test_an_entity_is_right_when_words_and_kind_are():
    gold = [["B-x", "I-x", "O", "B-y"], ["O", "B-x"]]
    predicted = [["B-x", "O", "O", "B-y"], ["B-x", "B-x"]]
    scores = {score.name: score for score in metrics.entity_scores(gold, predicted)}
    assert (scores["all"].precision, scores["all"].recall) == (pytest.approx(2 / 4), pytest.approx(2 / 3))
    assert (scores["x"].precision, scores["x"].recall) == (pytest.approx(1 / 3), 0.5)
    assert scores["y"].f1 == 1
    assert metrics.entity_scores([["O"]], [["O"]])[0].f1 == 0
    with pytest.raises(ValueError, match="2 gold tags and 1 predicted"):
        metrics.entity_scores([["O", "O"]], [["O"]])


def test_correlations_are_those_counted_by_hand():
    x, y = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 4.0, 9.0, 16.0])
    assert metrics.pearson(x, y) == pytest.approx(0.9843740387)
    assert metrics.spearman(x, y) == pytest.approx(1.0)
    assert metrics.spearman(x, -y) == pytest.approx(-1.0)
    # Ranks 1, 2.5, 2.5, 4: equal numbers share the mean.
    assert metrics.spearman(np.array([0, 1, 1, 2]), x) == pytest.approx(0.9486832981)
    assert math.isnan(metrics.pearson(x, np.ones(4)))
    assert metrics.pearson(x + 1e8, y) == pytest.approx(0.9843740387)


@pytest.mark.parametrize(("mutual", "metric"), [(mutual_chrf, CHRF()), (mutual_bleu, BLEU(effective_order=True))])
def test_texts_against_each_other_get_the_scores_of_sacrebleu(mutual, metric):
    """Of one letter, of nothing, and without a common word too."""
    texts = ["a cat sat on the mat", "the cat sat on a mat .", "a", "", "  x ", "zzz zzz zzz zzz zzz", "a cat sat"]
    theirs = [[metric.sentence_score(text, [reference]).score for reference in texts] for text in texts]
    np.testing.assert_allclose(mutual(texts), theirs, rtol=1e-12)
