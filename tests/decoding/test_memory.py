"""Where memory runs out. A limit of the operating system makes the allocator really refuse, in a process of its own."""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from headloom.data.tokenizer import ByteTokenizer
from headloom.decoding.memory import in_halves, is_out_of_memory
from headloom.decoding.requests import Greedy, Limits
from headloom.decoding.translator import Translator
from headloom.errors import DataError

only_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit is Linux's")
MB = 2**20
ROOM_MB = 24


def with_little_memory(work: Callable[[], bool], *, spare_mb: int) -> int:
    """The exit status of a copy of this process that runs `work` and may grow by `spare_mb`: 0 if it returns True."""
    import resource

    child = os.fork()
    if child == 0:
        status = 3
        try:
            in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (in_use + spare_mb * MB, resource.RLIM_INFINITY))
            status = 0 if work() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@only_linux
def test_work_that_memory_does_not_hold_is_done_in_halves():
    def work() -> bool:
        sizes = []

        def allocate(items: Sequence[int]) -> list[int]:
            torch.zeros(len(items) * 8 * MB, dtype=torch.uint8)
            sizes.append(len(items))
            return [item + 1 for item in items]

        done = [pair for some, results in in_halves(range(32), allocate) for pair in zip(some, results, strict=True)]
        return done == [(i, i + 1) for i in range(32)] and max(sizes) < 32

    assert with_little_memory(work, spare_mb=120) == 0


@only_linux
def test_a_single_item_that_is_too_much_is_an_error_that_says_what_to_lower():
    def work() -> bool:
        try:
            list(in_halves([1, 2], lambda items: [torch.zeros(200 * MB, dtype=torch.uint8)]))
        except DataError as error:
            return "out of memory with a single line" in str(error) and "lower decoding.max_length" in str(error)
        return False

    assert with_little_memory(work, spare_mb=100) == 0


@only_linux
def test_a_translator_splits_a_batch_that_memory_does_not_hold(make_model):
    """The same translations, and a warning."""
    # Most outputs end early, which saves time; the cache has room for all.
    model = make_model(ByteTokenizer.vocab_size, likely=[ByteTokenizer.eos_id])
    lines = ["abcdefgh"[: 1 + i % 8] * 4 for i in range(900)]

    def translated(max_tokens: int) -> list[str]:
        limits = Limits(max_length=240, max_ratio=60.0)
        options = {"search": Greedy(), "limits": limits, "max_tokens": max_tokens}
        device = torch.device("cpu")
        tokenizer = ByteTokenizer()
        return Translator(model, tokenizer, tokenizer, **options, device=device, autocast_dtype=None).translate(lines)

    expected = translated(30_000)
    warned: list[str] = []

    def work() -> bool:
        # What earlier tests freed is still this process's: it is taken, but for some room to work in.
        taken = []
        with suppress(MemoryError):
            while True:
                taken.append(bytearray(MB))
        del taken[-ROOM_MB:]
        logging.getLogger("headloom.decoding.memory").warning = lambda message, *_: warned.append(message)  # type: ignore[method-assign]
        return translated(10**9) == expected and len(warned) > 0

    assert with_little_memory(work, spare_mb=ROOM_MB) == 0


def test_other_errors_are_not_taken_for_it():
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes do not match"))

    def fail(items: Sequence[int]) -> list[int]:
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes"):
        list(in_halves([1, 2], fail))
