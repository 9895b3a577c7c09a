"""Rotary positions as transformers describes them.

Shapes: P channel pairs.
"""

from typing import Any

from headloom.config.schema import TrainConfig
from headloom.config.schema_position import RopeConfig, Scaling
from headloom.models.stack import Stack
from headloom.nn.attention import MultiHeadAttention
from headloom.nn.positional import Rotary
from headloom.nn.rope_scaling import rates

NEVER = 1e30
"""What divides the rate of a pair that does not turn."""


def rope_of(config: TrainConfig, stack: Stack) -> dict[str, Any]:
    """`rope_parameters` of a configuration there, for the positions of a stack.

    What has no name there, a head that turns in part and YaRN with our ramp, is
    a "longrope" of one length: it divides the rate of each pair by a factor of its own.
    """
    position, attention = config.position, stack.blocks[0].self_attention
    assert isinstance(attention, MultiHeadAttention)
    rotary = attention.positional
    assert isinstance(rotary, Rotary)
    assert isinstance(position, RopeConfig)
    whole = rotary.turned_width == rotary.head_width
    if whole and position.scaling is Scaling.none:
        return {"rope_type": "default", "rope_theta": position.base}
    if whole and position.scaling is Scaling.linear:
        return {"rope_type": "linear", "rope_theta": position.base, "factor": position.factor}
    if whole and position.scaling is Scaling.ntk:  # another base: rope_scaling.Ntk
        assert position.factor is not None
        width = rotary.turned_width
        return {"rope_type": "default", "rope_theta": position.base * position.factor ** (width / (width - 2))}
    turned_P = rotary.scaling.angles(2, rotary.turned_width, position.base)[1].tolist()
    rate_P = rates(rotary.head_width, position.base).tolist()
    factors = [rate / turned for rate, turned in zip(rate_P, turned_P, strict=False)]
    factors += [NEVER] * (len(rate_P) - len(factors))
    return {
        "rope_type": "longrope",
        "rope_theta": position.base,
        "short_factor": factors,
        "long_factor": factors,
        "factor": 1.0,
        "attention_factor": rotary.scaling.magnitude,
        "original_max_position_embeddings": config.data.max_length,
    }
