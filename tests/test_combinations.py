"""Every pair of choices of two groups in every family; tests/slow has every combination."""

from pathlib import Path

import pytest
from every_combination import FACTORS, check_everything, pairwise

from headloom import combinations
from headloom.config.schema import CHOICES

FAMILIES = list(CHOICES["model"])
CASES = list(pairwise({"family": FAMILIES, **FACTORS}))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(value) for value in case.values()))
def test_a_combination_keeps_what_all_keep(case):
    """B26 to B30, B60."""
    check_everything(case["family"], {name: value for name, value in case.items() if name != "family"})


def test_the_cases_hold_every_pair():
    factors = {"family": FAMILIES, **FACTORS}
    for one in factors:
        for other in factors:
            if one < other:
                pairs = {(case[one], case[other]) for case in CASES}
                assert len(pairs) == len(factors[one]) * len(factors[other])


def test_the_document_is_what_the_parts_say(capsys):
    """What exists, what is refused and with which words, and which kernel serves what."""
    assert combinations.main(["--check"]) == 0, capsys.readouterr().err
    text = Path(__file__).parents[1].joinpath("docs", "combinations.md").read_text(encoding="utf-8")
    for words in combinations.refusals().values():
        assert words in text
