"""Penalties and constraints against exhaustive search, and as properties of every search."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from tables import BOS, EOS, PAD, Table, every_output

from headloom.decoding.beam import beam_search
from headloom.decoding.constraints import Constraints
from headloom.decoding.forbidden import ForbiddenPhrases, WrittenVocabulary
from headloom.decoding.ranking import BY_PROBABILITY, LengthPenalty, Ranking
from headloom.decoding.required import RequiredPhrases
from headloom.decoding.sampling import sample_search
from headloom.decoding.search import NOTHING, Hypothesis, greedy_search

IDS = {"bos_id": BOS, "eos_id": EOS, "pad_id": PAD}
NUM = 12


def holds(ids: Sequence[int], phrase: Sequence[int]) -> bool:
    return any(list(ids[i : i + len(phrase)]) == list(phrase) for i in range(len(ids) - len(phrase) + 1))


def forbidding(*phrases: Sequence[int]) -> ForbiddenPhrases:
    """Of a vocabulary in which every id writes a word of its own, so that a phrase is its ids."""
    vocabulary = WrittenVocabulary([b" %d." % i for i in range(8)])
    return ForbiddenPhrases(vocabulary, ["".join(f" {i}." for i in phrase) for phrase in phrases])


def has_repeat(ids: Sequence[int], size: int) -> bool:
    grams = [tuple(ids[i : i + size]) for i in range(len(ids) - size + 1)]
    return len(grams) > len(set(grams))


def beam(
    num: int,
    constraints: Constraints | None,
    *,
    ranking: Ranking = BY_PROBABILITY,
    width: int = 64,
    longest: int = 5,
    best: int = 3,
) -> tuple[Table, list[list[Hypothesis]]]:
    table = Table(range(num), beam_size=width, vocab_size=5)
    found = beam_search(
        table,
        num_sentences=num,
        beam_size=width,
        max_lengths=[longest] * num,
        ranking=ranking,
        num_best=3,
        constraints=constraints,
        source_lengths=[table.source_length] * num,
        **IDS,
    )
    return table, found


@pytest.mark.parametrize("coverage", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.6, 2.0])
@pytest.mark.parametrize("form", LengthPenalty)
def test_a_wide_beam_finds_the_best_under_every_penalty(form, alpha, coverage):
    """B72: the bound that stops the search is one, whatever the penalties."""
    ranking = Ranking(alpha, form, coverage)
    table, found = beam(NUM, None, ranking=ranking, longest=4, width=16)
    for seed, hypotheses in enumerate(found):
        best = every_output(table, seed, max_length=4, ranking=ranking)[:3]
        assert [hypothesis.ids for hypothesis in hypotheses] == [ids for _, ids in best]
        assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx([score for score, _ in best], abs=1e-5)


def test_the_plain_power_divides_by_the_length_itself():
    """B72: A has 2 tokens and -2.0, B has 4 and -3.0."""
    ranking = Ranking(1.0, LengthPenalty.power)
    assert -2.0 / ranking.divisor(2) == -1.0 < -3.0 / ranking.divisor(4) == -0.75


CONSTRAINTS: dict[str, tuple[Constraints, Callable[[list[int]], bool]]] = {
    "min_length": (Constraints(min_lengths=[4] * NUM), lambda ids: len(ids) + 1 >= 4),
    "prefix": (Constraints(prefixes=[[4, 3]] * NUM), lambda ids: ids[:2] == [4, 3]),
    "forbidden": (
        Constraints(forbidden=[forbidding([3, 4], [4, 4, 3])] * NUM),
        lambda ids: not holds(ids, [3, 4]) and not holds(ids, [4, 4, 3]),
    ),
    "forbidden_word": (Constraints(forbidden=[forbidding([3])] * NUM), lambda ids: 3 not in ids),
    "no_repeat": (Constraints(no_repeat_ngram=2), lambda ids: not has_repeat(ids, 2)),
    "no_repeat_word": (Constraints(no_repeat_ngram=1), lambda ids: not has_repeat(ids, 1)),
    "required": (Constraints(required=[[[4, 3]]] * NUM), lambda ids: holds(ids, [4, 3])),
    "required_two": (
        Constraints(required=[[[4], [3, 3]]] * NUM),
        lambda ids: holds(ids, [4]) and holds(ids, [3, 3]),
    ),
    "all": (
        Constraints(
            min_lengths=[3] * NUM,
            prefixes=[[3]] * NUM,
            required=[[[4, 3]]] * NUM,
            forbidden=[forbidding([3, 3])] * NUM,
            no_repeat_ngram=2,
        ),
        lambda ids: (
            len(ids) >= 2
            and ids[:1] == [3]
            and holds(ids, [4, 3])
            and not holds(ids, [3, 3])
            and not has_repeat(ids, 2)
        ),
    ),
}


@pytest.mark.parametrize("alpha", [0.0, 1.5])
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_a_wide_beam_finds_the_best_of_what_is_allowed(name, alpha):
    constraints, allowed = CONSTRAINTS[name]
    ranking = Ranking(alpha)
    table, found = beam(NUM, constraints, ranking=ranking)
    for seed, hypotheses in enumerate(found):
        best = every_output(table, seed, max_length=5, ranking=ranking, allowed=allowed)[:3]
        assert [hypothesis.ids for hypothesis in hypotheses] == [ids for _, ids in best]
        for hypothesis in hypotheses:
            assert hypothesis.log_probability == pytest.approx(table.log_probability(seed, hypothesis.ids), abs=1e-5)


@pytest.mark.parametrize("name", CONSTRAINTS)
@pytest.mark.parametrize("kind", ["greedy", "beam", "sample"])
def test_every_search_keeps_to_what_is_allowed(name, kind):
    """Constraints travel with their hypotheses through a narrow beam; a longer output meets more of them."""
    constraints, allowed = CONSTRAINTS[name]
    if kind != "beam" and constraints.required is not None:
        pytest.skip("required phrases are for a beam")
    options = {"num_sentences": NUM, "max_lengths": [9] * NUM, "constraints": constraints, **IDS}
    if kind == "greedy":
        found = [[best] for best in greedy_search(Table(range(NUM), beam_size=1, vocab_size=6), **options)]
    elif kind == "beam":
        found = beam_search(Table(range(NUM), beam_size=3, vocab_size=6), beam_size=3, num_best=3, **options)
    else:
        table = Table(range(NUM), beam_size=4, vocab_size=6)
        found = sample_search(table, num_samples=4, seeds=list(range(NUM)), **options)
    table = Table([0], beam_size=1, vocab_size=6)
    for seed, hypotheses in enumerate(found):
        for hypothesis in hypotheses:
            assert hypothesis is not NOTHING
            assert allowed(hypothesis.ids), hypothesis
            assert hypothesis.log_probability == pytest.approx(table.log_probability(seed, hypothesis.ids), abs=1e-5)


@pytest.mark.parametrize("beam_size", [2, 5])
def test_a_phrase_is_required_of_its_sentence_only(beam_size):
    """Each sentence has its own wishes, and what it finds does not depend on its neighbours (B71)."""
    required = [[[3 + seed % 3, 4]] if seed % 2 else [] for seed in range(10)]
    forbidden = [[[6]] if seed % 3 == 0 else [] for seed in range(10)]
    prefixes = [[5, 5] if seed % 5 == 4 else [] for seed in range(10)]

    def found(seeds: list[int]) -> list[list[Hypothesis]]:
        return beam_search(
            Table(seeds, beam_size=beam_size, vocab_size=7),
            num_sentences=len(seeds),
            beam_size=beam_size,
            max_lengths=[6 + seed % 4 for seed in seeds],
            constraints=Constraints(
                required=[required[seed] for seed in seeds],
                forbidden=[forbidding(*forbidden[seed]) if forbidden[seed] else None for seed in seeds],
                prefixes=[prefixes[seed] for seed in seeds],
            ),
            **IDS,
        )

    together = found(list(range(10)))
    assert together == [one for seed in range(10) for one in found([seed])]
    for seed, [best] in enumerate(together):
        assert all(holds(best.ids, phrase) for phrase in required[seed])
        assert not any(holds(best.ids, phrase) for phrase in forbidden[seed])
        assert best.ids[: len(prefixes[seed])] == prefixes[seed]


def test_a_beam_goes_on_when_each_row_of_it_holds_what_is_required():
    """The tokens it runs over stay whole numbers, as an embedding takes them."""
    required = RequiredPhrases([[[3]]], beam_size=2, eos_id=2)
    required.advance(np.array([0, 0]), np.array([3, 3]))
    assert required.next_tokens().shape == (2, 0)
    assert required.next_tokens().dtype == np.int64


def test_what_cannot_be_had_gives_nothing():
    constraints = Constraints(required=[[[3, 4, 3, 4]]], forbidden=[forbidding([4, 3])])
    assert beam(1, constraints)[1] == [[NOTHING]]
    assert beam(1, Constraints(required=[[[3, 4, 3, 4]]]), longest=4)[1] == [[NOTHING]]
    assert beam(1, Constraints(required=[[[3, 4, 3, 4]]]), longest=5)[1][0][0].ids == [3, 4, 3, 4]


def test_a_repetition_penalty_lowers_what_was_there_and_not_the_probability_it_is_given():
    """Keskar et al. (2019), section 4.1: positive logits are divided, negative ones multiplied."""

    class Steady(Table):
        def logits(self, seed: int, prefix: tuple[int, ...]) -> list[float]:
            return [-9.0, -9.0, -1.0, 3.0, 1.6, -0.5]

    [found] = greedy_search(
        Steady([0], beam_size=1, vocab_size=6),
        num_sentences=1,
        max_lengths=[9],
        constraints=Constraints(repetition_penalty=2.0),
        **IDS,
    )
    assert found.ids[:2] == [3, 4]  # 3.0, then 1.6 beside 3.0 / 2
    assert found.ids[2:] == [3] * 6  # then 1.5 beside 0.8
    assert found.log_probability == pytest.approx(Steady([0], beam_size=1).log_probability(0, found.ids), abs=1e-5)


def test_a_prompt_counts_as_written():
    """What a language model continues: its last token is fed first, all of it counts as repeated."""
    constraints = Constraints(contexts=[[3, 4, 5, 3], [5]], no_repeat_ngram=2)
    table = Table([0, 1], beam_size=1, vocab_size=6)
    found = greedy_search(table, num_sentences=2, max_lengths=[6, 6], start_ids=[3, 5], constraints=constraints, **IDS)
    assert table.fed[0][0] in (3, 5)
    assert not found[0].ids or found[0].ids[0] != 4
    for context, best in zip(([3, 4, 5, 3], [5]), found, strict=True):
        assert not has_repeat([*context, *best.ids], 2)
