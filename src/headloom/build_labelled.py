"""From configuration to what the encoder with a head needs: corpus, targets, model, task."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, assert_never

from torch import nn

from headloom.build_parts import Parts
from headloom.config import schema_labelled as schema
from headloom.config.schema import TrainConfig
from headloom.config.schema_data import DataConfig
from headloom.data import corpora
from headloom.data.conll import open_conll
from headloom.data.labelled import Columns, Format, Header, open_labelled
from headloom.data.labelled_batch import LabelledEvaluationBatches
from headloom.data.labelled_store import ClassRows, RowEncoder, TagRows, ValueRows
from headloom.data.labels import find_labels, find_spread, listed, shortened
from headloom.data.prepared import lines_folder
from headloom.data.text import Corpus, TextPairs
from headloom.data.token_store import TokenPairs
from headloom.data.tokenizer_base import Tokenizer
from headloom.errors import ConfigError
from headloom.metrics import not_bio
from headloom.models.classifier import Classifier, Pool, Pooling, SegmentEmbedding
from headloom.models.stack import Stack
from headloom.nn.linear import Linear
from headloom.tasks.classification import ClassificationTask, balanced_weights
from headloom.tasks.regression import RegressionTask
from headloom.tasks.tagging import TaggingTask

LabelledTask = ClassificationTask | RegressionTask | TaggingTask


def build_labelled_corpus(config: DataConfig) -> Corpus:
    """The splits of a corpus with labels.

    Raises:
        DataError: it cannot be had, or a file of it cannot be used.
    """
    match config:
        case schema.LabelledConfig():
            return corpora.labelled(
                path=config.path,
                valid_path=config.valid_path,
                test_path=config.test_path,
                columns=columns(config),
                header=Header[config.header.name],
                format=Format[config.format.name],
                valid_share=config.share_split_off,
                folder=config.folder,
            )
        case schema.ConllConfig():
            return corpora.conll(
                path=config.path,
                valid_path=config.valid_path,
                test_path=config.test_path,
                token_column=config.token_column,
                tag_column=config.tag_column,
                valid_share=config.share_split_off,
                folder=config.folder,
            )
        case schema.MovieSentimentConfig():
            labels = corpora.MovieLabels[config.labels.name]
            return corpora.movie_sentiment(labels=labels, folder=config.folder, path=config.path)
        case schema.ChineseReviewsConfig():
            return corpora.chinese_reviews(folder=config.folder, path=config.path)
        case schema.LanguageIdConfig():
            return corpora.language_id(folder=config.folder, path=config.path)
        case schema.DigitsConfig():
            return corpora.digits(
                corpora.DigitTask[config.kind.name],
                num_train=config.num_train,
                num_valid=config.num_valid,
                num_digits=config.num_digits,
            )
        case _:
            raise AssertionError(config)


def columns(config: schema.LabelledConfig) -> Columns:
    return Columns(text=config.text, second_text=config.second_text, label=config.label)


def open_as_trained(config: DataConfig, path: Path) -> TextPairs:
    """The rows of a file that is read as the training file was; in other words, of a corpus known by name, as
    data=labelled reads a file of its texts and labels.

    Raises:
        DataError: it cannot be used.
    """
    cache = lines_folder(config.folder)
    match config:
        case schema.ConllConfig():
            return open_conll(path, token_column=config.token_column, tag_column=config.tag_column, cache=cache)
        case schema.LabelledConfig():
            header, format = Header[config.header.name], Format[config.format.name]
            return open_labelled(path, columns=columns(config), header=header, format=format, cache=cache)
        case _:
            return open_labelled(path, columns=Columns(), cache=cache)


def find_targets(config: TrainConfig, train: TextPairs, cache: Path) -> dict[str, Any]:
    """What a checkpoint keeps of the labels: their names in order with their counts, or mean and deviation of values.

    Raises:
        DataError: the labels do not suit the task.
        ConfigError: `task.weights` has not one weight for each label, or entities are to be counted in other tags
            than those of BIO.
    """
    match config.task:
        case schema.RegressionConfig():
            centre, spread = find_spread(train)
            return {"centre": centre, "spread": spread}
        case schema.LabelTaskConfig(weights=weights):
            labels = find_labels(train, per_word=isinstance(config.task, schema.TaggingConfig), cache=cache)
            if weights is not None and len(weights) != len(labels):
                raise ConfigError(
                    f"task.weights has {len(weights)} numbers for {len(labels)} labels ({listed(labels.names)}): "
                    "give one for each, in this order"
                )
            if isinstance(config.task, schema.TaggingConfig):
                _refuse_other_tags(config.task, labels.names, train.name)
            return {"names": labels.names, "counts": labels.counts}
        case _:
            raise AssertionError(config.task)


def _refuse_other_tags(task: schema.TaggingConfig, names: Sequence[str], place: str) -> None:
    tag = not_bio(names)
    if task.headline is schema.TaggingHeadline.f1 and tag is not None:
        raise ConfigError(
            f"task.headline=f1 counts entities, which begin with B-KIND and go on with I-KIND; {place} has the tag "
            f"{shortened(tag)!r}: write its tags so, or set task.headline=accuracy"
        )


def build_encoder(config: TrainConfig, tokenizer: Tokenizer, targets: Mapping[str, Any]) -> RowEncoder:
    """How texts become rows and labels targets; `targets` is what `find_targets` gave."""
    max_length = config.data.max_length
    match config.task:
        case schema.ClassificationConfig():
            return ClassRows(tokenizer, targets["names"], max_length=max_length)
        case schema.RegressionConfig():
            return ValueRows(tokenizer, max_length=max_length)
        case schema.TaggingConfig():
            return TagRows(tokenizer, targets["names"], max_length=max_length)
        case _:
            raise AssertionError(config.task)


def num_segmentations(config: TrainConfig) -> int:
    """Segmentations of a text whose answers are averaged."""
    return config.task.num_segmentations if isinstance(config.task, schema.WholeTextConfig) else 1


def build_evaluation_batches(config: TrainConfig, tokens: TokenPairs, encoder: RowEncoder) -> LabelledEvaluationBatches:
    """Every row of `tokens`, as validations and evaluate.py score them."""
    return LabelledEvaluationBatches(
        tokens, encoder, max_tokens=config.trainer.max_tokens, num_segmentations=num_segmentations(config)
    )


def build_classifier(config: TrainConfig, tokenizer: Tokenizer, targets: Mapping[str, Any]) -> Classifier:
    """A freshly initialised model."""
    model = config.model
    assert isinstance(model, schema.ClassifierConfig)
    assert isinstance(config.data, schema.LabelledTextConfig)
    parts = Parts(config)
    table = nn.Embedding(tokenizer.vocab_size, model.d_model)
    encoder = parts.encoder(table, num_layers=model.num_layers)
    if config.data.has_two_texts and model.segments:
        _tell_texts_apart(encoder, tokenizer.eos_id)
    num_outputs = len(targets["names"]) if "names" in targets else 1
    pool: Pool | None = None
    head: nn.Linear = Linear(model.d_model, num_outputs)
    if not isinstance(config.task, schema.TaggingConfig):
        pooling = schema.PoolingKind.mean if model.pooling is None else model.pooling
        pool, head = Pool(Pooling[pooling.name], model.d_model), nn.Linear(model.d_model, num_outputs)
    built = Classifier(encoder, pool, head, dropout=parts.dropout(model.head_dropout))
    parts.initialise(built, num_residuals=2 * model.num_layers)
    return built


def _tell_texts_apart(encoder: Stack, separator: int) -> None:
    plain = encoder.embedding
    encoder.embedding = SegmentEmbedding(
        plain.table,
        plain.positional,
        scaled=plain.scale != 1.0,
        dropout=plain.dropout.probability,
        separator=separator,
        token_dropout=plain.token_dropout,
    )


def build_labelled_task(config: TrainConfig, targets: Mapping[str, Any]) -> LabelledTask:
    match config.task:
        case schema.ClassificationConfig():
            return ClassificationTask(
                targets["names"],
                label_smoothing=config.task.label_smoothing,
                class_weights=_class_weights(config.task, targets["counts"]),
                headline=config.task.headline.name,
            )
        case schema.RegressionConfig():
            return RegressionTask(
                centre=targets["centre"], spread=targets["spread"], headline=config.task.headline.name
            )
        case schema.TaggingConfig():
            return TaggingTask(
                targets["names"],
                label_smoothing=config.task.label_smoothing,
                class_weights=_class_weights(config.task, targets["counts"]),
                headline=config.task.headline.name,
            )
        case _:
            raise AssertionError(config.task)


def _class_weights(config: schema.LabelTaskConfig, counts: list[int]) -> list[float] | None:
    if config.weights is not None:
        return config.weights
    match config.class_weights:
        case schema.ClassWeights.none:
            return None
        case schema.ClassWeights.balanced:
            return balanced_weights(counts)
        case _:
            assert_never(config.class_weights)
