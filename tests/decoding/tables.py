"""A step function without a model, and all outputs it can give."""

import itertools
import math
import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headloom.decoding.ranking import Ranking

PAD, BOS, EOS = 0, 1, 2


class Table:
    """p(next | prefix) of each sentence, drawn from a seed and the prefix: no model, no cache, any dependence.

    `rows` counts the rows of every step, `fed` lists what every row has been fed.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        *,
        beam_size: int,
        vocab_size: int = 4,
        sharpness: float = 1.5,
        broken: float = 0.0,
        source_length: int = 3,
    ) -> None:
        self.source_length = source_length
        self.vocab_size = vocab_size
        self.sharpness = sharpness
        self.broken = broken
        self.row_seeds = [seed for seed in seeds for _ in range(beam_size)]
        self.fed: list[tuple[int, ...]] = [() for _ in self.row_seeds]
        self.rows: list[int] = []

    def logits(self, seed: int, prefix: tuple[int, ...]) -> list[float]:
        draw = random.Random(repr((seed, prefix)))
        logits = [draw.gauss(0, self.sharpness) for _ in range(self.vocab_size)]
        if draw.random() < self.broken:
            logits[draw.randrange(self.vocab_size)] = draw.choice([math.nan, math.inf])
        return logits

    def step(self, token_N: Tensor) -> Tensor:
        self.rows.append(len(token_N))
        self.fed = [(*prefix, token) for prefix, token in zip(self.fed, token_N.tolist(), strict=True)]
        return torch.tensor([self.logits(seed, prefix[1:]) for seed, prefix in self._rows()])

    def attention_NS(self) -> Tensor:
        """Of the step just made."""
        return torch.tensor([self.attention(seed, prefix[1:]) for seed, prefix in self._rows()])

    def attention(self, seed: int, prefix: tuple[int, ...]) -> list[float]:
        draw = random.Random(repr(("attention", seed, prefix)))
        weights = [draw.random() ** 4 for _ in range(self.source_length)]
        return [weight / sum(weights) for weight in weights]

    def _rows(self) -> list[tuple[int, tuple[int, ...]]]:
        return list(zip(self.row_seeds, self.fed, strict=True))

    def reorder(self, index_N: Tensor) -> None:
        self.row_seeds = [self.row_seeds[i] for i in index_N.tolist()]
        self.fed = [self.fed[i] for i in index_N.tolist()]

    def log_probability(self, seed: int, ids: Sequence[int]) -> float:
        """Teacher forcing of `ids` and the eos behind them."""
        total = 0.0
        for t, token in enumerate([*ids, EOS]):
            total += torch.tensor(self.logits(seed, tuple(ids[:t]))).log_softmax(0)[token].item()
        return total


def every_output(
    table: Table,
    seed: int,
    *,
    max_length: int,
    ranking: Ranking,
    allowed: Callable[[list[int]], bool] = lambda ids: True,
) -> list[tuple[float, list[int]]]:
    """(score, ids) of all outputs of at most `max_length` tokens with eos that are allowed, best first."""
    words = [i for i in range(table.vocab_size) if i not in (PAD, BOS, EOS)]
    outputs = []
    for num_words in range(max_length):
        for ids in itertools.product(words, repeat=num_words):
            if not allowed(list(ids)):
                continue
            score = table.log_probability(seed, ids) / float(ranking.divisor(num_words + 1))
            if ranking.coverage_penalty:
                rows = [table.attention(seed, ids[:t]) for t in range(num_words + 1)]
                received = [min(sum(row[s] for row in rows), 1.0) for s in range(table.source_length)]
                score += ranking.coverage_penalty * sum(map(math.log, received))
            outputs.append((score, list(ids)))
    return sorted(outputs, key=lambda output: -output[0])
