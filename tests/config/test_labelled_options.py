"""Rules of model=classifier and of labelled text (B85)."""

from pathlib import Path
from typing import Any

import pytest

from headloom.config.schema import TrainConfig
from headloom.config.schema_labelled import (
    ClassificationConfig,
    ClassifierConfig,
    ClassWeights,
    ConllConfig,
    HeaderKind,
    LabelledConfig,
    PoolingKind,
    TaggingConfig,
)
from headloom.config.schema_model import Seq2SeqConfig
from headloom.config.schema_text import CharConfig, TranslationConfig
from headloom.config.schema_use import EvaluateDataConfig, Split
from headloom.errors import ConfigError


@pytest.mark.parametrize(
    ("schema", "values", "message"),
    [
        (ClassifierConfig, {"head_dropout": 1.0}, "model.head_dropout=1.0 is out of range"),
        (ClassifierConfig, {"num_layers": 0}, "model.num_layers=0 is too small"),
        (LabelledConfig, {"text": "a", "label": "a"}, "data.text=a, data.second_text=None and data.label=a are not"),
        (LabelledConfig, {"header": HeaderKind.absent, "label": "mood"}, "data.header=absent leaves the columns"),
        (LabelledConfig, {"valid_share": 0.1, "valid_path": "v"}, "data.valid_share has no effect with validation"),
        (ConllConfig, {"token_column": -1}, "data.token_column=-1 is too small"),
        (ConllConfig, {"tag_column": 0}, "data.tag_column=0 is the word's: choose two columns"),
        (ClassificationConfig, {"label_smoothing": 1.0}, "task.label_smoothing=1.0"),
        (ClassificationConfig, {"num_segmentations": 0}, "task.num_segmentations=0 is too small"),
        (ClassificationConfig, {"weights": [1.0, -1.0]}, "task.weights=-1.0 is too small"),
        (ClassificationConfig, {"weights": [0.0, 0.0]}, "task.weights=[0.0, 0.0] are all 0: raise one"),
        (
            ClassificationConfig,
            {"weights": [1.0, 1.0], "class_weights": ClassWeights.balanced},
            "task.class_weights=balanced has no effect with task.weights",
        ),
        (EvaluateDataConfig, {"path": Path("a"), "split": Split.valid}, "data.split has no effect with data.path"),
        (
            EvaluateDataConfig,
            {"path": Path("a"), "source": Path("b"), "target": Path("c")},
            "data.source has no effect",
        ),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(schema: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        schema(**values)
    assert str(error.value).startswith(message)


LABELLED = LabelledConfig(path=Path("a.tsv"))
FITTING = {"model": ClassifierConfig(), "data": LABELLED, "task": ClassificationConfig()}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"model": Seq2SeqConfig()}, "task=classification needs model=classifier, not model=seq2seq: choose"),
        ({"task": TranslationConfig()}, "task=translation needs model=seq2seq, not model=classifier: choose"),
        (
            {"data": ConllConfig()},
            "task=classification needs labelled text, such as data=labelled; data=conll is",
        ),
        ({"task": TaggingConfig()}, "task=tagging needs tagged words, such as data=conll; data=labelled is"),
        (
            {"task": TranslationConfig(), "model": Seq2SeqConfig()},
            "task=translation needs pairs of lines, such as data=tsv; data=labelled is",
        ),
        ({"tokenizer": CharConfig(joint=False)}, "tokenizer.joint=false has no effect with model=classifier"),
        (
            {"task": ClassificationConfig(num_segmentations=8)},
            "task.num_segmentations=8 needs segmentations that are drawn: set tokenizer.dropout",
        ),
        (
            {"task": TaggingConfig(), "data": ConllConfig(), "model": ClassifierConfig(pooling=PoolingKind.cls)},
            "model.pooling=cls has no effect with task=tagging",
        ),
    ],
)
def test_parts_that_do_not_fit_each_other_are_refused(make_config: Any, parts: Any, message: str) -> None:
    assert isinstance(make_config(**FITTING), TrainConfig)
    with pytest.raises(ConfigError) as error:
        make_config(**FITTING | parts)
    assert str(error.value).startswith(message)
