"""Classes of transformers for encoders: with a head of classes, a number or tags, of masked tokens, or without one.

Where a class puts something between the encoder and the last matrix, that is
given weights with which it changes nothing (`_head`).

Shapes: C outputs, D model width, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headloom.config import schema_labelled, schema_pretraining
from headloom.config.schema import TrainConfig
from headloom.config.schema_labelled import ClassifierConfig, PoolingKind
from headloom.config.schema_parts import FeedForwardKind, NormKind, NormPlacement
from headloom.config.schema_position import PositionKind
from headloom.errors import ConfigError
from headloom.export.huggingface import limits, names
from headloom.export.huggingface.limits import ACTIVATIONS, GATED, PLAIN, TABLES, Limits
from headloom.export.huggingface.rope import rope_of
from headloom.export.huggingface.target import Target
from headloom.export.huggingface.weights import inner_width, norm_weights, positions_of, scaled_table, stack_weights
from headloom.models.classifier import Classifier, SegmentEmbedding
from headloom.models.embedder import Embedder
from headloom.models.masked import MaskedLanguageModel, MaskEmbedding
from headloom.models.stack import Stack
from headloom.work.base import Trained

SMALL = 2.0**-12
"""tanh(x) is x to all digits of float32 where x is so many times smaller than an output of a norm."""
NEVER_LOGIT = -1e4
"""Bias of the mask, which is an id that is never predicted."""


def _stack(trained: Trained) -> Stack:
    assert isinstance(trained.model, Classifier | MaskedLanguageModel | Embedder)
    return trained.model.encoder


def pooling_of(config: TrainConfig) -> PoolingKind:
    assert isinstance(config.model, ClassifierConfig)
    return PoolingKind.mean if config.model.pooling is None else config.model.pooling


def _pools(config: TrainConfig) -> bool:
    """Whether the class has a head on one vector of a text."""
    return isinstance(config.task, schema_labelled.ClassificationConfig | schema_labelled.RegressionConfig)


def _segments(config: TrainConfig) -> bool:
    data, model = config.data, config.model
    assert isinstance(model, ClassifierConfig)
    return isinstance(data, schema_labelled.LabelledTextConfig) and data.has_two_texts and model.segments


def _pooling_obstacles(config: TrainConfig, *held: PoolingKind) -> list[str]:
    pooling = pooling_of(config)
    if _pools(config):
        return [] if pooling in held else [f"model.pooling={pooling.name}"]
    is_learned = isinstance(config.task, schema_pretraining.EmbeddingConfig) and pooling is PoolingKind.attention
    return ["model.pooling=attention"] if is_learned else []


def _table(stack: Stack) -> Tensor:
    """The vectors of tokens with their scale, and behind them that of a hidden one where the model has it."""
    table_VD, embedding = scaled_table(stack), stack.embedding
    if isinstance(embedding, MaskEmbedding):
        return torch.cat([table_VD, embedding.mask.weight * embedding.scale])
    return table_VD


def _labels(trained: Trained) -> dict[str, Any]:
    match trained.config.task:
        case schema_labelled.LabelTaskConfig():
            labels = trained.contents["labels"]["names"]
            return {"id2label": dict(enumerate(labels)), "label2id": {name: i for i, name in enumerate(labels)}}
        case schema_labelled.RegressionConfig():
            return {"num_labels": 1, "problem_type": "regression"}
        case _:
            return {}


def _output(model: MaskedLanguageModel) -> dict[str, Tensor]:
    """weight and bias of the logits, with a row for the mask."""
    weight_VD = model.output_weight
    return {
        "weight": F.pad(weight_VD, (0, 0, 0, 1)),
        "bias": F.pad(torch.zeros(len(weight_VD)), (0, 1), value=NEVER_LOGIT),
    }


def _head_of(trained: Trained) -> nn.Linear:
    assert isinstance(trained.model, Classifier)
    return trained.model.head


def _bert_obstacles(config: TrainConfig) -> list[str]:
    is_masked = isinstance(config.task, schema_pretraining.MaskedLanguageModelingConfig)
    is_squared = config.feed_forward.kind is FeedForwardKind.relu2
    head = ["feed_forward=relu2"] if is_masked and is_squared else []
    return _pooling_obstacles(config, PoolingKind.cls) + head


def _bert_options(trained: Trained) -> dict[str, Any]:
    config = trained.config
    return {
        **_labels(trained),
        "vocab_size": len(_table(_stack(trained))),
        "hidden_size": config.model.d_model,
        "num_hidden_layers": config.model.num_layers,
        "num_attention_heads": config.model.num_heads,
        "intermediate_size": inner_width(_stack(trained)),
        "hidden_act": ACTIVATIONS[config.feed_forward.kind],
        "max_position_embeddings": len(positions_of(_stack(trained), trained.config)),
        "layer_norm_eps": config.norm.epsilon,
        "tie_word_embeddings": False,
    }


def _bert_weights(trained: Trained) -> Mapping[str, Tensor]:
    """Its pooler ends in tanh, which is undone by small inputs; its head of masked tokens has a layer with a norm,
    which is undone by making what it norms normal already."""
    stack, model, width = _stack(trained), trained.model, trained.config.model.d_model
    segments_2D = torch.zeros(2, width)
    if isinstance(stack.embedding, SegmentEmbedding):
        segments_2D[1] = stack.embedding.second_D
    prefix = "" if isinstance(model, Embedder) else "bert."
    found = {
        **stack_weights(stack, names.MEGATRON_BERT, prefix + "encoder.layer.{}"),
        **norm_weights(f"{prefix}encoder.ln", stack.norm),
        f"{prefix}embeddings.word_embeddings.weight": _table(stack),
        f"{prefix}embeddings.position_embeddings.weight": positions_of(_stack(trained), trained.config),
        f"{prefix}embeddings.token_type_embeddings.weight": segments_2D,
    }
    small = {f"{prefix}pooler.dense.weight": SMALL * torch.eye(width)}
    match model:
        case MaskedLanguageModel():
            # |x| of D numbers with variance 1 is below the root of D: every activation is the identity beyond it.
            shift_D = torch.full((width,), width**0.5 + 6)
            name = "cls.predictions"
            return {
                **found,
                f"{prefix}encoder.ln.weight": torch.ones(width),
                f"{prefix}encoder.ln.bias": torch.zeros(width),
                f"{name}.transform.dense.weight": torch.eye(width),
                f"{name}.transform.dense.bias": shift_D,
                **norm_weights(f"{name}.transform.LayerNorm", stack.norm),
                f"{name}.decoder.weight": _output(model)["weight"],
                f"{name}.decoder.bias": _output(model)["bias"],
                f"{name}.bias": _output(model)["bias"],
            }
        case Classifier(pool=None):
            return {**found, "classifier.weight": _head_of(trained).weight, "classifier.bias": _head_of(trained).bias}
        case Classifier():
            head = _head_of(trained)
            return {**found, **small, "classifier.weight": head.weight / SMALL, "classifier.bias": head.bias}
        case _:
            return {**found, **small}


def _eurobert_obstacles(config: TrainConfig) -> list[str]:
    segments = ["model.segments=true"] if _segments(config) else []
    return _pooling_obstacles(config, PoolingKind.cls, PoolingKind.mean) + segments


def _eurobert_options(trained: Trained) -> dict[str, Any]:
    config = trained.config
    is_masked = isinstance(trained.model, MaskedLanguageModel)
    size = len(_table(_stack(trained)))
    return {
        **_labels(trained),
        "vocab_size": size,
        "hidden_size": config.model.d_model,
        "num_hidden_layers": config.model.num_layers,
        "num_attention_heads": config.model.num_heads,
        "num_key_value_heads": config.model.num_kv_heads or config.model.num_heads,
        "head_dim": config.model.d_model // config.model.num_heads,
        "intermediate_size": inner_width(_stack(trained)),
        "hidden_act": ACTIVATIONS[config.feed_forward.kind],
        "max_position_embeddings": config.data.max_length,
        "rms_norm_eps": config.norm.epsilon,
        "attention_bias": bool(limits.attention_biases(config)),
        "mlp_bias": is_masked or bool(limits.feed_forward_biases(config)),  # the head of masked tokens has it too
        "rope_parameters": rope_of(config, _stack(trained)),
        **({"mask_token_id": size - 1} if is_masked else {}),
        "classifier_pooling": "bos" if pooling_of(config) is PoolingKind.cls else "mean",
        "tie_word_embeddings": False,
    }


def _eurobert_weights(trained: Trained) -> Mapping[str, Tensor]:
    """Its head has a layer with GELU in between: gelu(x) - gelu(-x) = x makes nothing of it."""
    stack, model = _stack(trained), trained.model
    prefix = "" if isinstance(model, Embedder) else "model."
    found = {
        **stack_weights(stack, names.LLAMA, prefix + "layers.{}", shared_keys=True),
        **norm_weights(f"{prefix}norm", stack.norm),
        f"{prefix}embed_tokens.weight": _table(stack),
    }
    match model:
        case MaskedLanguageModel():
            return {**found, **{f"lm_head.{name}": weight for name, weight in _output(model).items()}}
        case Classifier(pool=None):
            return {**found, "classifier.weight": _head_of(trained).weight, "classifier.bias": _head_of(trained).bias}
        case Classifier():
            head = _head_of(trained)
            num_outputs, width = head.weight.shape
            if 2 * num_outputs > width:
                raise ConfigError(
                    f"EuroBertForSequenceClassification cannot express {num_outputs} labels with "
                    f"model.d_model={width}: it holds half as many as the width"
                )
            rest = width - 2 * num_outputs
            one = torch.eye(num_outputs)
            return {
                **found,
                "dense.weight": F.pad(torch.cat([head.weight, -head.weight]), (0, 0, 0, rest)),
                "dense.bias": F.pad(torch.cat([head.bias, -head.bias]), (0, rest)),
                "classifier.weight": F.pad(torch.cat([one, -one], dim=1), (0, rest)),
            }
        case _:
            return found


_BERT_LIMITS = Limits(
    norms=[NormPlacement.pre], kind=NormKind.layer, positions=TABLES, feed_forwards=PLAIN, others=_bert_obstacles
)
_EUROBERT_LIMITS = Limits(
    norms=[NormPlacement.pre],
    kind=NormKind.rms,
    positions=[PositionKind.rope],
    feed_forwards=GATED,
    others=_eurobert_obstacles,
)


def targets(config: TrainConfig) -> list[Target]:
    """Those with the head of the task."""
    match config.task:
        case schema_labelled.TaggingConfig():
            head = "ForTokenClassification"
        case schema_labelled.LabelTaskConfig() | schema_labelled.RegressionConfig():
            head = "ForSequenceClassification"
        case schema_pretraining.MaskedLanguageModelingConfig():
            head = "ForMaskedLM"
        case schema_pretraining.EmbeddingConfig():
            head = "Model"
        case _:
            raise AssertionError(config.task)
    return [
        Target(f"MegatronBert{head}", _BERT_LIMITS, _bert_options, _bert_weights),
        Target(f"EuroBert{head}", _EUROBERT_LIMITS, _eurobert_options, _eurobert_weights),
    ]
