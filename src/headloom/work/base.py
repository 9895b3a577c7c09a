"""What differs between the tasks in a training run, and what a checkpoint is for its user.

A *work* is what a run trains: corpus, model and task of one family.
`training_run.TrainingRun` drives any of them. To add one, write a module beside
translation.py with a class of the shape of `Work` and the functions that use
its checkpoints, and give each `match` in families.py its arm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from headloom.config.schema import TrainConfig
from headloom.decoding.engine import Engine
from headloom.ranks import Ranks
from headloom.tasks.base import Task
from headloom.training.loop import Batches

if TYPE_CHECKING:
    from headloom.insight.dashboard import Dashboard  # loads TensorBoard: not to use a checkpoint


class Work(Protocol):
    """Data, model and task of one training run.

    Made from the configuration and, where the run goes on, the contents of its
    checkpoint: the corpus is opened, tokenizers are trained or taken from the
    checkpoint, batches are ready. `model` and `task` exist after `build`.
    """

    @property
    def model(self) -> nn.Module: ...

    @property
    def task(self) -> Task[Any, Any]: ...

    @property
    def corpus_fingerprint(self) -> str:
        """Names the training data by its content: a run goes on with the data it began with."""
        ...

    @property
    def valid_fingerprint(self) -> str:
        """Names the validation data by its content: scores on other data do not compare."""
        ...

    @property
    def train_batches(self) -> Batches: ...

    def build(self, device: torch.device, dtype: torch.dtype | None) -> None:
        """Make the model, freshly initialised and in training mode on `device`, and the task.

        Called once, after seeding. `dtype`: type of the matrix products, None for float32.
        """
        ...

    def saved(self) -> dict[str, Any]:
        """Parts of a checkpoint that do not change, such as tokenizers: plain values and bytes."""
        ...

    def validate(self, step: int, dashboard: "Dashboard", ranks: Ranks) -> Mapping[str, float]:
        """Score the validation data, the headline among the metrics, and show what there is to see.

        Of several `ranks` all call it; each may score its share (see `Ranks.share`), or all of the data. No random
        number is drawn, and the model is afterwards in the mode it was in.
        """
        ...

    def texts(self, batch: Any) -> Sequence[str]:
        """What the rows of a training batch say, a line each: for messages about it."""
        ...

    def summary(self) -> str:
        """One line for the log about data and vocabulary."""
        ...


@dataclass(frozen=True)
class Trained:
    """A checkpoint in use: its configuration, the model with the averaged weights where there are any, and its
    `contents` beside the weights (tokenizers, labels)."""

    config: TrainConfig
    model: nn.Module | None
    """None of an export, whose `engine` has the weights."""
    contents: Mapping[str, Any]
    step: int
    device: torch.device
    dtype: torch.dtype | None
    """Type of the matrix products; None: float32."""
    engine: Engine | None = None
    """What searches in place of the model."""
