"""Every encoder that a class of transformers holds computes there what it computes here, with random weights."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from every_combination import shaken
from random_exports import TOKENIZER, Change, changed, in_model, of, random_ids
from torch import nn

from headloom.build_embedding import build_embedder
from headloom.build_labelled import build_classifier
from headloom.build_pretraining import build_masked_model
from headloom.combinations import GROUPS
from headloom.config import schema_labelled, schema_language, schema_parts, schema_position, schema_pretraining
from headloom.config.schema import TrainConfig
from headloom.config.schema_labelled import PoolingKind
from headloom.config.schema_parts import NormKind
from headloom.data.masking import mask_id
from headloom.errors import ConfigError
from headloom.export.huggingface.format import HuggingFace
from headloom.export.huggingface.runtime import Reading
from headloom.export.own import own_runtime
from headloom.work.base import Trained

transformers = pytest.importorskip("transformers")

rope = partial(
    of,
    norm=schema_parts.PreNormConfig(kind=NormKind.rms),
    position=schema_position.RopeConfig(),
    feed_forward=schema_parts.SwigluConfig(),
)
ANY = Path("any")
ONE_TEXT = schema_labelled.LabelledConfig(path=ANY)
TASKS: dict[str, dict[str, Any]] = {
    "classification": {"task": schema_labelled.ClassificationConfig(), "data": ONE_TEXT},
    "two texts": {
        "task": schema_labelled.ClassificationConfig(),
        "data": schema_labelled.LabelledConfig(path=ANY, second_text="other"),
    },
    "regression": {"task": schema_labelled.RegressionConfig(), "data": ONE_TEXT},
    "tagging": {"task": schema_labelled.TaggingConfig(), "data": schema_labelled.ConllConfig(path=ANY)},
    "masked_language_modeling": {
        "task": schema_pretraining.MaskedLanguageModelingConfig(),
        "data": schema_language.TextConfig(path=ANY),
    },
    "embedding": {
        "task": schema_pretraining.EmbeddingConfig(headline=schema_pretraining.EmbeddingHeadline.loss),
        "data": schema_language.TextConfig(
            path=ANY, documents=schema_language.Documents.line, batching=schema_language.Batching.documents
        ),
    },
}
HEADS = {
    "classification": "ForSequenceClassification",
    "two texts": "ForSequenceClassification",
    "regression": "ForSequenceClassification",
    "tagging": "ForTokenClassification",
    "masked_language_modeling": "ForMaskedLM",
    "embedding": "Model",
}
ENCODERS: dict[str, Change] = {
    "MegatronBert": of(),
    "MegatronBert, learned, gelu": of(
        position=schema_position.LearnedConfig(max_length=512), feed_forward=schema_parts.GeluConfig()
    ),
    "MegatronBert, gelu_tanh, shared keys, a scale": of(
        feed_forward=schema_parts.GeluTanhConfig(), model={"num_kv_heads": 2, "residual_scale": 0.5}
    ),
    "EuroBert": rope(),
    "EuroBert, half of a head, no bias": rope(
        position=schema_position.RopeConfig(share=0.5),
        feed_forward=schema_parts.SwigluConfig(bias=False),
        model={"d_model": 32, "num_kv_heads": 2},
    ),
}


def encoder_config(
    task: str,
    pooling: PoolingKind = PoolingKind.cls,
    change: Change | None = None,
    *,
    choice: str = "position=sinusoidal",
) -> TrainConfig:
    config = changed("classifier", choice)
    pools = task not in ("tagging", "masked_language_modeling")
    options = {"pooling": pooling if pools else None, "dropout": 0.1, "segments": True}
    return (change or of())(replace(config, model=replace(config.model, **options), **TASKS[task]))


HELD = [
    choice
    for choices in GROUPS.values()
    for choice in choices
    if HuggingFace().obstacle(encoder_config("classification", choice=choice)) is None
]


def random_encoder(config: TrainConfig) -> Trained:
    torch.manual_seed(1)
    labels: dict[str, Any] = {"centre": 0.0, "spread": 1.0}
    tokenizers = {"text": TOKENIZER.state()}
    model: nn.Module
    if isinstance(config.task, schema_pretraining.MaskedLanguageModelingConfig):
        model = build_masked_model(config, TOKENIZER)
    elif isinstance(config.task, schema_pretraining.EmbeddingConfig):
        model = build_embedder(config, TOKENIZER)
    else:
        labels = labels if isinstance(config.task, schema_labelled.RegressionConfig) else {"names": ["no", "so", "yes"]}
        tokenizers = {"source": TOKENIZER.state()}
        model = build_classifier(config, TOKENIZER, labels)
    contents = {"tokenizers": tokenizers, "labels": labels}
    return Trained(config, shaken(model), contents, 0, torch.device("cpu"), None)


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("task", TASKS)
def test_a_model_that_reads_gives_the_same_numbers(task: str, name: str, tmp_path: Path) -> None:
    kind = name.split(",")[0]
    change = in_model(segments=False) if kind == "EuroBert" else of()
    trained = random_encoder(change(encoder_config(task, change=ENCODERS[name])))
    HuggingFace().write(trained, tmp_path)
    runtime, own = HuggingFace().opened(trained, tmp_path), own_runtime(trained)
    assert isinstance(runtime, Reading)
    assert type(runtime.model).__name__ == kind + HEADS[task]
    ids = [random_ids(num) for num in (1, 9, 40)]
    rows = [[TOKENIZER.bos_id, *row, TOKENIZER.eos_id] for row in ids]
    if task == "two texts":
        rows = [[*row, *other, TOKENIZER.eos_id] for row, other in zip(rows, ids, strict=True)]
    if task == "masked_language_modeling":
        rows[1][3] = mask_id(TOKENIZER)
    for ours, theirs in zip(own.outputs(rows), runtime.outputs(rows), strict=True):
        np.testing.assert_allclose(theirs, ours, atol=5e-5 * np.abs(ours).max(), rtol=0)


@pytest.mark.parametrize("choice", HELD)
def test_every_choice_of_the_table_gives_the_same_numbers(choice: str, tmp_path: Path) -> None:
    trained = random_encoder(encoder_config("classification", choice=choice))
    HuggingFace().write(trained, tmp_path)
    runtime, own = HuggingFace().opened(trained, tmp_path), own_runtime(trained)
    rows = [[TOKENIZER.bos_id, *random_ids(num), TOKENIZER.eos_id] for num in (1, 9)]
    np.testing.assert_allclose(runtime.outputs(rows), own.outputs(rows), atol=1e-5)


@pytest.mark.parametrize("pooling", [PoolingKind.mean, PoolingKind.max])
def test_pooling_that_a_class_leaves_to_its_user_changes_no_export(pooling: PoolingKind, tmp_path: Path) -> None:
    trained = random_encoder(encoder_config("embedding", pooling))
    HuggingFace().write(trained, tmp_path)
    runtime, own = HuggingFace().opened(trained, tmp_path), own_runtime(trained)
    rows = [[TOKENIZER.bos_id, *random_ids(num), TOKENIZER.eos_id] for num in (1, 9)]
    np.testing.assert_allclose(runtime.outputs(rows), own.outputs(rows), atol=1e-5)


def test_a_mean_of_all_positions_is_held_by_one_class(tmp_path: Path) -> None:
    trained = random_encoder(encoder_config("classification", PoolingKind.mean, ENCODERS["EuroBert"]))
    HuggingFace().write(trained, tmp_path)
    runtime, own = HuggingFace().opened(trained, tmp_path), own_runtime(trained)
    rows = [[TOKENIZER.bos_id, *random_ids(num), TOKENIZER.eos_id] for num in (1, 9)]
    np.testing.assert_allclose(runtime.outputs(rows), own.outputs(rows), atol=1e-5)
    assert runtime.model.config.id2label == {0: "no", 1: "so", 2: "yes"}
    config = in_model(d_model=4, num_heads=1, num_kv_heads=1)(trained.config)
    with pytest.raises(ConfigError, match=r"3 labels with model\.d_model=4: it holds half as many as the width"):
        HuggingFace().write(random_encoder(config), tmp_path / "narrow")


@pytest.mark.parametrize(
    ("task", "pooling", "change", "words"),
    [
        ("classification", PoolingKind.mean, of(), "model.pooling=mean in MegatronBertForSequenceClassification"),
        ("regression", PoolingKind.attention, of(), "model.pooling=attention"),
        ("embedding", PoolingKind.attention, of(), "model.pooling=attention"),
        ("two texts", PoolingKind.cls, rope(), "model.segments=true in EuroBertForSequenceClassification"),
        ("tagging", PoolingKind.cls, of(norm=schema_parts.PostNormConfig()), "norm=post"),
        (
            "masked_language_modeling",
            PoolingKind.cls,
            of(feed_forward=schema_parts.Relu2Config()),
            "feed_forward=relu2",
        ),
    ],
)
def test_what_stands_in_the_way_of_an_encoder_is_named(task, pooling, change, words) -> None:
    assert HuggingFace().obstacle(encoder_config(task, pooling, change)) == words
