"""The curve of a learning-rate test as a picture."""

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from headloom.training.rate_finder import RateCurve


def draw_rate_curve(curve: RateCurve, path: Path, *, title: str) -> None:
    """Write a PNG: the loss of each update over its rate, the smoothed loss, and the rates that stand out."""
    figure = Figure(figsize=(8, 5), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot(curve.rates, curve.losses, ".", color="0.75", label="one update")
    axes.plot(curve.rates, curve.smoothed, color="C0", label="smoothed")
    for rate, name, colour in (
        (curve.steepest, "falls fastest", "C2"),
        (curve.suggestion, "suggestion", "C1"),
        (curve.lowest, "fall ends", "C3"),
    ):
        if rate is not None:
            axes.axvline(rate, color=colour, linestyle="--", linewidth=1, label=f"{name}: {rate:.2g}")
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss (nats per target)", title=title)
    axes.legend()
    figure.savefig(path, format="png")
