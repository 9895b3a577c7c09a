"""Options of `python -m headloom.average`."""

from dataclasses import dataclass, field
from pathlib import Path

from headloom.config import rules
from headloom.errors import ConfigError


@dataclass(kw_only=True)
class AverageConfig:
    """Options of python -m headloom.average, which makes one checkpoint of several: the mean of their weights."""

    run: Path | None = None
    """Folder of a run, such as outputs/RUN, with last= or best=."""
    last: int | None = None
    """Newest checkpoints of the run to take; it must have kept as many (trainer.keep_checkpoints)."""
    best: int | None = None
    """Best checkpoints of the run to take; it must have kept as many (trainer.keep_best_checkpoints)."""
    checkpoints: list[Path] = field(default_factory=list)
    """The files to take, as in [a.pt,b.pt], in place of run."""
    output: Path | None = None
    """The checkpoint to write. null: checkpoints/average.pt of the run."""

    def __post_init__(self) -> None:
        rules.at_least("last", self.last, 1)
        rules.at_least("best", self.best, 1)
        if (self.run is None) is (not self.checkpoints):
            raise ConfigError(
                "name what to average: run=outputs/RUN with last=10 or best=5, or checkpoints=[a.pt,b.pt]"
            )
        counts = {"last": self.last, "best": self.best}
        given = [f"{option}={count}" for option, count in counts.items() if count is not None]
        if self.run is not None and len(given) != 1:
            raise ConfigError(f"run={self.run} needs one of last=10 and best=5, not {' and '.join(given) or 'none'}")
        if self.run is None and given:
            raise rules.no_effect(given[0], "checkpoints=[...]")
        if self.run is None and self.output is None:
            raise ConfigError("output is missing: name the checkpoint to write, as in output=average.pt")
        if len(set(self.checkpoints)) < len(self.checkpoints):
            raise ConfigError("checkpoints names a file twice: name each once")
