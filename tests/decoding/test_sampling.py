import math
from collections import Counter

import pytest
import torch
from tables import BOS, EOS, PAD, Table

from headloom.decoding.sampling import Truncation, _draw, sample_search
from headloom.decoding.search import NOTHING, Hypothesis

IDS = {"bos_id": BOS, "eos_id": EOS, "pad_id": PAD}


def sample(seeds: list[int], *, num: int = 3, draw_seeds: list[int] | None = None, **options) -> list[list[Hypothesis]]:
    table = Table(seeds, beam_size=num, vocab_size=options.pop("vocab_size", 9), broken=options.pop("broken", 0.0))
    arguments = {"max_lengths": [3 + seed % 7 for seed in seeds], "seeds": draw_seeds or seeds, **options}
    return sample_search(table, num_sentences=len(seeds), num_samples=num, **arguments, **IDS)


def test_what_is_drawn_does_not_depend_on_the_batch():
    """B71."""
    seeds = list(range(20))
    together = sample(seeds)
    assert together == [one for seed in seeds for one in sample([seed])]
    assert sample(seeds[::-1]) == together[::-1]
    assert sample(seeds) == together
    assert sample(seeds, draw_seeds=[seed + 100 for seed in seeds]) != together


def test_the_first_samples_are_the_same_however_many_are_drawn():
    assert [some[:2] for some in sample([1, 2, 3], num=5)] == sample([1, 2, 3], num=2)


def test_samples_have_the_log_probability_of_teacher_forcing():
    """B75: that of the model, whatever the truncation."""
    table = Table([0], beam_size=1, vocab_size=9)
    for truncation in (Truncation(), Truncation(temperature=0.5, top_k=4, top_p=0.9, min_p=0.05)):
        for seed, samples in enumerate(sample(list(range(8)), truncation=truncation)):
            for found in samples:
                assert not {PAD, BOS, EOS} & set(found.ids)
                assert found.log_probability == pytest.approx(table.log_probability(seed, found.ids), abs=1e-5)
                assert found.score == found.log_probability


@pytest.mark.parametrize("truncation", [Truncation(), Truncation(top_k=9)], ids=["inverse", "sorted"])
def test_tokens_are_drawn_as_often_as_they_are_probable(truncation):
    """Chi-squared of 4,000 draws over 6 tokens: 20.5 is passed once in a thousand times."""
    logits = torch.tensor([[-math.inf, -math.inf, 0.5, 1.0, 2.0, 0.0, -1.0, 1.5]])
    probs = logits.softmax(-1)[0].tolist()
    num = 4000
    uniform = torch.rand(num, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    counts = Counter(_draw(logits.expand(num, -1).clone(), uniform, truncation).tolist())
    assert set(counts) == {2, 3, 4, 5, 6, 7}
    assert sum((counts[i] - num * probs[i]) ** 2 / (num * probs[i]) for i in counts) < 20.5


@pytest.mark.parametrize(
    ("truncation", "left"),
    [
        (Truncation(), {0, 1, 2, 3, 4}),
        (Truncation(top_k=2), {0, 1}),
        (Truncation(top_k=99), {0, 1, 2, 3, 4}),
        (Truncation(top_p=0.5), {0}),  # 0.5 is reached by the first alone
        (Truncation(top_p=0.51), {0, 1}),
        (Truncation(top_p=1e-6), {0}),
        (Truncation(top_p=1.0), {0, 1, 2, 3, 4}),
        (Truncation(min_p=0.3), {0, 1, 2}),  # 0.15 and more
        (Truncation(min_p=1.0), {0}),
        (Truncation(temperature=1e-4), {0}),
        (Truncation(temperature=1e-40), {0}),
        (Truncation(temperature=0.5, min_p=0.3), {0, 1}),  # the temperature first: 0.5, 0.18, ... of its square
        (Truncation(top_k=4, top_p=0.8), {0, 1}),  # 0.81 of what top_k leaves
    ],
)
def test_a_truncation_leaves_the_likeliest(truncation, left):
    logits = torch.tensor([0.5, 0.29, 0.16, 0.03, 0.02]).log().expand(999, -1)
    uniform = torch.linspace(0, 1 - 1e-12, 999, dtype=torch.float64)
    assert set(_draw(logits.clone(), uniform, truncation).tolist()) == left


def test_the_limit_ends_every_sample():
    assert all(len(found.ids) < 4 for [*some] in sample(list(range(30)), max_lengths=[4] * 30) for found in some)


def test_a_row_that_is_not_finite_gives_nothing_and_disturbs_no_other():
    found = sample(list(range(30)), broken=0.1)
    flat = [hypothesis for some in found for hypothesis in some]
    assert 0 < sum(hypothesis is NOTHING for hypothesis in flat) < len(flat)
    assert found == [one for seed in range(30) for one in sample([seed], broken=0.1)]


def test_no_sentence_gives_no_sample():
    assert sample([]) == []
