"""Every combination of parts, family by family: minutes. The fast tests take every pair of choices."""

import itertools

import pytest
from every_combination import FACTORS, check_everything

from headloom.config.schema import CHOICES


@pytest.mark.parametrize("norm", FACTORS["norm"])
@pytest.mark.parametrize("position", FACTORS["position"])
@pytest.mark.parametrize("family", list(CHOICES["model"]))
def test_a_combination_keeps_what_all_keep(family, position, norm):
    for feed_forward, attention in itertools.product(FACTORS["feed_forward"], FACTORS["attention"]):
        choices = {"position": position, "norm": norm, "feed_forward": feed_forward, "attention": attention}
        check_everything(family, {**choices, "num_kv_heads": 2, "stochastic_depth": 0.3})
