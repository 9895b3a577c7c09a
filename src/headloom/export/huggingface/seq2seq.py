"""Classes of transformers for encoder-decoders.

Shapes: B buckets, D model width, H heads, T positions, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from headloom.config import schema_position
from headloom.config.schema import TrainConfig
from headloom.config.schema_model import Seq2SeqConfig, Tying
from headloom.config.schema_parts import NormKind, NormPlacement
from headloom.config.schema_position import PositionKind
from headloom.export.huggingface import limits, names
from headloom.export.huggingface.limits import ACTIVATIONS, GATED, PLAIN, POST, TABLES, Limits
from headloom.export.huggingface.target import Target
from headloom.export.huggingface.weights import (
    embedding_of,
    inner_width,
    norm_weights,
    positions_of,
    scaled_table,
    stack_weights,
)
from headloom.models.seq2seq import Seq2Seq
from headloom.nn.attention import MultiHeadAttention
from headloom.nn.relative import RelativeBuckets
from headloom.work.base import Trained

MARIAN_POSITIONS = 512
"""As models of Marian have mostly: the class computes its table of sinusoids number by number each time it is made,
which takes it a second for these, of width 512, and eight times as long for 4,096."""
NEVER_LOGIT = -1e9
"""Added to the logit of an id that the target's vocabulary has not, where both vocabularies must be as large."""


def _model(trained: Trained) -> Seq2Seq:
    assert isinstance(trained.model, Seq2Seq)
    return trained.model


def _ties_all(trained: Trained) -> bool:
    config = trained.config.model
    assert isinstance(config, Seq2SeqConfig)
    return config.tying is Tying.all


def _bart_options(trained: Trained) -> dict[str, Any]:
    """Of every class modelled on BART."""
    config, model = trained.config, _model(trained)
    assert isinstance(config.model, Seq2SeqConfig)
    heads, width = config.model.num_heads, inner_width(model.encoder)
    return {
        "d_model": config.model.d_model,
        "encoder_layers": config.model.encoder_layers,
        "decoder_layers": config.model.decoder_layers,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": width,
        "decoder_ffn_dim": width,
        "activation_function": ACTIVATIONS[config.feed_forward.kind],
        "scale_embedding": config.model.scale_embedding,
    }


def _table(trained: Trained, side: str) -> Tensor:
    return embedding_of(getattr(_model(trained), side)).table.weight


def _blenderbot_options(trained: Trained) -> dict[str, Any]:
    return {
        **_bart_options(trained),
        "vocab_size": _largest(trained),
        "max_position_embeddings": len(positions_of(_model(trained).encoder, trained.config)),
        "tie_word_embeddings": _ties_all(trained),
    }


def _largest(trained: Trained) -> int:
    return max(len(_table(trained, side)) for side in ("encoder", "decoder"))


def _blenderbot_weights(trained: Trained) -> Mapping[str, Tensor]:
    """Both vocabularies are as large there: rows of zeros are added to the smaller."""
    model, size = _model(trained), _largest(trained)
    found: dict[str, Tensor] = {}
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        found |= stack_weights(stack, names.BART, f"model.{side}.layers.{{}}")
        found |= norm_weights(f"model.{side}.layer_norm", stack.norm)
        found[f"model.{side}.embed_positions.weight"] = positions_of(stack, trained.config)
        found[f"model.{side}.embed_tokens.weight"] = _with_rows(_table(trained, side), size)
    num_targets = len(model.output.weight)
    return found | {
        "model.shared.weight": found["model.decoder.embed_tokens.weight"],
        "lm_head.weight": _with_rows(model.output.weight, size),
        "final_logits_bias": F.pad(torch.zeros(1, num_targets), (0, size - num_targets), value=NEVER_LOGIT),
    }


def _with_rows(table_VD: Tensor, size: int) -> Tensor:
    return F.pad(table_VD, (0, 0, 0, size - len(table_VD)))


BLENDERBOT = Target(
    "BlenderbotForConditionalGeneration",
    Limits(norms=[NormPlacement.pre], kind=NormKind.layer, epsilon=1e-5, positions=TABLES, feed_forwards=PLAIN),
    _blenderbot_options,
    _blenderbot_weights,
)


def _marian_obstacles(config: TrainConfig) -> list[str]:
    position = config.position
    if not isinstance(position, schema_position.SinusoidalConfig):
        return []
    own = schema_position.SinusoidalConfig()
    return [
        f"position.{name}={getattr(position, name)}"
        for name in ("base", "scale")
        if getattr(position, name) != getattr(own, name)
    ]


def _marian_options(trained: Trained) -> dict[str, Any]:
    config = trained.config.model
    assert isinstance(config, Seq2SeqConfig)
    return {
        **_bart_options(trained),
        "max_position_embeddings": max(MARIAN_POSITIONS, trained.config.data.max_length),
        "vocab_size": len(_table(trained, "encoder")),
        "decoder_vocab_size": len(_table(trained, "decoder")),
        "share_encoder_decoder_embeddings": _ties_all(trained),
        "tie_word_embeddings": config.tying is not Tying.none,
    }


def _marian_weights(trained: Trained) -> Mapping[str, Tensor]:
    """All sines come before all cosines there, so the residual stream has its even channels first; the table is made
    there, not loaded."""
    model = _model(trained)
    order = _evens_first(trained.config.model.d_model)
    found: dict[str, Tensor] = {"lm_head.weight": model.output.weight[:, order]}
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        found |= stack_weights(stack, names.BART, f"model.{side}.layers.{{}}", order=order)
        found[f"model.{side}.embed_tokens.weight"] = _table(trained, side)[:, order]
    if _ties_all(trained):
        found["model.shared.weight"] = found["model.encoder.embed_tokens.weight"]
    return found


def _evens_first(width: int) -> Sequence[int]:
    return [*range(0, width, 2), *range(1, width, 2)]


MARIAN = Target(
    "MarianMTModel",
    Limits(
        norms=POST,
        kind=NormKind.layer,
        epsilon=1e-5,
        positions=[PositionKind.sinusoidal],
        feed_forwards=PLAIN,
        others=_marian_obstacles,
    ),
    _marian_options,
    _marian_weights,
)


def _t5_obstacles(config: TrainConfig) -> list[str]:
    found = limits.biases(config)
    if isinstance(config.model, Seq2SeqConfig) and config.model.tying is not Tying.all:
        found.append(f"model.tying={config.model.tying.name}")
    return found


def _t5_options(trained: Trained) -> dict[str, Any]:
    config, position = trained.config, trained.config.position
    assert isinstance(config.model, Seq2SeqConfig)
    gate = "gated-" if config.feed_forward.kind in GATED else ""
    options = {
        "vocab_size": len(_table(trained, "decoder")),
        "d_model": config.model.d_model,
        "d_kv": config.model.d_model // config.model.num_heads,
        "d_ff": inner_width(_model(trained).encoder),
        "num_layers": config.model.encoder_layers,
        "num_decoder_layers": config.model.decoder_layers,
        "num_heads": config.model.num_heads,
        "layer_norm_epsilon": config.norm.epsilon,
        # "gated-gelu" means the tanh form there, unlike "gelu"; the name of the exact one in its library of activations
        "feed_forward_proj": gate + _t5_activation(config),
    }
    if isinstance(position, schema_position.T5Config):
        options |= {
            "relative_attention_num_buckets": position.num_buckets,
            "relative_attention_max_distance": position.max_distance,
        }
    return options


def _t5_activation(config: TrainConfig) -> str:
    name = ACTIVATIONS[config.feed_forward.kind]
    return "gelu_python" if name == "gelu" and config.feed_forward.kind in GATED else name


def _t5_weights(trained: Trained) -> Mapping[str, Tensor]:
    """Scores have no divisor there, which is multiplied into the queries; outputs are divided by the root of D, for
    which the decoder's last norm makes up where our embeddings have no such factor."""
    config, model = trained.config, _model(trained)
    gated = config.feed_forward.kind in GATED
    root = config.model.d_model**0.5
    table_VD = scaled_table(model.decoder)
    found = {"shared.weight": table_VD, "lm_head.weight": table_VD}
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        found |= stack_weights(stack, names.t5(decoder=side == "decoder", gated=gated), f"{side}.block.{{}}")
        found[f"{side}.embed_tokens.weight"] = table_VD
        first = stack.blocks[0].self_attention
        assert isinstance(first, MultiHeadAttention)
        buckets = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        if isinstance(first.positional, RelativeBuckets):
            found[buckets] = first.positional.weight_1HN[0].T
        else:
            found[buckets] = torch.zeros(32, config.model.num_heads)
    scale = (config.model.d_model // config.model.num_heads) ** -0.5
    found = {name: weight * scale if name.endswith(".q.weight") else weight for name, weight in found.items()}
    return {
        **found,
        **norm_weights("encoder.final_layer_norm", model.encoder.norm),
        **norm_weights("decoder.final_layer_norm", model.decoder.norm, scale=root / embedding_of(model.decoder).scale),
    }


T5 = Target(
    "T5ForConditionalGeneration",
    Limits(
        norms=[NormPlacement.pre],
        kind=NormKind.rms,
        positions=[PositionKind.none, PositionKind.t5],
        feed_forwards=PLAIN + GATED,
        others=_t5_obstacles,
    ),
    _t5_options,
    _t5_weights,
)
TARGETS = [BLENDERBOT, MARIAN, T5]
