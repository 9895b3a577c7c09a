"""The mean of a run's checkpoints that is made when its training ends."""

from dataclasses import dataclass
from pathlib import Path

from headloom.errors import CheckpointError
from headloom.training.checkpoint import save_checkpoint
from headloom.training.checkpoint_average import average_checkpoints
from headloom.training.checkpoint_folder import CheckpointFolder

AVERAGE_PREFIX = "average/"
"""How the names of its scores begin in the records."""


@dataclass(frozen=True)
class FinalAverage:
    """Of the `last` newest checkpoints, or the `best` best ones; both None: none is asked for."""

    last: int | None
    best: int | None
    checkpoints: CheckpointFolder
    run_dir: Path

    @property
    def is_asked(self) -> bool:
        return self.last is not None or self.best is not None

    @property
    def path(self) -> Path:
        return self.checkpoints.average

    def is_missing(self) -> bool:
        """Whether the training ended, and was killed before the average was made and its scores were recorded."""
        last = self.checkpoints.last
        if not self.is_asked or not last.exists():
            return False
        if not self.path.exists() or self.path.stat().st_mtime_ns < last.stat().st_mtime_ns:
            return True
        return not self._is_recorded()

    def write(self) -> None:
        """Make it, where it is asked for.

        Raises:
            CheckpointError: no best checkpoint was kept.
        """
        if self.last is not None:
            save_checkpoint(self.path, average_checkpoints(self.checkpoints.newest(self.last)))
        elif self.best is not None:
            paths = self.checkpoints.best_ones(self.best)
            if not paths:
                raise CheckpointError(
                    f"trainer.average_best={self.best}: {self.checkpoints.folder} holds no best_STEP.pt, since "
                    "trainer.keep_best_checkpoints was 0 or no validation gave a number; set trainer.average_last, or "
                    "leave it out"
                )
            save_checkpoint(self.path, average_checkpoints(paths))

    def _is_recorded(self) -> bool:
        """Its scores are the last record of a run."""
        records = self.run_dir / "metrics.jsonl"
        content = records.read_bytes() if records.exists() else b""
        last_line = content.removesuffix(b"\n").rpartition(b"\n")[2]
        return content.endswith(b"\n") and f'"{AVERAGE_PREFIX}'.encode() in last_line
