"""Scores by the length of the source, as a picture."""

import io
from collections.abc import Mapping, Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from headloom.insight.glyphs import drawable, fonts


def length_plot(labels: Sequence[str], values: Mapping[str, Mapping[str, Sequence[float]]]) -> bytes:
    """A PNG: a panel for each score, a line for each system, the lengths called `labels` from left to right.

    `values` is by score, then by system, as many as there are labels; a system called "" alone has no legend.
    """
    figure = Figure(figsize=(1.5 + 0.7 * len(labels) + 2.5, 1.9 * len(values)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(values), 1, sharex=True, squeeze=False)[:, 0]
    for panel, (score, systems) in zip(panels, values.items(), strict=True):
        for name, heights in systems.items():
            panel.plot(range(len(labels)), heights, marker="o", markersize=4, label=drawable(name, max_length=30))
        panel.set_ylabel(score)
        panel.grid(alpha=0.3)
    panels[-1].set_xticks(range(len(labels)), labels)
    panels[-1].set_xlabel("words of the source, and pairs")
    if any(values[score].keys() != {""} for score in values):
        panels[0].legend(prop=fonts(), fontsize="small")
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()
