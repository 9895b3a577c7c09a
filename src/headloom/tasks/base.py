"""What the trainer needs of a task.

A task knows a model family and what its batches mean; the trainer knows
neither. To add a task, write a module beside this one with a class of this
shape; nothing is registered.
"""

from typing import Protocol, TypeVar, runtime_checkable

from headloom.nn.loss import LossSum

Model = TypeVar("Model", contravariant=True)
Batch = TypeVar("Batch", contravariant=True)


class Task(Protocol[Model, Batch]):
    """How a model is trained and judged."""

    @property
    def headline(self) -> str:
        """The metric by which the best checkpoint is chosen, a key of the metrics of an evaluation."""
        ...

    @property
    def higher_is_better(self) -> bool:
        """Whether a higher headline is the better one."""
        ...

    def loss_sum(self, model: Model, batch: Batch) -> LossSum:
        """The loss of `batch` as a sum over its targets, in nats, with the graph to differentiate it.

        A sum, so that the trainer can divide once by the targets of the whole
        update: the update then does not depend on how it is split in batches.
        """
        ...


@runtime_checkable
class FollowsSteps(Protocol):
    """What a task has besides where its loss depends on how far the training is."""

    def at_step(self, step: int) -> None:
        """`step` updates were made: called before each."""
        ...
