"""Names of modules in transformers, by their roles (weights.py)."""


def _attention(ours: str, theirs: str, query: str, key: str, value: str, output: str) -> dict[str, str]:
    names = {"query": query, "key": key, "value": value, "output": output}
    return {f"{ours}.{role}": f"{theirs}.{name}" for role, name in names.items()}


_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
BART = {
    **_attention("self", "self_attn", *_PROJECTIONS, "out_proj"),
    **_attention("cross", "encoder_attn", *_PROJECTIONS, "out_proj"),
    "self.norm": "self_attn_layer_norm",
    "cross.norm": "encoder_attn_layer_norm",
    "feed_forward.norm": "final_layer_norm",
    "up": "fc1",
    "down": "fc2",
}
"""Of every class that was modelled on BART: Blenderbot, Marian, OPT."""
LLAMA = {
    **_attention("self", "self_attn", *_PROJECTIONS, "o_proj"),
    "self.query_norm": "self_attn.q_norm",
    "self.key_norm": "self_attn.k_norm",
    "self.norm": "input_layernorm",
    "feed_forward.norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
"""Of every class that was modelled on Llama."""
GEMMA = LLAMA | {
    "self.out_norm": "post_attention_layernorm",
    "feed_forward.norm": "pre_feedforward_layernorm",
    "feed_forward.out_norm": "post_feedforward_layernorm",
}
STARCODER = LLAMA | {"up": "mlp.c_fc", "down": "mlp.c_proj"}
GPT2 = {
    **_attention("self", "attn", "query", "key", "value", "c_proj"),
    "self.norm": "ln_1",
    "feed_forward.norm": "ln_2",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}
"""Queries, keys and values are one matrix there."""
_T5_SELF = {**_attention("self", "layer.0.SelfAttention", "q", "k", "v", "o"), "self.norm": "layer.0.layer_norm"}


def t5(*, decoder: bool, gated: bool) -> dict[str, str]:
    inner = "layer.2" if decoder else "layer.1"
    return {
        **_T5_SELF,
        **_attention("cross", "layer.1.EncDecAttention", "q", "k", "v", "o"),
        "cross.norm": "layer.1.layer_norm",
        "feed_forward.norm": f"{inner}.layer_norm",
        "gate": f"{inner}.DenseReluDense.wi_0",
        "up": f"{inner}.DenseReluDense.{'wi_1' if gated else 'wi'}",
        "down": f"{inner}.DenseReluDense.wo",
    }


MEGATRON_BERT = {
    **_attention("self", "attention", "self.query", "self.key", "self.value", "output.dense"),
    "self.norm": "attention.ln",
    "feed_forward.norm": "ln",
    "up": "intermediate.dense",
    "down": "output.dense",
}
