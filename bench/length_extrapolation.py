"""Train short, read long: the loss of a small language model by position, for every scheme and scaling.

    python bench/length_extrapolation.py [--runs outputs/length_extrapolation] [OPTION=VALUE ...]

trains conf/experiment/length_extrapolation.yaml once for each scheme (runs that are there are not trained again;
options are passed on to train.py), scores each on rows eight times as long as it has seen, and writes
docs/length_extrapolation.md and docs/length_extrapolation.png.

B rows, T position.
"""

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from headloom import build_language as build
from headloom.config.schema_position import Scaling, StretchConfig
from headloom.data.text_store import tokenize_text
from headloom.models.lm import LanguageModel
from headloom.nn.loss import IGNORE
from headloom.work.base import Trained
from headloom.work.families import load_trained
from headloom.work.language_modeling import saved_tokenizer

ROOT = Path(__file__).parents[1]
TRAINED, READ = 64, 512
FACTOR = READ / TRAINED
SCHEMES = {
    "none": [],
    "sinusoidal": [],
    "learned": [f"position.max_length={TRAINED}"],
    "rope": [],
    "alibi": [],
    "t5": [],
}
READINGS: dict[str, tuple[str, StretchConfig | None]] = {
    "none": ("none", None),
    "sinusoidal": ("sinusoidal", None),
    "learned, interpolated": ("learned", StretchConfig(max_length=READ)),
    "rope": ("rope", None),
    **{
        f"rope, {scaling.name}": ("rope", StretchConfig(scaling=scaling, factor=FACTOR))
        for scaling in (Scaling.linear, Scaling.ntk, Scaling.dynamic_ntk, Scaling.yarn)
    },
    "alibi": ("alibi", None),
    "t5": ("t5", None),
}
"""What is shown: the scheme that was trained, and how its positions are stretched for reading."""

BUCKETS = ((0, 16), (16, 64), (64, 128), (128, 256), (256, 512))
BIN = 16  # positions whose mean is one point of the plot


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=ROOT / "outputs" / "length_extrapolation")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    known, options = parser.parse_known_args()
    for scheme, own in SCHEMES.items():
        if not (known.runs / scheme / "checkpoints" / "best.pt").exists():
            command = ["train.py", "experiment=length_extrapolation", f"position={scheme}", *own, *options]
            subprocess.run([sys.executable, *command, f"hydra.run.dir={known.runs / scheme}"], cwd=ROOT, check=True)
    found = {}
    for name, (scheme, stretch) in READINGS.items():
        trained = load_trained(
            known.runs / scheme / "checkpoints" / "best.pt", device="cpu", precision="float32", position=stretch
        )
        found[name] = loss_by_position(trained)
        print(table({name: found[name]}).split("\n")[-1], flush=True)
    plot(found, known.docs / "length_extrapolation.png")
    (known.docs / "length_extrapolation.md").write_text(page(found), encoding="utf-8", newline="\n")


@torch.no_grad()
def loss_by_position(trained: Trained) -> np.ndarray:
    """Nats of the validation text's tokens at each of READ positions, over rows of READ that lie side by side."""
    config = trained.config
    config = replace(config, data=replace(config.data, max_length=READ), task=replace(config.task, stride=None))
    tokenizer = saved_tokenizer(trained.contents)
    valid = build.build_text_corpus(config.data).valid
    tokens = tokenize_text(valid, tokenizer, folder=config.data.folder / "prepared", description="valid")
    total, count = np.zeros(READ), np.zeros(READ)
    model = trained.model
    assert isinstance(model, LanguageModel)
    for batch in build.build_evaluation_batches(config, tokens, tokenizer):
        logits_BTV = model.logits(model(batch.input_BT))
        target_BT = batch.target_BT
        nll_BT = torch.nn.functional.cross_entropy(
            logits_BTV.transpose(1, 2), target_BT, reduction="none", ignore_index=IGNORE
        )
        width = target_BT.size(1)
        total[:width] += nll_BT.double().sum(0).numpy()
        count[:width] += (target_BT != IGNORE).sum(0).numpy()
    return total / count


def table(found: dict[str, np.ndarray]) -> str:
    head = ["positions", *(f"{first}-{last - 1}" for first, last in BUCKETS)]
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * len(BUCKETS)]
    for name, loss_T in found.items():
        values = (f"{loss_T[first:last].mean():.2f}" for first, last in BUCKETS)
        lines.append("| " + " | ".join([name, *values]) + " |")
    return "\n".join(lines)


def plot(found: dict[str, np.ndarray], path: Path) -> None:
    figure = Figure(figsize=(9, 5), dpi=100)
    axes = figure.add_subplot()
    middle = np.arange(BIN / 2, READ, BIN)
    for name, loss_T in found.items():
        style = "--" if ", " in name else "-"
        axes.plot(middle, loss_T.reshape(-1, BIN).mean(axis=1), style, label=name)
    axes.axvline(TRAINED, color="grey", linewidth=1)
    axes.set(xlabel="position in the row (trained on the first 64)", ylabel="nats a character", ylim=(1.5, 5))
    axes.legend(ncols=2, fontsize=8)
    figure.tight_layout()
    FigureCanvasAgg(figure).print_png(str(path))


def page(found: dict[str, np.ndarray]) -> str:
    return f"""# Train short, read long

`python bench/length_extrapolation.py` trains a character-level model (2 layers, d 64) on rows of {TRAINED} characters
of Shakespeare, once for each `position=`, and reads the validation text in rows of {READ}. Nats a character, by the
position of the character in its row:

{table(found)}

![loss by position](length_extrapolation.png)

A scheme that extrapolates stays level behind position {TRAINED}; one that makes use of the longer row falls. Where
the positions of a trained model are stretched (`rope, ...` and `learned, interpolated`, the options of `position.`
that evaluate.py and translate.py take), the factor is {FACTOR:.0f} and nothing is trained anew: `linear`, `yarn` and
the interpolated table are published with a short training at the new length (Chen et al. 2023; Peng et al. 2023),
which they miss here. `dynamic_ntk` grows with the position instead, so that the first {TRAINED} are read as they were
trained. One run each, one seed: differences below about 0.02 say nothing.
"""


if __name__ == "__main__":
    main()
