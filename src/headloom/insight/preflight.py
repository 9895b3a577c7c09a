"""What a run says before its first update: how large it is, what it will cost, and what looks wrong."""

import math
from collections.abc import Iterator

USUAL_RATE, USUAL_TOKENS = 7e-4, 25_000
"""Peak rate and target tokens of an update of the base model of Vaswani et al. (2017), sections 5.1 and 5.3."""
FAR_OFF = 20.0


def size_lines(
    *,
    num_parameters: int,
    num_trained: int,
    states: int,
    averaged: bool,
    max_tokens: int,
    num_batches: int,
) -> Iterator[str]:
    """The table. `states`: float32 numbers that the optimizer keeps for each trained parameter.

    `num_batches` are those of an update, of all ranks together.
    """
    kept = 4 * (num_parameters + num_trained * (1 + states) + (num_trained if averaged else 0))
    yield f"parameters        {num_parameters:>14,}"
    yield f"tokens an update  {max_tokens * num_batches:>14,} at most, padding counted"
    yield f"memory            {kept / 2**20:>14,.0f} MiB for weights, gradients and optimizer; activations come on top"


def rate_warning(peak: float, *, max_tokens: int) -> str | None:
    """Whether an Adam-like optimizer's peak rate is far from what suits an update of so many tokens.

    Rates of adaptive optimizers grow with the square root of the batch (Malladi et al. 2022, section 4), while that is
    small.
    """
    usual = USUAL_RATE * math.sqrt(min(max_tokens, 4 * USUAL_TOKENS) / USUAL_TOKENS)
    if usual / FAR_OFF <= peak <= usual * FAR_OFF:
        return None
    side = "above" if peak > usual else "below"
    return (
        f"a peak rate of {peak:.2g} is far {side} what suits {max_tokens:,} tokens an update, about {usual:.1g}: "
        "check=lr measures it"
    )


def time_left(seconds: float) -> str:
    """In words: 42 s, 7 min, 3 h 20 min, 2 d 4 h."""
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86400
    if minutes < 1.5:
        return f"{seconds:.0f} s"
    if hours < 1.5:
        return f"{minutes:.0f} min"
    if days < 1.5:
        return f"{int(hours)} h {int(minutes % 60)} min"
    return f"{int(days)} d {int(hours % 24)} h"
