"""How many tokens a batch may have on a GPU: measured, on the widest batch there is, before the first update."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headloom.training.engine import CountedBatch
from headloom.training.trainer import Trainer

logger = logging.getLogger(__name__)

FIRST_TOKENS = 2048
SHARE = 0.85
"""Of the memory that is there. The rest is for validation, for what fragments, and for who else uses the device."""
ROUNDED_TO = 64
MAX_TRIALS = 10
CLOSE = 0.9
"""What is found is at least this share of the fewest tokens that are known not to fit."""


def find_max_tokens(measure: Callable[[int], int], *, room: int, first: int = FIRST_TOKENS) -> int:
    """The most tokens with which an update takes at most `room` bytes, of those tried.

    `measure` makes an update of so many tokens and gives its peak in bytes; it
    raises torch.OutOfMemoryError where they do not fit. The peak grows in a
    straight line as a rule, so two measurements say where it meets `room`; a third
    one makes sure, and where it does not, more halve what is left between.

    Raises:
        torch.OutOfMemoryError: not even a batch of ROUNDED_TO tokens fits.
    """
    tokens = first
    while True:
        try:
            low, high = measure(tokens), measure(2 * tokens)
            break
        except torch.OutOfMemoryError:
            if tokens <= ROUNDED_TO:
                raise
            tokens //= 4
    for_each = max(1.0, (high - low) / tokens)
    fits, most = tokens, max(tokens, int(tokens + (room - low) / for_each))
    tried = most
    for _ in range(MAX_TRIALS):
        tried = max(tokens, tried // ROUNDED_TO * ROUNDED_TO)
        if _fits(measure, tried, room):
            fits = tried
            if tried >= CLOSE * most:
                break
        else:
            most = tried
        tried = (fits + most) // 2
    return fits


def _fits(measure: Callable[[int], int], tokens: int, room: int) -> bool:
    try:
        return measure(tokens) <= room
    except torch.OutOfMemoryError:
        return False


def probe(trainer: Trainer, batches: Sequence[CountedBatch]) -> int:
    """`find_max_tokens` on a GPU, with a row of the widest of `batches`; what `trainer` learns meanwhile is no use."""
    row, width = max((one_row(batch) for batch in batches), key=lambda found: found[1])
    trainer.splits = False

    def measure(num_tokens: int) -> int:
        trainer.optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(trainer.device)
        trainer.train_step([repeated(row, max(1, num_tokens // width))])
        return int(torch.cuda.max_memory_allocated(trainer.device))

    free, _ = torch.cuda.mem_get_info(trainer.device)
    found = find_max_tokens(measure, room=int(SHARE * (free + torch.cuda.memory_reserved(trainer.device))))
    logger.info("trainer.max_tokens=auto: %d tokens a batch, measured on rows of %d", found, width)
    return found


def one_row(batch: Any) -> tuple[Any, int]:
    """The first row of a batch, as wide as the batch is, and that width."""
    while halves := batch.halves():
        batch = halves[0]
    tensors = (getattr(batch, field.name) for field in fields(batch))
    return batch, max(tensor.size(1) for tensor in tensors if isinstance(tensor, Tensor) and tensor.dim() == 2)


def repeated(row: Any, number: int) -> Any:
    """A batch of `number` rows, all of them the one of `row`."""
    changed: dict[str, Any] = {"num_targets": row.num_targets * number}
    for field in fields(row):
        value = getattr(row, field.name)
        if isinstance(value, Tensor):
            changed[field.name] = value.repeat_interleave(number, 0)
        elif isinstance(value, np.ndarray):
            changed[field.name] = value.repeat(number, 0)
    return replace(row, **changed)
