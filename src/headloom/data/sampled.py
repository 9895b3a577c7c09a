"""Batches made of what a sampler gives, with the sampler's place as theirs."""

from collections.abc import Mapping
from typing import Any, Generic, Protocol, Self, TypeVar

Given = TypeVar("Given", covariant=True)
Source = TypeVar("Source", bound="Sampler[Any]")


class Sampler(Protocol[Given]):
    """Endless choices, such as of rows, with a place that can be saved."""

    @property
    def epoch(self) -> int:
        """Epoch of the choice that comes next, from 0."""
        ...

    def __next__(self) -> Given: ...

    def state(self) -> dict[str, int]: ...

    def load_state(self, state: Mapping[str, int]) -> None:
        """Go on from `state`.

        Raises:
            CheckpointError: the state is of another text or recipe, where the place means other choices.
        """
        ...


class SampledBatches(Generic[Source]):
    """What endless training batches have in common; a subclass adds `__next__`."""

    def __init__(self, sampler: Source) -> None:
        self._sampler = sampler

    @property
    def epoch(self) -> int:
        """Epoch of the batch that comes next, from 0."""
        return self._sampler.epoch

    def state(self) -> dict[str, int]:
        """The place after the batches handed out."""
        return self._sampler.state()

    def load_state(self, state: Mapping[str, int]) -> None:
        """Go on after the batches that were handed out when `state` was taken.

        Raises:
            CheckpointError: as `Sampler.load_state`.
        """
        self._sampler.load_state(state)

    def skip(self) -> None:
        """Pass over a batch without making it."""
        next(self._sampler)

    def __iter__(self) -> Self:
        return self
