"""One training of several processes, which a launcher such as torchrun starts with the same command.

Each is a rank and learns which one from environment variables. Rank 0 decides where the run is written, and alone
writes and logs there. This module runs before torch is loaded.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from headloom.config.overrides import quoted
from headloom.config.schema import Check, TrainConfig
from headloom.config.strict import check_can_be_written, refuse_used_folder
from headloom.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

    from headloom.ranks import Ranks

SECONDS_FOR_RANK_0 = 2.0
"""What goes wrong on all ranks is said once: in this time the launcher ends the others because rank 0 has ended."""


def num_processes() -> int:
    """How many the launcher started for this training."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def own_rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _num_restarts() -> str:
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def say_of_this_rank(name: str, message: str) -> None:
    """Write an error of the command `name` to stderr, rank 0's first."""
    if num_processes() > 1 and own_rank() > 0:
        time.sleep(SECONDS_FOR_RANK_0)
        name = f"{name} (rank {own_rank()})"
    sys.stderr.write(f"{name}: {message}\n")


def refuse_what_is_for_one(config: TrainConfig, *, is_sweep: bool) -> None:
    """A sweep or a check is no training of several processes.

    Raises:
        ConfigError: it is one of these.
    """
    if is_sweep:
        raise ConfigError("-m cannot be used under torchrun: start torchrun once for each job")
    if config.check is not Check.none:
        raise ConfigError(f"check={config.check.name} is done by one process: start it without torchrun")


@dataclass(frozen=True)
class Place:
    """Where a run of several ranks is written, on all of them."""

    ranks: "Ranks"
    run_dir: Path
    resume: str
    """The option, or auto where the launcher has started everything anew: the run then goes on by itself."""


@contextmanager
def joined_ranks(config: TrainConfig, run_dir: Path) -> Iterator[Place]:
    """Inside, this process is a rank. `run_dir` counts on rank 0, where no earlier start of the run has one already.

    Raises:
        ConfigError: there is no GPU for this rank, or the folder cannot be used.
        RankLost: not all ranks came, or rank 0 could not go on.
    """
    import torch
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    from headloom.ranks import joined
    from headloom.training.precision import choose_device

    device = choose_device(config.trainer.device.name)
    if device.type == "cuda":
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        if local_rank >= torch.cuda.device_count():
            raise ConfigError(
                f"this machine has {torch.cuda.device_count()} GPUs, and process {local_rank + 1} of it has none: "
                "lower torchrun --nproc-per-node, or set trainer.device=cpu"
            )
        torch.cuda.set_device(local_rank)
    if own_rank() > 0:
        os.environ["TQDM_DISABLE"] = "1"
        form = f"%(asctime)s rank {own_rank()}: %(levelname)s %(message)s"
        logging.basicConfig(level=logging.ERROR, stream=sys.stderr, format=form)
    timeout = timedelta(seconds=config.trainer.rank_timeout)
    store, rank, world_size = next(rendezvous("env://", timeout=timeout))
    # torchrun's agent may keep one store for all its starts, with the addresses of processes that have ended.
    own = PrefixStore(f"start {_num_restarts()}", store)
    with joined(own, rank=rank, world_size=world_size, timeout=timeout, device=device) as ranks:
        run_dir, resume = ranks.first_does(_placing(store, run_dir, config.resume))
        yield Place(ranks, run_dir, resume)


def placed(overrides: Sequence[str], place: Place) -> list[str]:
    """The options of the command line, for rank 0's Hydra: in that folder, and going on where it is so."""
    folder = f"hydra.run.dir={quoted(str(place.run_dir))}"
    kept = [override for override in overrides if not override.startswith("hydra.run.dir=")]
    if place.resume == "auto":
        kept = [override for override in kept if not override.startswith("resume=")] + ["resume=auto"]
    return [*kept, folder]


def _placing(store: "Store", drawn: Path, resume: str) -> Callable[[], tuple[Path, str]]:
    """What rank 0 decides: folder and `resume`."""

    def place() -> tuple[Path, str]:
        run_dir = _kept_since_the_first_start(store, drawn)
        goes_on = _num_restarts() != "0" and (run_dir / "checkpoints" / "last.pt").exists()
        check_can_be_written("hydra.run.dir", run_dir, folder=True)
        refuse_used_folder(run_dir, "auto" if goes_on else resume)
        return run_dir, "auto" if goes_on else resume

    return place


def _kept_since_the_first_start(store: "Store", drawn: Path) -> Path:
    """`drawn`, or what was drawn before torchrun --max-restarts started all ranks anew: its agent remembers."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return drawn
    agent = getattr(store, "underlying_store", store)  # the store itself is a new one at each start
    key = f"headloom {os.environ.get('TORCHELASTIC_RUN_ID')} {Path.cwd()}"
    if agent.check([key]):
        return Path(agent.get(key).decode())
    agent.set(key, str(drawn))
    return drawn
