"""Which classes are taken for which, as a picture: true classes are rows, predictions columns.

Shapes: Y, X pixel rows and columns, C the three colours of a pixel.
"""

from collections.abc import Sequence

import numpy as np

from headloom.insight.attention_maps import (
    GAP,
    MARGIN,
    Pixels,
    cell_size,
    coloured,
    drawn_text,
    labels_beside,
    paste,
)

MOST_NUMBERED = 12
"""Classes up to which each cell shows its count."""


def confusion_figure(confusion: np.ndarray, names: Sequence[str]) -> Pixels:
    """uint8 of shape YXC. Colour is the share of the row's class, from 0 to 1; a class that never occurs is dark."""
    cell = cell_size(len(names)) * (3 if len(names) <= MOST_NUMBERED else 1)
    shares = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    panel_YXC = coloured(shares).repeat(cell, axis=0).repeat(cell, axis=1)
    rows_YXC = labels_beside(tuple(names), cell, side="left")
    columns_YXC = labels_beside(tuple(names), cell, side="below")
    title_YXC = drawn_text("rows: true class, columns: prediction", 13)
    left, top = MARGIN + rows_YXC.shape[1] + 4, MARGIN + title_YXC.shape[0] + GAP
    height = top + panel_YXC.shape[0] + 4 + columns_YXC.shape[0] + MARGIN
    width = max(left + panel_YXC.shape[1], MARGIN + title_YXC.shape[1]) + MARGIN
    pixels_YXC = np.full((height, width, 3), 255, np.uint8)
    paste(pixels_YXC, title_YXC, MARGIN, MARGIN)
    paste(pixels_YXC, rows_YXC, top, MARGIN)
    paste(pixels_YXC, panel_YXC, top, left)
    paste(pixels_YXC, columns_YXC, top + panel_YXC.shape[0] + 4, left)
    if len(names) <= MOST_NUMBERED:
        for row, column in np.ndindex(confusion.shape):
            count_YXC = drawn_text(str(confusion[row, column]), 11)
            y = top + row * cell + (cell - count_YXC.shape[0]) // 2
            x = left + column * cell + max(0, (cell - count_YXC.shape[1]) // 2)
            if count_YXC.shape[1] <= cell:
                paste(pixels_YXC, count_YXC, y, x)
    return pixels_YXC
