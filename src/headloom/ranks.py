"""The processes that train together, and what they tell each other.

Each is a *rank*, with a number from 0. What all of them must do alike (stop,
save, call a model the best) is decided from values that all of them have:
summed over the ranks, or rank 0's.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from headloom.errors import RankLost

T = TypeVar("T")

FOREVER = timedelta(days=30)
LOST = ("gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe", "Socket", "TCPStore")
"""What PyTorch's message about another process that does not answer has in it; it has no type of its own."""


class Ranks:
    """The ranks of this training. This base is a process alone: it sums over itself and waits for nobody."""

    rank = 0
    world_size = 1
    control: dist.ProcessGroup | None = None
    """The ranks, as PyTorch names them, on the hosts."""

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which alone writes files and logs."""
        return self.rank == 0

    def share(self, items: Iterable[T]) -> Iterator[T]:
        """This rank's items: every `world_size`-th. Together the ranks have each item once."""
        return islice(items, self.rank, None, self.world_size)

    def in_order(self, own: Sequence[T]) -> list[T]:
        """What all ranks made of their `share`, in the order of the items, on every rank."""
        return list(own)

    def all_sums(self, *values: int) -> tuple[int, ...]:
        """The sum of each value over the ranks."""
        return values

    def all_max(self, value: int) -> int:
        """The largest of the ranks."""
        return value

    def add_up(self, *sums: Tensor) -> None:
        """Make each tensor, in place, its sum over the ranks. No value is read from the device."""

    def first_says(self, value: T) -> T:
        """Rank 0's value, on every rank."""
        return value

    def gathered(self, value: T) -> list[T]:
        """The value of each rank, on every rank."""
        return [value]

    def first_does(self, act: Callable[[], T]) -> T:
        """What `act` returns on rank 0, which alone calls it; the others wait. Where it raises, all raise."""
        return act()

    @contextmanager
    def first_goes_first(self) -> Iterator[None]:
        """The others enter the block when rank 0 has left it: what it prepares on disk is there for them.

        They wait as long as it takes.
        """
        yield

    @contextmanager
    def watching(self) -> Iterator[None]:
        """In the block, PyTorch's error about a rank that is gone becomes `RankLost`."""
        yield


ALONE = Ranks()


class Group(Ranks):
    """Several ranks, joined through `torch.distributed`.

    `control` is a gloo group: a decision never waits for a GPU. No wait but
    that of `first_goes_first` is longer than `timeout`.

    Raises (every method):
        RankLost: another rank ended, or did not answer in time.
    """

    def __init__(self, store: Store, control: dist.ProcessGroup, *, timeout: timedelta) -> None:
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self._store = store
        self.control = control
        self._timeout = timeout
        self._num_turns = 0

    def in_order(self, own: Sequence[T]) -> list[T]:
        parts = self.gathered(list(own))
        merged: list[T] = []
        for place in range(max(map(len, parts))):
            merged += [part[place] for part in parts if place < len(part)]
        return merged

    def all_sums(self, *values: int) -> tuple[int, ...]:
        return self._reduced(values, dist.ReduceOp.SUM)

    def all_max(self, value: int) -> int:
        return self._reduced((value,), dist.ReduceOp.MAX)[0]

    def _reduced(self, values: Sequence[int], how: dist.ReduceOp.RedOpType) -> tuple[int, ...]:
        numbers = torch.tensor(values, dtype=torch.int64)
        with self.watching():
            dist.all_reduce(numbers, how, group=self.control)
        return tuple(numbers.tolist())

    def add_up(self, *sums: Tensor) -> None:
        together = torch.cat([one.double().flatten() for one in sums])  # a count below 2^53 is exact
        with self.watching():
            dist.all_reduce(together)
        for own, whole in zip(sums, torch.split(together, [one.numel() for one in sums]), strict=True):
            own.copy_(whole.view_as(own))

    def first_says(self, value: T) -> T:
        said = [value]
        with self.watching():
            dist.broadcast_object_list(said, src=0, group=self.control, device=torch.device("cpu"))
        return said[0]

    def gathered(self, value: T) -> list[T]:
        parts: list[T | None] = [None] * self.world_size
        with self.watching():
            dist.all_gather_object(parts, value, group=self.control)
        return parts  # type: ignore[return-value]

    def first_does(self, act: Callable[[], T]) -> T:
        result: T | None = None
        failure = ""
        if self.is_first:
            try:
                result = act()
            except Exception as error:
                self.first_says((None, f"{type(error).__name__}: {error}"))
                raise
        result, failure = self.first_says((result, failure))
        if failure:
            raise RankLost(f"rank 0 could not go on: {failure}")
        return result  # type: ignore[return-value]

    @contextmanager
    def first_goes_first(self) -> Iterator[None]:
        self._num_turns += 1
        key = f"turn {self._num_turns}"
        if self.is_first:
            try:
                yield
            except BaseException:
                self._store.set(key, "failed")
                raise
            self._store.set(key, "done")
            return
        with self.watching():
            self._store.wait([key], FOREVER)
            outcome = self._store.get(key)
        if outcome != b"done":
            raise RankLost("rank 0 could not go on: its message says why")
        yield

    @contextmanager
    def watching(self) -> Iterator[None]:
        try:
            yield
        except RankLost:
            raise
        except RuntimeError as error:
            if not any(word in str(error) for word in LOST):
                raise
            raise RankLost(
                f"rank {self.rank}: another rank ended, or did not answer for {self._timeout.total_seconds():g} s "
                "(trainer.rank_timeout); its own message says why. Go on from the last checkpoint with resume=auto"
            ) from error


@contextmanager
def joined(store: Store, *, rank: int, world_size: int, timeout: timedelta, device: torch.device) -> Iterator[Group]:
    """Inside, this process is a rank of a group that meets at `store`.

    `device`: where the ranks compute; on GPUs gradients go through NCCL.

    Raises:
        RankLost: not all of them came.
    """
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
        control = dist.group.WORLD if device.type == "cpu" else dist.new_group(backend="gloo", timeout=timeout)
    except RuntimeError as error:
        raise RankLost(
            f"rank {rank}: not all of the {world_size} ranks came within {timeout.total_seconds():g} s "
            "(trainer.rank_timeout)"
        ) from error
    assert control is not None
    try:
        yield Group(store, control, timeout=timeout)
    finally:
        dist.destroy_process_group()
