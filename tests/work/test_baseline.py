"""The linear baseline: it learns what is linear, and is refused in one line where scikit-learn is missing."""

import sys

import pytest

from headloom.config.schema_labelled import (
    ClassificationConfig,
    ClassifierConfig,
    ConllConfig,
    LabelledConfig,
    RegressionConfig,
    TaggingConfig,
    TaggingHeadline,
)
from headloom.data.text import PairList
from headloom.errors import ConfigError
from headloom.work.baseline import baseline_scores, require_baseline


def test_without_scikit_learn_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ConfigError, match=r"baseline=true needs scikit-learn.*pip install 'headloom\[baseline\]'"):
        require_baseline()


@pytest.mark.parametrize("task", ["classification", "pairs", "regression", "tagging", "parts of speech"])
def test_it_learns_what_is_linear(make_config, task):
    pytest.importorskip("sklearn")
    words = [f"w{i % 7} {'good' if i % 2 else 'bad'} w{i % 5}" for i in range(40)]
    rows = {
        "classification": [(text, "yes" if "good" in text else "no") for text in words],
        "pairs": [(f"{text}\t{other}", str(text == other)) for text in words[:8] for other in words[:8]],
        "regression": [(text, "1.5" if "good" in text else "-1") for text in words],
        "tagging": [(text, f"O {'B-x' if 'good' in text else 'O'} O") for text in words],
        "parts of speech": [(text, f"NOUN {'ADJ' if 'good' in text else 'ADV'} NOUN") for text in words],
    }[task]
    data = ConllConfig() if task in ("tagging", "parts of speech") else LabelledConfig()
    kind = {
        "regression": RegressionConfig(),
        "tagging": TaggingConfig(),
        "parts of speech": TaggingConfig(headline=TaggingHeadline.accuracy),
    }.get(task, ClassificationConfig())
    config = make_config(model=ClassifierConfig(), data=data, task=kind)
    pairs = PairList(rows)
    scores = baseline_scores(config, pairs, pairs, pairs)
    name = {"regression": "pearson", "tagging": "f1"}.get(task, "accuracy")
    assert scores[name] > 0.95
    assert "C=" in scores["chosen"]
