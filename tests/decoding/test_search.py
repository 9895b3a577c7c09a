import math

import numpy as np
import pytest
import torch
from tables import BOS, EOS, PAD, Table, every_output

from headloom.decoding.beam import beam_search
from headloom.decoding.ranking import Ranking
from headloom.decoding.search import NOTHING, Hypothesis, greedy_search


def search(
    table: Table,
    num_sentences: int,
    *,
    beam_size: int,
    max_lengths: list[int] | int,
    alpha: float = 0.0,
    num_best: int = 1,
) -> list[list[Hypothesis]]:
    lengths = [max_lengths] * num_sentences if isinstance(max_lengths, int) else max_lengths
    return beam_search(
        table,
        num_sentences=num_sentences,
        beam_size=beam_size,
        bos_id=BOS,
        eos_id=EOS,
        pad_id=PAD,
        max_lengths=lengths,
        ranking=Ranking(alpha),
        num_best=num_best,
    )


@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.6, 2.0])
@pytest.mark.parametrize("vocab_size", [4, 5])
def test_a_wide_beam_finds_what_exhaustive_search_finds(alpha, vocab_size):
    """B72: the search stops only when nothing better can come, whatever the penalty's sign; the length counts eos."""
    seeds = range(20)
    num_best = 3
    table = Table(seeds, beam_size=16, vocab_size=vocab_size)
    found = search(table, len(seeds), beam_size=16, max_lengths=4, alpha=alpha, num_best=num_best)
    for seed, hypotheses in zip(seeds, found, strict=True):
        best = every_output(table, seed, max_length=4, ranking=Ranking(alpha))[:num_best]
        assert [hypothesis.ids for hypothesis in hypotheses] == [ids for _, ids in best]
        assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx([score for score, _ in best], abs=1e-5)


@pytest.mark.parametrize(
    ("alpha", "winner", "score"),
    [(0.0, "short", -2.0), (1.0, "short", -2.0 / (7 / 6)), (2.0, "long", -3.0 / (9 / 6) ** 2)],
)
def test_the_penalty_is_that_of_wu_et_al(alpha, winner, score):
    """B72: A has 2 tokens and log-probability -2, B has 4 and -3."""

    class TwoOutputs(Table):
        def logits(self, seed: int, prefix: tuple[int, ...]) -> list[float]:
            p = {(): {3: math.exp(-2.0), 4: math.exp(-3.0)}, (3,): {EOS: 1.0}, (4,): {4: 1.0}, (4, 4): {4: 1.0}}
            chances = p.get(prefix, {EOS: 1.0})
            rest = 1 - sum(chances.values())  # on pad, which is never produced
            return [math.log(max(chances.get(i, rest if i == PAD else 0.0), 1e-30)) for i in range(5)]

    [[found]] = search(TwoOutputs([0], beam_size=2, vocab_size=5), 1, beam_size=2, max_lengths=10, alpha=alpha)
    assert found.ids == ([3] if winner == "short" else [4, 4, 4])
    assert found.score == pytest.approx(score)


def test_a_larger_penalty_never_shortens_the_winner():
    """B72: positive values favour long outputs."""
    lengths = []
    for alpha in (-2.0, -0.5, 0.0, 0.5, 1.0, 2.0, 4.0):
        found = search(Table(range(20), beam_size=32, vocab_size=5), 20, beam_size=32, max_lengths=5, alpha=alpha)
        lengths.append([len(best.ids) for [best] in found])
    assert (np.diff(np.array(lengths), axis=0) >= 0).all()
    assert lengths[0] != lengths[-1]


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_beam_of_one_takes_the_most_probable_token_each_time(alpha):
    """B74: token by token, nothing behind the first eos, pad and bos never, eos only where it is the most probable."""
    seeds = range(30)
    table = Table(seeds, beam_size=1, vocab_size=6)
    for seed, [found] in zip(seeds, search(table, 30, beam_size=1, max_lengths=12, alpha=alpha), strict=True):
        ids: list[int] = []
        while len(ids) < 11:
            logits = table.logits(seed, tuple(ids))
            token = max(range(2, 6), key=lambda i: logits[i])
            if token == EOS:
                break
            ids.append(token)
        assert found.ids == ids
        assert found.log_probability == pytest.approx(table.log_probability(seed, ids), abs=1e-5)
        assert found.score == pytest.approx(found.log_probability / ((5 + len(ids) + 1) / 6) ** alpha)


def test_an_eos_outside_the_best_k_ends_nothing():
    """B74: with a beam of 2 an eos that is third everywhere is taken only at the limit."""

    class ThirdIsEos(Table):
        def logits(self, seed: int, prefix: tuple[int, ...]) -> list[float]:
            return [-9.0, -9.0, 1.0, 3.0, 2.9]

    [[found]] = search(ThirdIsEos([0], beam_size=2, vocab_size=5), 1, beam_size=2, max_lengths=6)
    assert found.ids == [3] * 5


@pytest.mark.parametrize(("beam_size", "alpha"), [(1, 1.0), (2, 0.0), (4, -0.5), (4, 1.0)])
def test_a_sentence_finds_the_same_alone_and_among_others(beam_size, alpha):
    """B71: batches of 1, 7 and 50, with neighbours of very different lengths."""
    seeds = list(range(50))
    max_lengths = [1 + 37 * seed % 24 for seed in seeds]
    options = {"beam_size": beam_size, "alpha": alpha, "num_best": min(4, beam_size)}
    whole = search(Table(seeds, beam_size=beam_size, vocab_size=7), 50, max_lengths=max_lengths, **options)
    for size in (1, 7):
        pieces = []
        for start in range(0, 50, size):
            some = seeds[start : start + size]
            table = Table(some, beam_size=beam_size, vocab_size=7)
            pieces += search(table, len(some), max_lengths=max_lengths[start : start + size], **options)
        assert pieces == whole


@pytest.mark.parametrize("beam_size", [1, 3])
def test_the_log_probability_is_that_of_teacher_forcing(beam_size):
    """B75: the tokens and the eos behind them; a forced eos counts at its own probability."""
    seeds = range(20)
    table = Table(seeds, beam_size=beam_size, vocab_size=6)
    found = search(table, 20, beam_size=beam_size, max_lengths=5, alpha=0.7, num_best=beam_size)
    assert any(len(hypothesis.ids) == 4 for hypotheses in found for hypothesis in hypotheses)
    for seed, hypotheses in zip(seeds, found, strict=True):
        assert len(hypotheses) == beam_size
        for hypothesis in hypotheses:
            assert hypothesis.log_probability == pytest.approx(table.log_probability(seed, hypothesis.ids), abs=1e-5)


def test_hypotheses_are_distinct_and_the_best_comes_first():
    found = search(Table(range(30), beam_size=4, vocab_size=6), 30, beam_size=4, max_lengths=8, alpha=1.0, num_best=4)
    for hypotheses in found:
        assert len({tuple(hypothesis.ids) for hypothesis in hypotheses}) == 4
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert all(not {PAD, BOS, EOS} & set(hypothesis.ids) for hypothesis in hypotheses)


def test_the_best_hypothesis_does_not_depend_on_how_many_are_asked_for():
    results = [
        search(Table(range(30), beam_size=4, vocab_size=6), 30, beam_size=4, max_lengths=8, alpha=1.0, num_best=n)
        for n in (1, 4)
    ]
    assert [one[0] for one in results[0]] == [four[0] for four in results[1]]


@pytest.mark.parametrize("beam_size", [1, 3])
def test_ended_sentences_leave_the_batch(beam_size):
    """B109: rows per step fall with the sentences still running, and each row belongs to one of them."""
    max_lengths = [2, 9, 4]

    class NeverEnds(Table):
        def logits(self, seed: int, prefix: tuple[int, ...]) -> list[float]:
            return [-9.0, -9.0, -9.0, 3.0 + seed, 2.0, 1.0, 0.0]

    table = NeverEnds([0, 1, 2], beam_size=beam_size, vocab_size=7)
    found = search(table, 3, beam_size=beam_size, max_lengths=max_lengths)
    assert [len(best.ids) for [best] in found] == [1, 8, 3]
    assert table.rows == [3 * beam_size] * 2 + [2 * beam_size] * 2 + [1 * beam_size] * 5


@pytest.mark.parametrize(("alpha", "steps"), [(0.0, 2), (-1.0, 2), (1.0, 4)])
def test_a_sentence_stops_as_soon_as_nothing_better_can_come(alpha, steps):
    """B74: an output of 12 tokens is worth waiting for while a living hypothesis has -2.4, not when it has -3.3."""

    class Falling(Table):
        def logits(self, seed: int, prefix: tuple[int, ...]) -> list[float]:
            chances = [0.6, 0.39, 0.01] if prefix else [0.01, 0.6, 0.39]  # eos, 3, 4
            return [-99.0, -99.0, *map(math.log, chances)]

    table = Falling([0], beam_size=2, vocab_size=5)
    [[found]] = search(table, 1, beam_size=2, max_lengths=12, alpha=alpha)
    assert found.ids == [3]
    assert len(table.rows) == steps


@pytest.mark.parametrize("beam_size", [1, 4])
def test_logits_that_are_not_finite_end_a_search(beam_size):
    """A hypothesis dies of them; a sentence of nothing else gets the empty hypothesis; neighbours see nothing of it."""
    clean = search(Table(range(8), beam_size=beam_size, vocab_size=6), 8, beam_size=beam_size, max_lengths=9)

    class Ill(Table):
        def logits(self, seed: int, prefix: tuple[int, ...]) -> list[float]:
            bad = {100: [math.nan] * 6, 101: [0.0, 0.0, 0.0, math.inf, 0.0, 0.0], 102: [-math.inf] * 6}
            return bad.get(seed) or super().logits(seed, prefix)

    seeds = [0, 1, 100, 2, 3, 101, 102, 4, 5, 6, 7]
    table = Ill(seeds, beam_size=beam_size, vocab_size=6)
    found = search(table, len(seeds), beam_size=beam_size, max_lengths=9)
    assert [found[i] for i in (2, 5, 6)] == [[NOTHING]] * 3
    assert [found[i] for i in (0, 1, 3, 4, 7, 8, 9, 10)] == clean
    assert len(table.rows) <= 9


def test_a_beam_goes_round_the_prefixes_whose_logits_are_not_finite():
    found = search(Table(range(40), beam_size=4, vocab_size=6, broken=0.3), 40, beam_size=4, max_lengths=9)
    table = Table(range(40), beam_size=4, vocab_size=6, broken=0.3)
    usable = [(seed, best) for seed, [best] in enumerate(found) if best != NOTHING]
    assert 5 < len(usable) < 40
    for seed, best in usable:
        assert best.log_probability == pytest.approx(table.log_probability(seed, best.ids), abs=1e-5)


def test_a_token_of_probability_zero_is_not_produced():
    class OnlyEos(Table):
        def logits(self, seed: int, prefix: tuple[int, ...]) -> list[float]:
            return [0.0, 0.0, 0.0, -math.inf, -math.inf]

    [found] = search(OnlyEos([0], beam_size=3, vocab_size=5), 1, beam_size=3, max_lengths=9, num_best=3)
    assert [hypothesis.ids for hypothesis in found] == [[]]


@pytest.mark.parametrize("beam_size", [1, 3])
def test_equal_logits_give_the_lowest_ids(beam_size):
    class Flat(Table):
        def logits(self, seed: int, prefix: tuple[int, ...]) -> list[float]:
            return [0.0, 0.0, -1.0 if len(prefix) < 3 else 9.0, *[0.0] * (self.vocab_size - 3)]

    for vocab_size in (6, 1000):
        found = search(Flat([0, 1], beam_size=beam_size, vocab_size=vocab_size), 2, beam_size=beam_size, max_lengths=9)
        assert found[0] == found[1]
        if beam_size == 1:
            assert found[0][0].ids == [3, 3, 3]


def test_no_sentence_gives_no_hypothesis():
    assert search(Table([], beam_size=3), 0, beam_size=3, max_lengths=[]) == []
    assert search(Table([], beam_size=1), 0, beam_size=1, max_lengths=[]) == []


def test_greedy_search_and_a_beam_of_one_are_one():
    options = {"num_sentences": 9, "bos_id": BOS, "eos_id": EOS, "pad_id": PAD, "ranking": Ranking(1.0)}
    lengths = torch.tensor([5] * 9)
    greedy = greedy_search(Table(range(9), beam_size=1), max_lengths=lengths, **options)
    beam = beam_search(Table(range(9), beam_size=1), max_lengths=lengths, beam_size=1, **options)
    assert [[hypothesis] for hypothesis in greedy] == beam


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_best": 3}, r"num_best \(3\)"),
        ({"beam_size": 0}, r"beam_size \(0\)"),
        ({"max_lengths": [3, 0]}, "holds 0"),
        ({"max_lengths": [3]}, "one length each"),
    ],
)
def test_arguments_that_make_no_search_are_refused(change, words):
    arguments = {"beam_size": 2, "max_lengths": [3, 3], **change}
    with pytest.raises(ValueError, match=words):
        search(Table([0, 1], beam_size=2), 2, **arguments)


def test_the_divisor_is_one_for_a_single_token():
    assert Ranking(0.7).divisor(1) == 1.0
