"""The sentences shown at every validation."""

import html
import re

from hypothesis import given
from hypothesis import strategies as st
from tensorboard.plugin_util import markdown_to_safe_html

from headloom.insight.samples import Sample, as_markdown, as_text, sample_rows


def test_sample_rows_are_spread_over_the_split_and_always_the_same():
    assert sample_rows(1000) == [0, 100, 200, 300, 400, 500, 600, 700, 800, 900]
    assert sample_rows(1000) == sample_rows(1000)


def test_a_small_split_is_shown_whole():
    assert sample_rows(3) == [0, 1, 2]
    assert sample_rows(0) == []


def cells(samples: list[Sample]) -> list[str]:
    """The cells of the table as TensorBoard shows them."""
    found = re.findall(r"<td>(.*?)</td>", markdown_to_safe_html(as_markdown(samples)), flags=re.DOTALL)
    assert not any("<" in cell for cell in found)
    return [html.unescape(cell) for cell in found]


def test_tensorboard_shows_the_texts_as_they_are():
    hostile = Sample("a | b \\| **c** _d_ `e`", "<script>alert(1)</script> & &amp; [x](http://y)", "# 1. - $x$ ~~z~~ !")
    assert cells([hostile]) == [hostile.source, hostile.reference, hostile.translation]


@given(st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1))
def test_every_sentence_is_one_row_of_three_cells(text):
    assert len(cells([Sample(text, "r", text), Sample("a", "b", "c")])) == 6


def test_a_line_end_in_a_text_does_not_end_the_row():
    assert len(cells([Sample("a\nb", "c\r\nd", "e\rf")])) == 3


def test_the_text_has_a_block_for_each_sentence():
    assert as_text([Sample("a", "b", "c")]) == "source:      a\nreference:   b\ntranslation: c\n"
