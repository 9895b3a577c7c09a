"""A model of ours as a specification of CTranslate2, weight by weight.

Where the two differ, the weights make up for it: a fixed scale of a
sub-layer's output is multiplied into its last matrix (folding.py) or the norm
behind it; channels of a head of which only some turn are put in the order in
which CTranslate2 turns the first ones. CTranslate2 adds sinusoids where it is
given no table of positions: so a model without any has one of zeros.

Shapes: D model width, H query heads, G key/value heads, K head width, T positions.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headloom.config import schema_parts, schema_position
from headloom.config.schema import TrainConfig
from headloom.config.schema_model import Seq2SeqConfig
from headloom.export.folding import NUM_POSITIONS, branch_scale, positions_table
from headloom.models.lm import LanguageModel
from headloom.models.seq2seq import Decoder, Seq2Seq
from headloom.models.stack import Embedding, Stack
from headloom.nn.attention import MultiHeadAttention
from headloom.nn.blocks import DecoderBlock, EncoderBlock
from headloom.nn.feed_forward import FeedForward, GatedFeedForward
from headloom.nn.norm import LayerNorm, RMSNorm
from headloom.nn.positional import Positional, Rotary
from headloom.nn.relative import RelativeBuckets
from headloom.nn.residual import SandwichNorm


def max_length(config: TrainConfig) -> int | None:
    """Longest source or output of an export in tokens, bos and eos included; None: any."""
    match config.position:
        case schema_position.LearnedConfig():
            return config.position.max_length
        case schema_position.SinusoidalConfig() | schema_position.NoPositionConfig():
            return NUM_POSITIONS
        case _:
            return None


def translation_spec(config: TrainConfig, model: Seq2Seq) -> Any:
    """The specification of an encoder-decoder, without vocabularies."""
    from ctranslate2.specs import transformer_spec

    assert isinstance(config.model, Seq2SeqConfig)
    options = _options(config)
    sandwich = isinstance(config.norm, schema_parts.SandwichNormConfig)
    encoder = transformer_spec.TransformerEncoderSpec(config.model.encoder_layers, config.model.num_heads, **options)
    decoder = transformer_spec.TransformerDecoderSpec(
        config.model.decoder_layers,
        config.model.num_heads,
        external_pre_post_encoder_layers=sandwich,
        **options,
    )
    spec = transformer_spec.TransformerSpec(encoder, decoder)
    _set_stack(encoder, model.encoder, config, embeddings=encoder.embeddings[0])
    _set_stack(decoder, model.decoder, config, embeddings=decoder.embeddings)
    decoder.projection.weight = _array(model.output.weight)
    return spec


def language_model_spec(config: TrainConfig, model: LanguageModel) -> Any:
    """The specification of a decoder-only model, without its vocabulary."""
    from ctranslate2.specs import transformer_spec

    alibi = isinstance(config.position, schema_position.AlibiConfig)
    decoder = transformer_spec.TransformerDecoderSpec(
        config.model.num_layers,
        config.model.num_heads,
        with_encoder_attention=False,
        alibi=alibi,
        alibi_use_positive_positions=alibi,
        **_options(config),
    )
    _set_stack(decoder, model.stack, config, embeddings=decoder.embeddings)
    decoder.projection.weight = _array(model.output.weight)
    return transformer_spec.TransformerDecoderModelSpec(decoder)


def _options(config: TrainConfig) -> dict[str, Any]:
    """What encoder and decoder specifications are made with."""
    model, norm = config.model, config.norm
    options: dict[str, Any] = {
        "pre_norm": isinstance(norm, schema_parts.PreNormConfig | schema_parts.SandwichNormConfig),
        "activation": _activation(config.feed_forward.kind),
        "ffn_glu": config.feed_forward.kind in GATED,
        "rms_norm": norm.kind is schema_parts.NormKind.rms,
        "num_heads_kv": model.num_kv_heads,
        "qk_norm": norm.query_key,
        "pre_post_layer_norm": isinstance(norm, schema_parts.SandwichNormConfig),
        "relative_attention_bias": isinstance(config.position, schema_position.T5Config),
    }
    if isinstance(config.position, schema_position.RopeConfig):
        options |= _rotary_options(config)
    return options


GATED = (schema_parts.FeedForwardKind.swiglu, schema_parts.FeedForwardKind.geglu)


def _activation(kind: schema_parts.FeedForwardKind) -> Any:
    from ctranslate2.specs.common_spec import Activation

    return {
        schema_parts.FeedForwardKind.relu: Activation.RELU,
        schema_parts.FeedForwardKind.gelu: Activation.GELU,
        schema_parts.FeedForwardKind.gelu_tanh: Activation.GELUTanh,
        schema_parts.FeedForwardKind.swiglu: Activation.SWISH,
        schema_parts.FeedForwardKind.geglu: Activation.GELU,
    }[kind]


def _rotary_options(config: TrainConfig) -> dict[str, Any]:
    from ctranslate2.specs.attention_spec import RotaryScalingType

    position = config.position
    assert isinstance(position, schema_position.RopeConfig)
    width = Rotary(
        config.model.d_model // config.model.num_heads, base=position.base, share=position.share
    ).turned_width
    options: dict[str, Any] = {"rotary_dim": width, "rotary_interleave": False, "rotary_base": position.base}
    if position.scaling is schema_position.Scaling.linear:
        assert position.factor is not None
        options |= {"rotary_scaling_type": RotaryScalingType.Linear, "rotary_scaling_factor": position.factor}
    if position.scaling is schema_position.Scaling.ntk:  # another base: rope_scaling.Ntk
        assert position.factor is not None
        options["rotary_base"] = position.base * position.factor ** (width / (width - 2))
    return options


def _set_stack(spec: Any, stack: Stack | Decoder, config: TrainConfig, *, embeddings: Any) -> None:
    embedding = stack.embedding
    assert isinstance(embedding, Embedding)
    embeddings.weight = _array(embedding.table.weight)
    spec.scale_embeddings = embedding.scale != 1.0
    if hasattr(spec, "position_encodings"):
        if isinstance(config.position, schema_position.RopeConfig):
            del spec.position_encodings
        else:
            spec.position_encodings.encodings = _array(positions_table(embedding.positional, config.model.d_model))
    if hasattr(spec, "layer_norm"):
        _set_norm(spec.layer_norm, stack.norm)
    for layer, block in zip(spec.layer, stack.blocks, strict=True):
        assert isinstance(block, EncoderBlock | DecoderBlock)
        _set_block(layer, block)


def _set_block(spec: Any, block: EncoderBlock | DecoderBlock) -> None:
    """Each sub-layer with its residual connection."""
    own, inner = block.self_residual, block.feed_forward_residual
    _set_attention(spec.self_attention, block.self_attention, scale=branch_scale(own), is_self=True)
    _set_feed_forward(spec.ffn, block.feed_forward, scale=branch_scale(inner))
    if isinstance(own, SandwichNorm):
        _set_sandwich(spec.input_layer_norm, spec.post_attention_layer_norm, own)
        _set_sandwich(spec.pre_feedforward_layer_norm, spec.post_feedforward_layer_norm, inner)
    else:
        _set_norm(spec.self_attention.layer_norm, own.norm)
        _set_norm(spec.ffn.layer_norm, inner.norm)
    if isinstance(block, EncoderBlock):
        return
    cross = block.cross_residual
    _set_attention(spec.attention, block.cross_attention, scale=branch_scale(cross), is_self=False)
    if isinstance(cross, SandwichNorm):
        before, behind = (getattr(spec, f"external_{place}_encoder_attention_layer_norm") for place in ("pre", "post"))
        _set_sandwich(before, behind, cross)
    else:
        _set_norm(spec.attention.layer_norm, cross.norm)


def _set_sandwich(spec: Any, out_spec: Any, residual: object) -> None:
    assert isinstance(residual, SandwichNorm)
    _set_norm(spec, residual.norm)
    _set_norm(out_spec, residual.out_norm, scale=1.0 if residual.branch is None else residual.branch.scale)


def _set_norm(spec: Any, norm: object, *, scale: float = 1.0, order: Sequence[int] | None = None) -> None:
    assert isinstance(norm, LayerNorm | RMSNorm)
    chosen = slice(None) if order is None else list(order)
    spec.gamma = _array(norm.weight[chosen] * scale)
    if isinstance(norm, LayerNorm):
        spec.beta = _array(norm.bias[chosen] * scale)


def _set_attention(spec: Any, module: MultiHeadAttention, *, scale: float, is_self: bool) -> None:
    from ctranslate2.specs.common_spec import LayerNormSpec

    order = _channel_order(module.positional, module.head_width)
    query, key_value = module.query, module.key_value
    query_weight = _reordered(query.weight, order)
    keys, values = key_value.weight.chunk(2)
    key_value_weight = torch.cat([_reordered(keys, order), values])
    query_bias = key_value_bias = None
    if query.bias is not None:
        key_bias, value_bias = key_value.bias.chunk(2)
        query_bias = _reordered(query.bias, order)
        key_value_bias = torch.cat([_reordered(key_bias, order), value_bias])
    if is_self:
        bias = None if query_bias is None or key_value_bias is None else torch.cat([query_bias, key_value_bias])
        _set_linear(spec.linear[0], torch.cat([query_weight, key_value_weight]), bias)
    else:
        _set_linear(spec.linear[0], query_weight, query_bias)
        _set_linear(spec.linear[1], key_value_weight, key_value_bias)
    _set_linear(spec.linear[-1], module.output.weight, module.output.bias, scale=scale)
    if module.query_norm is not None:
        assert module.key_norm is not None
        is_rms = isinstance(module.query_norm, RMSNorm)
        for name, norm in (("q_norm", module.query_norm), ("k_norm", module.key_norm)):
            setattr(spec, name, LayerNormSpec(rms_norm=is_rms))
            _set_norm(getattr(spec, name), norm, order=order)
    if isinstance(module.positional, RelativeBuckets):
        spec.relative_attention_bias = _array(module.positional.weight_1HN[0].T)
        spec.relative_attention_max_distance = np.dtype("int32").type(module.positional.max_distance)


def _channel_order(positional: Positional | None, head_width: int) -> list[int] | None:
    """Channels of a head, those that turn first: pairs are the first and the second half of these."""
    if not isinstance(positional, Rotary) or positional.turned_width == head_width:
        return None
    half, num_pairs = head_width // 2, positional.turned_width // 2
    turning = [*range(num_pairs), *range(half, half + num_pairs)]
    return [*turning, *(channel for channel in range(head_width) if channel not in turning)]


def _reordered(rows: Tensor, order: list[int] | None) -> Tensor:
    """The rows of each head in the order of its channels."""
    if order is None:
        return rows
    return rows.reshape(-1, len(order), *rows.shape[1:])[:, order].flatten(0, 1)


def _set_feed_forward(spec: Any, module: nn.Module, *, scale: float) -> None:
    if isinstance(module, GatedFeedForward):
        gate, up = module.gate_up.weight.chunk(2)
        gate_bias, up_bias = (None, None) if module.gate_up.bias is None else module.gate_up.bias.chunk(2)
        _set_linear(spec.linear_0, gate, gate_bias)
        _set_linear(spec.linear_0_noact, up, up_bias)
    else:
        assert isinstance(module, FeedForward)
        _set_linear(spec.linear_0, module.up.weight, module.up.bias)
    _set_linear(spec.linear_1, module.down.weight, module.down.bias, scale=scale)


def _set_linear(spec: Any, weight: Tensor, bias: Tensor | None, *, scale: float = 1.0) -> None:
    spec.weight = _array(weight * scale)
    if bias is not None:
        spec.bias = _array(bias * scale)


def _array(tensor: Tensor) -> NDArray[np.float32]:
    """A copy: CTranslate2 rounds what it is given in its place."""
    return np.array(tensor.detach().float().numpy())
