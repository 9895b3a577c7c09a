"""Attention weights as pictures that a person can read: one figure a layer and kind, one panel a head.

A figure is an array of pixels. Only the texts are drawn by matplotlib, once for the sentence that a run
looks at: a matplotlib figure of axes and ticks takes a second to draw, and a validation shows dozens.

Legend of shapes: B batch, H heads, T query positions, S key positions; Y, X pixel rows and columns, C the
three colours of a pixel.
"""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from torch import Tensor

from headloom.insight.glyphs import MISSING, drawable, fonts

Pixels = npt.NDArray[np.uint8]

MAX_LABEL_LENGTH = 14
# In pixels:
CELL = 14  # side of a token's cell, high enough for its label
SMALLEST_PANEL = 84  # few tokens get larger cells
LARGEST_PANEL = 448  # many tokens get smaller ones, and not all of them a label
GAP = 24  # between panels, holds the name of the head
MARGIN = 12
DPI = 128  # a power of two, so that pixels / DPI * DPI is exact

# Square roots set small weights apart; the ends are fixed, so that heads, layers and steps compare.
_NORM = PowerNorm(0.5, vmin=0.0, vmax=1.0)
_COLOURS = colormaps["magma"]


def attention_figures(
    weights: Mapping[str, Tensor], *, source_pieces: Sequence[str], target_pieces: Sequence[str], sentence: int = 0
) -> Iterator[tuple[str, Pixels]]:
    """A figure for each name in `weights`, one at a time so that only one is in memory.

    `weights` is what `headloom.nn.attention.recording_attention` gives: weights_BHTS by names such as
    `encoder.0.self`, `decoder.2.self`, `decoder.2.cross`. The pieces name the positions of `sentence` as
    the model saw them: the source with its end of sentence, the target as the decoder's input, from the
    begin of sentence. Positions past the pieces are padding and are not shown.

    Yields:
        `attention/NAME` as the tag, and the figure, uint8 of shape YXC. Rows attend to columns and sum to
        1; colour is the weight, from 0 to 1 in every figure.

    Raises:
        ValueError: there are no pieces, or more of them than positions.
    """
    for name, weights_BHTS in weights.items():
        keys = target_pieces if name.startswith("decoder.") and name.endswith(".self") else source_pieces
        queries = target_pieces if name.startswith("decoder.") else source_pieces
        weights_HTS = weights_BHTS[sentence].detach().float().cpu().numpy()
        if not 0 < len(queries) <= weights_HTS.shape[1] or not 0 < len(keys) <= weights_HTS.shape[2]:
            raise ValueError(f"{name}: {len(queries)} x {len(keys)} pieces for weights of shape {weights_HTS.shape}")
        shown_HTS = weights_HTS[:, : len(queries), : len(keys)]
        yield f"attention/{name}", _figure(name, shown_HTS, tuple(queries), tuple(keys))


def _figure(name: str, weights_HTS: npt.NDArray[np.float32], queries: tuple[str, ...], keys: tuple[str, ...]) -> Pixels:
    """Heads as small multiples. Only the left panels name the queries and the lowest ones the keys."""
    num_heads = len(weights_HTS)
    num_columns = _num_columns(num_heads)
    num_rows = math.ceil(num_heads / num_columns)
    cell_height, cell_width = cell_size(len(queries)), cell_size(len(keys))
    panel_height, panel_width = cell_height * len(queries), cell_width * len(keys)
    query_labels_YXC = labels_beside(queries, cell_height, side="left")
    key_labels_YXC = labels_beside(keys, cell_width, side="below")
    title_YXC = drawn_text(f"{name}: rows attend to columns", 13)
    bar_YXC = _colour_bar()

    left = MARGIN + query_labels_YXC.shape[1] + 4
    top = MARGIN + title_YXC.shape[0] + 6
    right = left + num_columns * (panel_width + GAP)
    bottom = top + num_rows * (GAP + panel_height)
    height = max(bottom + key_labels_YXC.shape[0] + 4, top + GAP + bar_YXC.shape[0]) + MARGIN
    width = max(right + bar_YXC.shape[1], MARGIN + title_YXC.shape[1]) + MARGIN
    pixels_YXC = np.full((height, width, 3), 255, np.uint8)
    paste(pixels_YXC, title_YXC, MARGIN, MARGIN)
    paste(pixels_YXC, bar_YXC, top + GAP, right)
    for head in range(num_heads):
        row, column = divmod(head, num_columns)
        y = top + row * (GAP + panel_height) + GAP
        x = left + column * (panel_width + GAP)
        panel_YXC = coloured(weights_HTS[head]).repeat(cell_height, axis=0).repeat(cell_width, axis=1)
        paste(pixels_YXC, panel_YXC, y, x)
        paste(pixels_YXC, drawn_text(f"head {head}", 11), y - GAP + 8, x)
        if column == 0:
            paste(pixels_YXC, query_labels_YXC, y, x - 4 - query_labels_YXC.shape[1])
        if head + num_columns >= num_heads:
            paste(pixels_YXC, key_labels_YXC, y + panel_height + 4, x)
    return pixels_YXC


def paste(pixels_YXC: Pixels, part_YXC: Pixels, y: int, x: int) -> None:
    pixels_YXC[y : y + part_YXC.shape[0], x : x + part_YXC.shape[1]] = part_YXC


def coloured(weights: npt.NDArray[np.floating]) -> Pixels:
    """An array of weights with one more axis: the three colours."""
    rgba: Pixels = _COLOURS(_NORM(weights), bytes=True)
    return rgba[..., :3]


def _num_columns(num_heads: int) -> int:
    """Up to 4 heads in one row; of more, 3 or 4 a row, whichever leaves fewer places empty."""
    return num_heads if num_heads <= 4 else max((4, 3), key=lambda columns: -(-num_heads % columns))


def cell_size(num_tokens: int) -> int:
    """A cell's side in pixels."""
    return max(1, min(CELL, LARGEST_PANEL // num_tokens), math.ceil(SMALLEST_PANEL / num_tokens))


def _names(pieces: Sequence[str]) -> list[str]:
    """The label of each piece; numbered where a piece cannot be drawn, to tell the squares apart."""
    names = [drawable(piece, max_length=MAX_LABEL_LENGTH) for piece in pieces]
    return [f"{position} {name}" for position, name in enumerate(names)] if MISSING in "".join(names) else names


@functools.lru_cache(maxsize=16)  # a run looks at one sentence: its two sides, at every layer and validation
def labels_beside(pieces: tuple[str, ...], cell: int, *, side: Literal["left", "below"]) -> Pixels:
    """The pieces beside their cells: a column of right-aligned texts, or a row of upright ones."""
    length, depth = cell * len(pieces), 180
    stride = math.ceil(CELL / cell)
    width, height = (depth, length) if side == "left" else (length, depth)
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    for position, name in list(enumerate(_names(pieces)))[::stride]:
        along = (position + 0.5) / len(pieces)
        if side == "left":
            text = figure.text(1.0, 1 - along, name, ha="right", va="center_baseline")
        else:
            text = figure.text(along, 1.0, name, ha="center", va="top", rotation=90)
        text.set_parse_math(False)
        text.set_fontproperties(fonts())
        text.set_fontsize(_points(10))
    pixels_YXC = _drawn(figure)
    is_blank_YX = (pixels_YXC == 255).all(axis=2)
    if side == "left":
        used = np.flatnonzero(~is_blank_YX.all(axis=0))
        return pixels_YXC[:, used[0] :] if used.size else pixels_YXC[:, :0]
    used = np.flatnonzero(~is_blank_YX.all(axis=1))
    return pixels_YXC[: used[-1] + 1] if used.size else pixels_YXC[:0]


@functools.lru_cache(maxsize=256)
def drawn_text(text: str, size: int) -> Pixels:
    """One line of text, `size` pixels high."""
    figure = Figure(figsize=(size * len(text) / DPI, (size + 4) / DPI), dpi=DPI)
    figure.text(x=0, y=0.5, s=text, parse_math=False, fontsize=_points(size), va="center_baseline")
    pixels_YXC = _drawn(figure)
    used = np.flatnonzero((pixels_YXC < 255).any(axis=(0, 2)))
    return pixels_YXC[:, : used[-1] + 1]


@functools.cache
def _colour_bar() -> Pixels:
    """The colours from 1 at the top to 0, with the weights they stand for."""
    height, margin = 160, 8
    pixels_YXC = np.full((height + 2 * margin, 60, 3), 255, np.uint8)
    colours_Y1C = coloured((1 - np.linspace(0, 1, height)[:, None]) ** 2)
    paste(pixels_YXC, colours_Y1C.repeat(14, axis=1), margin, 0)
    for weight in (0, 0.05, 0.2, 0.5, 1):
        label_YXC = drawn_text(f"{weight}", 10)
        y = margin + round((1 - math.sqrt(weight)) * (height - 1))
        paste(pixels_YXC, label_YXC, y - label_YXC.shape[0] // 2, 20)
    return pixels_YXC


def _points(pixels: float) -> float:
    return pixels * 72 / DPI


def _drawn(figure: Figure) -> Pixels:
    canvas = FigureCanvasAgg(figure)  # not pyplot's, which would keep the figure
    canvas.draw()  # type: ignore[no-untyped-call]
    return np.array(canvas.buffer_rgba())[..., :3]  # type: ignore[no-untyped-call]
