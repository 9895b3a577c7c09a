"""Scores of translations for evaluate.py: of all lines, by the length of the source, as tables and files.

Loads no torch. A row of the table by length is a mapping: `shortest` and `longest` source in words (None: no limit),
`num_pairs`, and each score.
"""

import gzip
import importlib.metadata
import importlib.util
import logging
import sys
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from headloom import metrics
from headloom.data.files import GZIP, read_lines, written_beside
from headloom.errors import ConfigError, DataError
from headloom.work.results_file import write_results

Row = dict[str, Any]
Loss = Callable[[np.ndarray], float]
"""Nats per target token of some rows of what is evaluated."""


@dataclass(frozen=True)
class Texts:
    """Lines that belong together; `sources` may be unknown."""

    hypotheses: Sequence[str]
    references: Sequence[str]
    sources: Sequence[str] | None


def lines_of(path: Path) -> list[str]:
    """The lines of a file, plain or .gz, all of them in memory.

    Raises:
        DataError: it cannot be read, is not UTF-8 or has no line.
    """
    try:
        with path.open("rb") as stream:  # once, since it may be a pipe
            is_packed = stream.peek(2).startswith(GZIP)
            lines = list(read_lines(gzip.GzipFile(fileobj=stream) if is_packed else stream, name=str(path)))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged and cannot be unpacked ({error}); fetch it again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    if not lines:
        raise DataError(f"{path} is empty; it must hold at least one line")
    return lines


def check_equal_numbers(path: Path, lines: Sequence[str], other: Path | str, other_lines: Sequence[str]) -> None:
    """B06: nothing is cut to the shorter one.

    Raises:
        DataError: the two differ in number.
    """
    if len(lines) != len(other_lines):
        raise DataError(
            f"{path} has {len(lines):,} lines and {other} {len(other_lines):,}: "
            "line n of one must belong to line n of the other"
        )


def add_scores(
    results: dict[str, Any], texts: Texts, *, longest: Sequence[int], comet: str | None, loss: Loss | None = None
) -> None:
    """What is not in `results` yet: `comet` (0 to 1, mostly) with its signature, and the rows `by_source_length`."""
    learned = comet_scores(comet, texts) if comet is not None else None
    if learned is not None:
        results["comet"] = float(learned.mean())
        results["signatures"]["comet"] = f"model:{comet}|version:{importlib.metadata.version('unbabel-comet')}"
    results["by_source_length"] = by_source_length(texts, longest, loss, learned) if longest else []


def by_source_length(
    texts: Texts, longest: Sequence[int], loss: Loss | None = None, learned: np.ndarray | None = None
) -> list[Row]:
    """The scores of the lines whose sources have at most `longest[0]` words, of those up to `longest[1]`, and so on.

    A length that no source has gets no row; without sources there are none.
    """
    if texts.sources is None:
        return []
    place = np.searchsorted(longest, [len(source.split()) for source in texts.sources])
    found: list[Row] = []
    for i in range(len(longest) + 1):
        rows = np.flatnonzero(place == i)
        if not len(rows):
            continue
        row: Row = {
            "shortest": longest[i - 1] + 1 if i else 0,
            "longest": longest[i] if i < len(longest) else None,
            "num_pairs": len(rows),
        }
        if loss is not None:
            row["loss"] = loss(rows)
        scores = metrics.translation_scores(
            *([lines[j] for j in rows.tolist()] for lines in (texts.hypotheses, texts.references))
        )
        row |= {name: score.value for name, score in scores.items()}
        if learned is not None:
            row["comet"] = float(learned[rows].mean())
        found.append(row)
    return found


def require_comet() -> None:
    """
    Raises:
        ConfigError: the package is not installed.
    """
    if importlib.util.find_spec("comet") is None:
        raise ConfigError("comet needs the package unbabel-comet: install headloom[comet], or leave comet out")


@cache
def _comet_model(name: str) -> Any:
    require_comet()
    from comet import download_model, load_from_checkpoint

    for chatty in ("comet", "pytorch_lightning"):  # about devices that are not there, and services to subscribe to
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        return load_from_checkpoint(name if Path(name).is_file() else download_model(name))
    except Exception as error:  # it raises whatever its own packages do, and plain Exception
        raise ConfigError(
            f"comet={name} is not a model that can be had here ({error}): fetch it where there is a network, or name "
            "its .ckpt file"
        ) from error


def comet_scores(name: str, texts: Texts) -> np.ndarray:
    """A score for each line, by a COMET model (Rei et al. 2020) that reads source, translation and reference.

    Raises:
        ConfigError: the package or the model is not there.
    """
    assert texts.sources is not None, "EvaluateConfig asks for them"
    import torch

    samples = [
        {"src": source, "mt": hypothesis, "ref": reference}
        for source, hypothesis, reference in zip(texts.sources, texts.hypotheses, texts.references, strict=True)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its packages complain of each other
        found = _comet_model(name).predict(
            samples, batch_size=16, gpus=int(torch.cuda.is_available()), progress_bar=sys.stderr.isatty()
        )
    return np.asarray(found.scores, dtype=np.float64)


def print_scores(results: Mapping[str, Any], names: Sequence[str]) -> None:
    """Each score with its signature, and the table by source length."""
    for name in names:
        signature = results["signatures"].get(name)
        sys.stdout.write(f"{name:<12}{results[name]:>9.4f}" + (f"   {signature}" if signature else "") + "\n")
    rows = results["by_source_length"]
    if rows:
        sys.stdout.write("\n" + length_table(rows) + "\n")


def length_label(row: Row) -> str:
    """Such as 6-10, or 61+ for what has no limit."""
    return f"{row['shortest']}+" if row["longest"] is None else f"{row['shortest']}-{row['longest']}"


def score_names(rows: Sequence[Row]) -> list[str]:
    return [name for name in rows[0] if name not in ("shortest", "longest", "num_pairs")]


def length_table(rows: Sequence[Row]) -> str:
    """Scores by the length of the source, as lines of a table."""
    names = score_names(rows)
    lines = [f"{'source words':<12}{'pairs':>9}" + "".join(f"{name:>12}" for name in names)]
    lines += [
        f"{length_label(row):<12}{row['num_pairs']:>9,}" + "".join(f"{row[name]:>12.4f}" for name in names)
        for row in rows
    ]
    return "".join(line + "\n" for line in lines)


def write_evaluation(output: Path, results: Mapping[str, Any], texts: Texts) -> None:
    """evaluation.json, the texts line by line, and by_source_length.png where there is that table."""
    output.mkdir(parents=True, exist_ok=True)
    if texts.sources is not None:
        write_lines(output / "source.txt", texts.sources)
    write_lines(output / "reference.txt", texts.references)
    write_lines(output / "hypotheses.txt", texts.hypotheses)
    write_results(output / "evaluation.json", results)
    if results["by_source_length"]:
        plot_lengths(output / "by_source_length.png", {"": results["by_source_length"]})


def plot_lengths(path: Path, systems: Mapping[str, Sequence[Row]]) -> None:
    """A panel for each score, a line for each system."""
    from headloom.insight.length_plot import length_plot  # loads matplotlib

    rows = next(iter(systems.values()))
    labels = [f"{length_label(row)}\n{row['num_pairs']:,}" for row in rows]
    values = {
        score: {name: [row[score] for row in of_system] for name, of_system in systems.items()}
        for score in score_names(rows)
        if all(score in row for of_system in systems.values() for row in of_system)
    }
    with written_beside(path) as partial:
        partial.write_bytes(length_plot(labels, values))


def write_lines(path: Path, lines: Sequence[str]) -> None:
    with written_beside(path) as partial:
        partial.write_text("".join(line + "\n" for line in lines), encoding="utf-8", newline="\n")
