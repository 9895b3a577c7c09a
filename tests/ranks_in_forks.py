"""Ranks in forks of the test's own process: starting them costs no import."""

import os
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # DistributedDataParallel imports it: here once, and not in every fork
import torch.distributed as dist
import torch.distributed.fsdp
import torch.nn.parallel

from headloom.ranks import Ranks, joined

SECONDS = 300  # on a busy machine


def on_ranks(world_size: int, act: Callable[[Ranks], Any], *, timeout_seconds: float = 60) -> list[Any]:
    """What `act` returns on each of `world_size` ranks, or the exception it raised there."""
    with tempfile.TemporaryDirectory() as folder:

        def joining(rank: int) -> Callable[[], Any]:
            def join() -> Any:
                with joined(
                    dist.FileStore(f"{folder}/store", world_size),
                    rank=rank,
                    world_size=world_size,
                    timeout=timedelta(seconds=timeout_seconds),
                    device=torch.device("cpu"),
                ) as ranks:
                    return act(ranks)

            return join

        return in_forks([joining(rank) for rank in range(world_size)])


def in_forks(acts: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each of `acts` returns in a process of its own, or the exception it raised there; all run at once."""
    with tempfile.TemporaryDirectory() as folder:
        results = [Path(folder) / str(number) for number in range(len(acts))]
        started_at = time.monotonic()
        children = [_fork(act, result) for act, result in zip(acts, results, strict=True)]
        try:
            while (left := [child for child in children if os.waitpid(child, os.WNOHANG) == (0, 0)]) != []:
                children = left
                assert time.monotonic() - started_at < SECONDS, "the ranks wait for each other"
                time.sleep(0.01)
            children = []
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        return [pickle.loads(path.read_bytes()) if path.exists() else None for path in results]


def _fork(act: Callable[[], Any], result: Path) -> int:
    child = os.fork()
    if child:
        return child
    try:
        try:
            found = act()
        except BaseException as error:
            traceback.print_exc()
            found = error
        result.write_bytes(pickle.dumps(found))
    finally:
        os._exit(0)
