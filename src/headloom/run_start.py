"""Before a run begins: whether its ranks agree, what it goes on from, and what it says of itself."""

import logging
from pathlib import Path

import torch
from torch import nn

from headloom.build_training import peak_rate
from headloom.config import saved
from headloom.config.schema import TrainConfig
from headloom.config.schema_optimizer import AdamConfig, AdamWConfig
from headloom.errors import CheckpointError, ConfigError
from headloom.insight.preflight import rate_warning, size_lines
from headloom.nn.kernel_report import kernel_report
from headloom.ranks import Ranks
from headloom.training.checkpoint_folder import CheckpointFolder
from headloom.training.optim import describe_groups

logger = logging.getLogger(__name__)


def report_start(
    config: TrainConfig,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    averaged: bool,
    world_size: int,
) -> None:
    """Log where and how it computes, how large it is, and what looks wrong with its rate.

    `dtype`: type of the matrix products, None for float32.
    """
    trainer = config.trainer
    precision = "float32" if dtype is None else str(dtype).removeprefix("torch.")
    logger.info("%s (%s), %d threads, seed %d", device, precision, torch.get_num_threads(), config.seed)
    if world_size > 1:
        logger.info("%d ranks (%s)", world_size, trainer.engine.name)
    parameters = list(model.parameters())
    is_adam = isinstance(config.optimizer, AdamConfig | AdamWConfig)
    for line in size_lines(
        num_parameters=sum(p.numel() for p in parameters),
        num_trained=sum(p.numel() for p in parameters if p.requires_grad),
        states=2 if is_adam else 1,
        averaged=averaged,
        max_tokens=trainer.max_tokens,
        num_batches=trainer.accumulation,
    ):
        logger.info("%s", line)
    num_tokens = trainer.max_tokens * trainer.accumulation  # batches of all ranks together
    warning = rate_warning(peak_rate(config), max_tokens=num_tokens) if is_adam else None
    if warning is not None:
        logger.warning("%s", warning)
    for line in kernel_report(model, device=device, dtype=dtype or torch.float32):
        logger.info("%s", line)
    for line in describe_groups(optimizer, peak=peak_rate(config)):
        logger.info("%s, %s: %s", config.optimizer.kind.name, config.schedule.kind.name, line)


def check_same_configuration(config: TrainConfig, ranks: Ranks) -> None:
    """Ranks that disagree would wait for each other, or train something that nobody asked for.

    Raises:
        ConfigError: a rank has other options.
    """
    mine = saved.to_plain(config)
    first = ranks.first_says(mine)
    differs = ranks.gathered(mine != first)
    if any(differs):
        rank = differs.index(True)
        raise ConfigError(
            f"rank {rank} was started with other options than rank 0: start all nodes with the same command"
        )


def resume_path(resume: str, run_dir: Path) -> Path | None:
    """The checkpoint that `resume` names; None for a fresh run.

    Raises:
        CheckpointError: a path was given where no checkpoint is, or `auto` where others than last.pt are.
    """
    if resume == "never":
        return None
    if resume == "auto":
        folder = CheckpointFolder(run_dir / "checkpoints", keep=0)
        if folder.last.exists():
            return folder.last
        if folder.is_empty():
            return None
        found = [*sorted(folder.folder.glob("*.pt")), *folder.numbered()]
        raise CheckpointError(
            f"resume=auto: {folder.folder} holds checkpoints but no last.pt: go on from one of them, such as "
            f"resume={found[-1]}, or choose another hydra.run.dir"
        )
    path = Path(resume).expanduser()
    if path.is_dir():
        path = path / "checkpoints" / "last.pt"
    if not path.exists():
        raise CheckpointError(f"resume={resume}: there is no {path}; give a checkpoint, a run's folder, auto or never")
    return path
