"""What an export format is, and what the gate asks of it.

To add a format, write a module beside safetensors.py with a class of the shape
of `Format`, and give it a name in `ExportFormat` (config/schema_export.py) and an
arm in formats.py. The command (command.py) asks for an obstacle before it writes, and
after it compares what `opened` answers with what the checkpoint answers
(gate.py). The common files of an export (folder.py) are written by the command.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from headloom.config.schema import TrainConfig
from headloom.work.base import Trained


@runtime_checkable
class Writer(Protocol):
    """A model that writes: an encoder-decoder translates sources, a language model continues prompts."""

    def search(self, sources: Sequence[Sequence[int]], *, beam_size: int, max_length: int) -> list[list[int]]:
        """What is written for each source: ids without bos and eos, eos included in the count of `max_length` tokens.

        A source is the ids of a line, without bos and eos: what the model reads
        beside them (eos behind a source, bos before a prompt) is added here.
        `beam_size` 1 is greedy search; from 2 on, the hypothesis of highest
        log-probability that a beam so wide finds, with no length penalty.
        An output that does not end has `max_length` - 1 ids.
        """
        ...


@runtime_checkable
class Reader(Protocol):
    """A model that reads: an encoder, with its head where it has one."""

    def outputs(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """What the model makes of each row, without padding: numbers of any shape. Rows hold all ids, specials too."""
        ...


Runtime = Writer | Reader


@runtime_checkable
class Tokenizing(Protocol):
    """A runtime whose program also has a tokenizer of its own."""

    def first_difference(self, lines: Sequence[str]) -> int | None:
        """The first of `lines` to which it gives other ids than ours; None: there is none."""
        ...


class Format(Protocol):
    """A way to write a model for another program."""

    name: str
    is_exact: bool
    """Whether that program must write the very tokens of the checkpoint; False of rounded weights."""

    def obstacle(self, config: TrainConfig) -> str | None:
        """The option that the format cannot express, as the command line has it, such as norm=deepnorm; None: none."""
        ...

    def write(self, trained: Trained, folder: Path) -> None:
        """Write the model into `folder`, which is there; nothing stands in its way."""
        ...

    def opened(self, trained: Trained, folder: Path) -> Runtime:
        """What `write` wrote, read anew by the program that it is for. `trained` gives tokenizers and sizes only."""
        ...
