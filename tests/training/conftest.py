"""Batches by hand and a trainer of the smallest sizes, for every test of updates."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch

from headloom.build_model import build_model
from headloom.data.batch import Batch
from headloom.nn.loss import IGNORE
from headloom.tasks.translation import TranslationTask
from headloom.training.checkpoint_folder import CheckpointFolder
from headloom.training.guard import Guard, OnDivergence
from headloom.training.loop import Loop
from headloom.training.ranking import Ranking
from headloom.training.trainer import Trainer

V, PAD, BOS = 23, 0, 1


def words(target_lengths: Sequence[int], *, seed: int = 0, source_length: int = 5) -> Batch:
    """A batch of random tokens with targets of these lengths; 0: a row without targets."""
    generator = torch.Generator().manual_seed(seed)
    B, T = len(target_lengths), max(*target_lengths, 1)
    target_BT = torch.randint(2, V, (B, T), generator=generator)
    real_BT = torch.arange(T) < torch.tensor(target_lengths)[:, None]
    input_BT = torch.cat([torch.full((B, 1), BOS), target_BT[:, :-1]], dim=1).masked_fill(~real_BT, PAD)
    return Batch(
        source_BS=torch.randint(2, V, (B, source_length), generator=generator),
        source_allowed_BS=None,
        target_input_BT=input_BT,
        target_BT=target_BT.masked_fill(~real_BT, IGNORE),
        num_targets=sum(target_lengths),
        rows=np.arange(B),
    )


@pytest.fixture
def make_batch() -> Callable[..., Batch]:
    return words


@pytest.fixture
def make_trainer(make_config) -> Callable[..., Trainer]:
    def make(
        *,
        optimizer: Callable[[Any], torch.optim.Optimizer] = lambda model: torch.optim.SGD(model.parameters()),
        learning_rate: Callable[[int], float] = lambda step: 1.0,
        label_smoothing: float = 0.1,
        dropout: float = 0.0,
        sections: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Trainer:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            config = make_config(model={"dropout": dropout}, **sections or {})
            model = build_model(config, source_vocab_size=V, target_vocab_size=V)
        return Trainer(
            model,
            TranslationTask(label_smoothing=label_smoothing, headline="loss"),
            optimizer(model),
            learning_rate=learning_rate,
            device=torch.device("cpu"),
            **options,
        )

    return make


class Numbered:
    """Batches made from their number, four an epoch."""

    def __init__(self, make_batch) -> None:
        self.make_batch = make_batch
        self.number = 0

    @property
    def epoch(self) -> int:
        return self.number // 4

    def __next__(self):
        self.number += 1
        return self.make_batch([2, 3 + self.number % 4], seed=self.number)

    def skip(self) -> None:
        self.number += 1

    def state(self) -> dict[str, int]:
        return {"number": self.number}

    def load_state(self, state: Mapping[str, int]) -> None:
        self.number = state["number"]


@pytest.fixture
def make_loop(make_trainer, make_batch, tmp_path):
    def make(headlines: Iterator[float] | None = None, *, trainer=None, folder=tmp_path, **options) -> Loop:
        """`headlines` are the losses that validations find."""
        records: list[tuple[int, dict[str, float]]] = []
        headlines = count(1.0) if headlines is None else headlines
        trainer = trainer or make_trainer(learning_rate=lambda step: 0.01)
        of_ranking = {"keep_best": "keep", "patience": "patience", "min_steps": "min_steps"}
        ranking = {name: options.pop(option) for option, name in of_ranking.items() if option in options}
        loop = Loop(
            trainer=trainer,
            guard=Guard(trainer, OnDivergence[options.pop("policy", "stop")], spike_deviations=10.0),
            describe=lambda batch: [f"row {row}" for row in batch.rows],
            restart_records=lambda step: records.__setitem__(slice(None), [r for r in records if r[0] <= step]),
            batches=Numbered(make_batch),
            ranking=Ranking(trainer.task.higher_is_better, **ranking),
            checkpoints=CheckpointFolder(folder, keep=100),
            saved={},
            validate=lambda step: {"loss": next(headlines)},
            record=lambda step, values: records.append((step, dict(values))),
            progress=lambda step, loss, rate: None,
            **{
                "max_steps": 6,
                "accumulation": 1,
                "log_every": 1,
                "evaluate_every": None,
                "save_every": None,
            }
            | options,
        )
        loop.records = records
        return loop

    return make
