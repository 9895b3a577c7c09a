"""When memory runs out: the work is split in halves and goes on."""

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from headloom.errors import DataError

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on a GPU or on a CPU, whose allocator raises a plain RuntimeError."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def in_halves(
    items: Sequence[Item], work: Callable[[Sequence[Item]], Sequence[Result]]
) -> Iterator[tuple[Sequence[Item], Sequence[Result]]]:
    """`work(items)`; where it runs out of memory, of both halves of `items`, and so on.

    Raises:
        DataError: a single item is too much.
    """
    waiting = [items]
    while waiting:
        some = waiting.pop(0)
        try:
            results = work(some)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            reason = str(error).split("\n", 1)[0]
            if len(some) == 1:
                raise DataError(
                    f"out of memory with a single line ({reason}): lower decoding.max_length, or how many outputs grow "
                    "side by side (decoding.beam_size, num_best or num_candidates)"
                ) from error
        else:
            yield some, results
            continue
        # Outside of the `except` block, whose traceback holds what filled the memory.
        middle = len(some) // 2
        logger.warning(
            "out of memory with %d lines at once (%s): going on with %d", len(some), reason, len(some) - middle
        )
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        waiting[:0] = [some[:middle], some[middle:]]
