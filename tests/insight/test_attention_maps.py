"""Pictures of attention: the right cells, readable names, no warning, nothing left in memory."""

import gc
import sys

import numpy as np
import pytest
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from torch import Tensor

from headloom.insight.attention_maps import CELL, attention_figures
from headloom.insight.glyphs import MISSING, drawable

SOURCE = [f"s{position}" for position in range(7)]
TARGET = [f"t{position}" for position in range(9)]


def weights(num_heads: int, num_queries: int, num_keys: int, *, sentences: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(sentences, num_heads, num_queries, num_keys, generator=generator).softmax(-1)


def figure(weights_BHTS: Tensor, *, name="decoder.0.cross", source=SOURCE, target=TARGET, **options) -> np.ndarray:
    figures = attention_figures({name: weights_BHTS}, source_pieces=source, target_pieces=target, **options)
    ((_, pixels_YXC),) = figures
    return pixels_YXC


def changed_box(one: np.ndarray, other: np.ndarray) -> tuple[int, int, int, int]:
    """Top, bottom, left and right of where two pictures differ."""
    rows, columns = np.nonzero((one != other).any(axis=2))
    return rows.min(), rows.max() + 1, columns.min(), columns.max() + 1


def colour(weight: float) -> list[int]:
    return list(colormaps["magma"](weight**0.5, bytes=True)[:3])


@pytest.mark.parametrize("num_heads", [1, 2, 5, 6, 8, 16])
def test_a_weight_is_the_colour_of_one_cell(num_heads):
    dark = torch.zeros(1, num_heads, len(TARGET), len(SOURCE))
    light = dark.clone()
    light[0, -1, 3, 2] = 0.49
    top, bottom, left, right = changed_box(figure(dark), figure(light))
    assert bottom - top >= CELL
    assert right - left >= CELL
    cell = figure(light)[top:bottom, left:right]
    assert (cell == colour(0.49)).all()


def test_cells_lie_with_queries_downwards_and_keys_to_the_right():
    dark = torch.zeros(1, 1, len(TARGET), len(SOURCE))
    boxes = {}
    for query, key in [(0, 0), (0, 1), (1, 0)]:
        light = dark.clone()
        light[0, 0, query, key] = 1
        boxes[query, key] = changed_box(figure(dark), figure(light))
    assert boxes[0, 1][2] == boxes[0, 0][3]
    assert boxes[1, 0][0] == boxes[0, 0][1]


def test_every_head_has_its_panel():
    dark = torch.zeros(1, 6, len(TARGET), len(SOURCE))
    corners = set()
    for head in range(6):
        light = dark.clone()
        light[0, head, 0, 0] = 1
        top, _, left, _ = changed_box(figure(dark), figure(light))
        corners.add((top, left))
    assert len(corners) == 6
    assert len({top for top, _ in corners}) == 2


@pytest.mark.parametrize(
    ("name", "shape", "named_by"),
    [
        ("encoder.0.self", (7, 7), {"source"}),
        ("decoder.0.self", (9, 9), {"target"}),
        ("decoder.0.cross", (9, 7), {"source", "target"}),
    ],
)
def test_the_axes_carry_the_pieces_of_their_side(name, shape, named_by):
    plain = figure(weights(2, *shape), name=name)
    renamed = {
        "source": figure(weights(2, *shape), name=name, source=["x", *SOURCE[1:]]),
        "target": figure(weights(2, *shape), name=name, target=["x", *TARGET[1:]]),
    }
    assert {side for side, other in renamed.items() if other.shape != plain.shape or (other != plain).any()} == named_by


def test_padding_is_not_shown():
    whole = weights(2, len(TARGET), len(SOURCE))
    padded = torch.nn.functional.pad(whole, (0, 5, 0, 3), value=0.7)
    assert (figure(padded) == figure(whole)).all()


def test_the_sentence_asked_for_is_shown():
    batch = weights(2, len(TARGET), len(SOURCE), sentences=3)
    assert (figure(batch, sentence=1) == figure(batch[1:2])).all()
    assert (figure(batch, sentence=1) != figure(batch)).any()


def test_half_precision_weights_are_shown():
    assert figure(weights(2, 9, 7).bfloat16()).shape == figure(weights(2, 9, 7)).shape


@pytest.mark.parametrize("source", [[], [*SOURCE, "one too many"]])
def test_pieces_that_the_weights_have_no_place_for_are_refused(source):
    with pytest.raises(ValueError, match=r"decoder.0.cross: 9 x \d pieces for weights of shape"):
        figure(weights(2, 9, 7), source=source)


def test_pieces_of_any_script_and_markup_are_drawn_without_a_warning():
    """Warnings are errors here: matplotlib warns of a glyph that its fonts lack, and reads $...$ as mathematics."""
    source = ["$x$", "$\\frac{", "日本", "\n", "\udce9", "", "שלום"]
    target = ["<s>", "\U0001f600", "▁" * 40, "\0", "e\u0301", "_{^", "مرحبا", "%s", "क्ष"]
    assert figure(weights(2, 9, 7), source=source, target=target).std() > 0


def test_a_long_sentence_is_shown_whole_in_smaller_cells():
    pieces = [f"p{position}" for position in range(300)]
    shown = figure(weights(4, 300, 300), source=pieces, target=pieces)
    assert max(shown.shape) < 4000


def test_figures_leave_nothing_behind():
    for _ in attention_figures(
        {f"decoder.{layer}.cross": weights(4, 9, 7) for layer in range(6)}, source_pieces=SOURCE, target_pieces=TARGET
    ):
        assert "matplotlib.pyplot" not in sys.modules
    gc.collect()
    assert [thing for thing in gc.get_objects() if type(thing) is Figure] == []


def test_a_name_is_cut_escaped_or_replaced_where_it_cannot_be_drawn():
    assert drawable("▁Haus", max_length=14) == "▁Haus"
    assert drawable("a\nb\0", max_length=14) == "a\\nb\\x00"
    assert drawable("Donaudampfschiff", max_length=8) == "Donauda…"
    assert drawable("a\udce9", max_length=14) == "a" + r"\udce9"
    assert drawable("\U0010fffd", max_length=14) in (MISSING, r"\U0010fffd")
