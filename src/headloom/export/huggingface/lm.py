"""Classes of transformers for decoder-only models."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headloom.config import schema_parts
from headloom.config.schema import TrainConfig
from headloom.config.schema_parts import NormKind, NormPlacement
from headloom.config.schema_position import PositionKind
from headloom.export.huggingface import limits, names
from headloom.export.huggingface.limits import ACTIVATIONS, GATED, PLAIN, POST, TABLES, Limits
from headloom.export.huggingface.rope import rope_of
from headloom.export.huggingface.target import Target
from headloom.export.huggingface.weights import (
    embedding_of,
    inner_width,
    norm_weights,
    positions_of,
    scaled_table,
    stack_weights,
)
from headloom.models.lm import LanguageModel
from headloom.work.base import Trained


def _model(trained: Trained) -> LanguageModel:
    assert isinstance(trained.model, LanguageModel)
    return trained.model


def _ties(trained: Trained, *, built_in: float = 1.0) -> bool:
    """Whether one matrix serves both ends of the class, which multiplies embeddings by `built_in`."""
    model = _model(trained)
    embedding = embedding_of(model.stack)
    return model.output.weight is embedding.table.weight and embedding.scale == built_in


def _gpt2_options(trained: Trained) -> dict[str, Any]:
    config = trained.config
    return {
        "vocab_size": len(_model(trained).output.weight),
        "n_embd": config.model.d_model,
        "n_layer": config.model.num_layers,
        "n_head": config.model.num_heads,
        "n_inner": inner_width(_model(trained).stack),
        "n_positions": len(positions_of(_model(trained).stack, trained.config)),
        "activation_function": ACTIVATIONS[config.feed_forward.kind],
        "layer_norm_epsilon": config.norm.epsilon,
        "tie_word_embeddings": _ties(trained),
    }


def _gpt2_weights(trained: Trained) -> Mapping[str, Tensor]:
    """Matrices are transposed there."""
    model = _model(trained)
    blocks = stack_weights(model.stack, names.GPT2, "transformer.h.{}")
    joined: dict[str, list[Tensor]] = {}
    for name, weight in blocks.items():
        block, _, module = name.partition(".attn.")
        role, _, parameter = module.partition(".")
        kept = f"{block}.attn.c_attn.{parameter}" if role in ("query", "key", "value") else name
        joined.setdefault(kept, []).append(weight.T if weight.dim() == 2 else weight)
    return {
        **{name: torch.cat(parts, dim=-1) for name, parts in joined.items()},
        **norm_weights("transformer.ln_f", model.stack.norm),
        "transformer.wte.weight": scaled_table(model.stack),
        "transformer.wpe.weight": positions_of(_model(trained).stack, trained.config),
        "lm_head.weight": model.output.weight,
    }


GPT2 = Target(
    "GPT2LMHeadModel",
    Limits(norms=[NormPlacement.pre], kind=NormKind.layer, positions=TABLES, feed_forwards=PLAIN),
    _gpt2_options,
    _gpt2_weights,
)


def _opt_options(trained: Trained) -> dict[str, Any]:
    config = trained.config
    return {
        "vocab_size": len(_model(trained).output.weight),
        "hidden_size": config.model.d_model,
        "num_hidden_layers": config.model.num_layers,
        "num_attention_heads": config.model.num_heads,
        "ffn_dim": inner_width(_model(trained).stack),
        "max_position_embeddings": len(positions_of(_model(trained).stack, trained.config)),
        "do_layer_norm_before": False,
        "activation_function": ACTIVATIONS[config.feed_forward.kind],
        "tie_word_embeddings": _ties(trained),
    }


def _opt_weights(trained: Trained) -> Mapping[str, Tensor]:
    """Position t is row t + 2 of its table."""
    model = _model(trained)
    table_TD = positions_of(_model(trained).stack, trained.config)
    return {
        **stack_weights(model.stack, names.BART, "model.decoder.layers.{}"),
        "model.decoder.embed_tokens.weight": scaled_table(model.stack),
        "model.decoder.embed_positions.weight": torch.cat([torch.zeros_like(table_TD[:2]), table_TD]),
        "lm_head.weight": model.output.weight,
    }


OPT = Target(
    "OPTForCausalLM",
    Limits(norms=POST, kind=NormKind.layer, epsilon=1e-5, positions=TABLES, feed_forwards=PLAIN),
    _opt_options,
    _opt_weights,
)


def _llama_options(trained: Trained) -> dict[str, Any]:
    """Of every class modelled on Llama."""
    config = trained.config
    attention = config.attention
    return {
        "vocab_size": len(_model(trained).output.weight),
        "hidden_size": config.model.d_model,
        "num_hidden_layers": config.model.num_layers,
        "num_attention_heads": config.model.num_heads,
        "num_key_value_heads": config.model.num_kv_heads or config.model.num_heads,
        "head_dim": config.model.d_model // config.model.num_heads,
        "intermediate_size": inner_width(_model(trained).stack),
        "max_position_embeddings": config.data.max_length,
        "hidden_act": ACTIVATIONS[config.feed_forward.kind],
        "rms_norm_eps": config.norm.epsilon,
        "attention_bias": bool(limits.attention_biases(config)),
        "mlp_bias": bool(limits.feed_forward_biases(config)),
        "rope_parameters": rope_of(config, _model(trained).stack),
        "sliding_window": attention.width if isinstance(attention, schema_parts.WindowConfig) else None,
        "tie_word_embeddings": _ties(trained),
    }


def _llama_weights(trained: Trained, modules: Mapping[str, str] = names.LLAMA) -> Mapping[str, Tensor]:
    model = _model(trained)
    return {
        **stack_weights(model.stack, modules, "model.layers.{}", shared_keys=True),
        **norm_weights("model.norm", model.stack.norm),
        "model.embed_tokens.weight": scaled_table(model.stack),
        "lm_head.weight": model.output.weight,
    }


_LLAMA_LIMITS = partial(Limits, norms=[NormPlacement.pre], kind=NormKind.rms, positions=[PositionKind.rope])
LLAMA = Target("LlamaForCausalLM", _LLAMA_LIMITS(feed_forwards=GATED), _llama_options, _llama_weights)
ARCEE = Target("ArceeForCausalLM", _LLAMA_LIMITS(feed_forwards=PLAIN), _llama_options, _llama_weights)
MISTRAL = Target(
    "MistralForCausalLM",
    _LLAMA_LIMITS(feed_forwards=GATED, windows=True, others=limits.biases),
    _llama_options,
    _llama_weights,
)
QWEN3 = Target(
    "Qwen3ForCausalLM",
    _LLAMA_LIMITS(feed_forwards=GATED, query_key=True, windows=True, others=limits.feed_forward_biases),
    lambda trained: {**_llama_options(trained), "use_sliding_window": True, "max_window_layers": 0},
    _llama_weights,
)


def _starcoder_options(trained: Trained) -> dict[str, Any]:
    config = trained.config
    return {
        **_llama_options(trained),
        "use_bias": bool(limits.biases(config)),
        "norm_epsilon": config.norm.epsilon,
    }


STARCODER = Target(
    "Starcoder2ForCausalLM",
    Limits(
        norms=[NormPlacement.pre],
        kind=NormKind.layer,
        positions=[PositionKind.rope],
        feed_forwards=PLAIN,
        windows=True,
    ),
    _starcoder_options,
    partial(_llama_weights, modules=names.STARCODER),
)


def _gemma_scale(config: TrainConfig) -> float:
    return float(config.model.d_model**0.5)


def _gemma_options(trained: Trained) -> dict[str, Any]:
    options = _llama_options(trained)
    layer = "full_attention" if options["sliding_window"] is None else "sliding_attention"
    return {
        **options,
        "hidden_activation": options["hidden_act"],
        "query_pre_attn_scalar": options["head_dim"],
        "sliding_window": options["sliding_window"] or options["max_position_embeddings"],  # asked for always
        "layer_types": [layer] * options["num_hidden_layers"],
        "final_logit_softcapping": None,
        "attn_logit_softcapping": None,
        "tie_word_embeddings": _ties(trained, built_in=_gemma_scale(trained.config)),
    }


def _gemma_weights(trained: Trained) -> Mapping[str, Tensor]:
    """Its norms add 1 to their gain, its embeddings are scaled."""
    found = dict(_llama_weights(trained, modules=names.GEMMA))
    found = {name: weight - 1 if "norm" in name else weight for name, weight in found.items()}
    stack = _model(trained).stack
    return found | {"model.embed_tokens.weight": scaled_table(stack, built_in=_gemma_scale(trained.config))}


GEMMA2 = Target(
    "Gemma2ForCausalLM",
    Limits(
        norms=[NormPlacement.sandwich],
        kind=NormKind.rms,
        positions=[PositionKind.rope],
        feed_forwards=GATED,
        windows=True,
        others=limits.feed_forward_biases,
    ),
    _gemma_options,
    _gemma_weights,
)
TARGETS = [GPT2, LLAMA, ARCEE, OPT, STARCODER, QWEN3, MISTRAL, GEMMA2]
