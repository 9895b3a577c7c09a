"""The weights of our blocks one by one, as classes of transformers have them: keys and values apart, and so on.

A block's weights are keyed by role, such as "self.query.weight",
"feed_forward.norm.bias" or "down.weight"; a table of each class says which of its modules has which role.

Shapes: D model width, H query heads, G key/value heads, K head width.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from headloom.config.schema import TrainConfig
from headloom.export.folding import branch_scale, num_positions, positions_table
from headloom.models.seq2seq import Decoder
from headloom.models.stack import Embedding, Stack
from headloom.nn.attention import MultiHeadAttention
from headloom.nn.blocks import DecoderBlock, EncoderBlock
from headloom.nn.feed_forward import FeedForward, GatedFeedForward
from headloom.nn.norm import LayerNorm, RMSNorm
from headloom.nn.residual import SandwichNorm

READING = ("query", "key", "value", "gate", "up")
"""Matrices that read the residual stream; "output" and "down" write to it, and norms are in it."""


def stack_weights(
    stack: Stack | Decoder,
    names: Mapping[str, str],
    prefix: str,
    *,
    shared_keys: bool = False,
    order: Sequence[int] | None = None,
) -> dict[str, Tensor]:
    """The weights of all blocks. `names`: of the module of each role; `prefix`: of a block, with {} for its number.

    `shared_keys`: the class has key/value heads that query heads share; otherwise each query head gets its own copy.
    `order`: of the channels of the residual stream there; None: as here.
    """
    found = {}
    for number, block in enumerate(stack.blocks):
        assert isinstance(block, EncoderBlock | DecoderBlock)
        for role, weight in _block_weights(block, shared_keys=shared_keys).items():
            module, _, parameter = role.rpartition(".")
            found[f"{prefix.format(number)}.{names[module]}.{parameter}"] = _in_order(weight, role, order)
    return found


def _in_order(weight: Tensor, role: str, order: Sequence[int] | None) -> Tensor:
    if order is None:
        return weight
    *_, module, parameter = role.split(".")
    if module not in READING:
        return weight[order]
    return weight[:, order] if parameter == "weight" else weight


def _block_weights(block: EncoderBlock | DecoderBlock, *, shared_keys: bool) -> dict[str, Tensor]:
    found = _attention("self", block.self_attention, branch_scale(block.self_residual), shared_keys)
    found |= _residual("self", block.self_residual)
    if isinstance(block, DecoderBlock):
        found |= _attention("cross", block.cross_attention, branch_scale(block.cross_residual), shared_keys)
        found |= _residual("cross", block.cross_residual)
    found |= _feed_forward(block.feed_forward, branch_scale(block.feed_forward_residual))
    return found | _residual("feed_forward", block.feed_forward_residual)


def _attention(role: str, module: MultiHeadAttention, scale: float, shared_keys: bool) -> dict[str, Tensor]:
    found = _linear(f"{role}.query", module.query.weight, module.query.bias)
    copies = 1 if shared_keys else module.num_heads // module.num_kv_heads
    parts = [None, None] if module.key_value.bias is None else module.key_value.bias.chunk(2)
    for name, weight, bias in zip(("key", "value"), module.key_value.weight.chunk(2), parts, strict=True):
        found |= _linear(
            f"{role}.{name}",
            _copied(weight, module.head_width, copies),
            None if bias is None else _copied(bias, module.head_width, copies),
        )
    found |= _linear(f"{role}.output", module.output.weight, module.output.bias, scale=scale)
    if module.query_norm is not None:
        found |= norm_weights(f"{role}.query_norm", module.query_norm)
        found |= norm_weights(f"{role}.key_norm", module.key_norm)
    return found


def _copied(rows: Tensor, head_width: int, copies: int) -> Tensor:
    """The rows of each key/value head, once for every query head that reads it."""
    return rows.reshape(-1, head_width, *rows.shape[1:]).repeat_interleave(copies, 0).flatten(0, 1)


def _residual(role: str, residual: nn.Module) -> dict[str, Tensor]:
    found = norm_weights(f"{role}.norm", residual.norm)
    if isinstance(residual, SandwichNorm):
        scale = 1.0 if residual.branch is None else residual.branch.scale
        found |= norm_weights(f"{role}.out_norm", residual.out_norm, scale=scale)
    return found


def norm_weights(name: str, norm: object, *, scale: float = 1.0) -> dict[str, Tensor]:
    """Those of a norm whose output is multiplied by `scale`."""
    assert isinstance(norm, LayerNorm | RMSNorm)
    found = {f"{name}.weight": norm.weight * scale}
    if isinstance(norm, LayerNorm):
        found[f"{name}.bias"] = norm.bias * scale
    return found


def _feed_forward(module: nn.Module, scale: float) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    if isinstance(module, GatedFeedForward):
        biases = [None, None] if module.gate_up.bias is None else module.gate_up.bias.chunk(2)
        for name, weight, bias in zip(("gate", "up"), module.gate_up.weight.chunk(2), biases, strict=True):
            found |= _linear(name, weight, bias)
    else:
        assert isinstance(module, FeedForward)
        found |= _linear("up", module.up.weight, module.up.bias)
    return found | _linear("down", module.down.weight, module.down.bias, scale=scale)


def _linear(name: str, weight: Tensor, bias: Tensor | None, *, scale: float = 1.0) -> dict[str, Tensor]:
    found = {f"{name}.weight": weight * scale}
    return found if bias is None else found | {f"{name}.bias": bias * scale}


def inner_width(stack: Stack | Decoder) -> int:
    """Of the feed-forwards of a stack."""
    module = stack.blocks[0].feed_forward
    assert isinstance(module, FeedForward | GatedFeedForward)
    return module.down.in_features


def embedding_of(stack: Stack | Decoder) -> Embedding:
    assert isinstance(stack.embedding, Embedding)
    return stack.embedding


def scaled_table(stack: Stack | Decoder, *, built_in: float = 1.0) -> Tensor:
    """The vectors of tokens with their scale, of which the class multiplies by `built_in` itself."""
    embedding = embedding_of(stack)
    return embedding.table.weight * (embedding.scale / built_in)


def positions_of(stack: Stack | Decoder, config: TrainConfig) -> Tensor:
    """table_TD of what is added to the embeddings, long enough for every text of the training."""
    return positions_table(embedding_of(stack).positional, config.model.d_model, length=num_positions(config))
