"""Systems beside each other in evaluate.py: checkpoints, or files of translations that are there already.

Without a checkpoint nothing here loads torch.
"""

import logging
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from headloom import metrics
from headloom.config import rules
from headloom.config.schema_decoding import option_that_was_set
from headloom.config.schema_use import EvaluateConfig
from headloom.errors import ConfigError, DataError
from headloom.work.results_file import write_results
from headloom.work.translation_scores import (
    Texts,
    add_scores,
    check_equal_numbers,
    lines_of,
    plot_lengths,
    print_scores,
    require_comet,
    write_evaluation,
)

logger = logging.getLogger(__name__)

TRANSLATION = "translation"
OF_A_MODEL = ("decoding", "device", "precision", "position", "data", "baseline")
"""Options and groups of evaluate.py without meaning for translations that are there already."""
ScoreCheckpoint = Callable[[Path, Path], Mapping[str, Any]]
"""Scores the checkpoint of one path, with what it writes in the folder of the other; see families.evaluate."""


def is_checkpoint(path: Path) -> bool:
    """Whether it begins as torch.save begins a file, which text does not; or is the folder of an export."""
    if not path.is_file():  # a pipe would be without what was read here
        return path.is_dir()
    with path.open("rb") as stream:
        return stream.read(4) == b"PK\x03\x04"


def are_texts(config: EvaluateConfig) -> bool:
    """Whether no model is needed."""
    return config.checkpoint is None and not any(map(is_checkpoint, config.compare))


def evaluate_systems(
    config: EvaluateConfig,
    output: Path | None,
    score_checkpoint: ScoreCheckpoint | None = None,
    *,
    task_of: Callable[[Path], str] | None = None,
    pairs_of: Callable[[Path], str] | None = None,
    given: Collection[str] = (),
) -> dict[str, Any]:
    """Score hypothesis or checkpoint, and each system of `compare` against it; print, and write to `output`.

    `task_of`: that of the checkpoint of a path, by its name. `pairs_of`: a hash of the pairs that a checkpoint which
    translates is scored on. `given`: the options that a command line sets, which are
    to have an effect even where they say what holds anyway.

    With several systems each has a folder there, and comparison.json and by_source_length.png have them all.

    Raises:
        ConfigError, DataError, CheckpointError: it cannot be scored; the message says why.
    """
    first = config.hypothesis or config.checkpoint
    assert first is not None, "check_files asks for one"
    if config.hypothesis is not None and is_checkpoint(config.hypothesis):
        raise ConfigError(f"hypothesis={config.hypothesis} is a checkpoint: name it in checkpoint, or in compare")
    if config.comet is not None:
        require_comet()
    paths = [first, *config.compare]
    names = system_names(paths)
    hypotheses = {path: lines_of(path) for path in paths if path != config.checkpoint and not is_checkpoint(path)}
    if len(hypotheses) == len(paths):
        _refuse_options_of_a_model(config, given)
        if config.source is None and config.lengths and "lengths" in given:
            raise rules.no_effect("lengths", "no source, whose words are counted")
    if len(hypotheses) < len(paths) and output is None:
        raise ConfigError("compare holds a checkpoint, whose translations are written: set output=FOLDER")
    if task_of is not None and len(paths) > 1:
        tasks = {path: TRANSLATION if path in hypotheses else task_of(path) for path in paths}
        _refuse_translations_beside_others(tasks)
        if TRANSLATION not in tasks.values():
            config.refuse_resampling("checkpoints that write no translations, which are not resampled")
        if pairs_of is not None:
            checkpoints = [path for path, task in tasks.items() if task == TRANSLATION and path not in hypotheses]
            _refuse_other_pairs({path: pairs_of(path) for path in checkpoints})
    reference = config.reference or config.data.target
    references = lines_of(reference) if reference is not None else None
    sources = lines_of(config.source) if config.source is not None else None
    if reference is not None and references is not None:  # before a model is loaded
        for path, lines in [*hypotheses.items(), *([(config.source, sources)] if config.source and sources else [])]:
            check_equal_numbers(path, lines, reference, references)

    results: list[Mapping[str, Any]] = []
    for name, path in zip(names, paths, strict=True):
        folder = output / name if output is not None and len(paths) > 1 else output
        if len(paths) > 1:
            sys.stdout.write(f"{name}: {path}\n")
        if path not in hypotheses:
            assert folder is not None
            assert score_checkpoint is not None, "are_texts says that a model is needed"
            results.append(score_checkpoint(path, folder))
            found = _texts_in(folder)
            if found is None:
                continue
            hypotheses[path] = list(found.hypotheses)
            its_sources, its_references = list(found.sources or ()), list(found.references)
            if references not in (None, its_references) or sources not in (None, its_sources):
                raise _other_pairs(path, paths[0])
            references, sources = its_references, its_sources
        else:
            assert references is not None, "hypothesis has reference, and a checkpoint has left its own"
            check_equal_numbers(path, hypotheses[path], f"what {paths[0]} translates", references)
            results.append(_score_file(config, path, Texts(hypotheses[path], references, sources), folder))
    if references is not None:
        _warn_of_tokenized(hypotheses, references)
    if len(paths) == 1:
        return dict(results[0])
    return _compare(config, names, results, [hypotheses.get(path) for path in paths], references, output)


def _warn_of_tokenized(hypotheses: Mapping[Path, Sequence[str]], references: Sequence[str]) -> None:
    if _is_tokenized(references):
        logger.warning(
            "the references are tokenized (a blank before the full stop): compare these scores with those of the same "
            "tokenized text only"
        )
        return
    for path, lines in hypotheses.items():
        if _is_tokenized(lines):
            logger.warning(
                "the translations of %s are tokenized (a blank before the full stop) and the references are not, which "
                "costs points: detokenize them",
                path,
            )


def _is_tokenized(lines: Sequence[str]) -> bool:
    return 2 * sum(line.endswith(" .") for line in lines) > len(lines)


def _refuse_translations_beside_others(tasks: Mapping[Path, str]) -> None:
    translations = [path for path, task in tasks.items() if task == TRANSLATION]
    for path, task in tasks.items():
        if task != TRANSLATION and translations:
            raise ConfigError(
                f"{path} is a checkpoint of task={task} and writes no translations to be compared with those of "
                f"{translations[0]}: evaluate it alone"
            )


def _refuse_other_pairs(pairs: Mapping[Path, str]) -> None:
    """Before anything is scored, which may take hours."""
    for path, hashed in pairs.items():
        first = next(iter(pairs))
        if hashed != pairs[first]:
            raise _other_pairs(path, first)


def _other_pairs(path: Path, other: Path) -> DataError:
    return DataError(
        f"{path} is scored on other pairs than {other}: set data.source and data.target, so that all systems translate "
        "the same"
    )


def _refuse_options_of_a_model(config: EvaluateConfig, given: Collection[str]) -> None:
    device, precision = (f"{name}={getattr(config, name).name}" for name in ("device", "precision"))
    by_value = [option for option in (option_that_was_set(config.decoding), device, precision) if option is not None]
    set_here = [option for option in by_value if not option.endswith("=auto")]
    for option in (*set_here, *sorted(name for name in given if name.partition(".")[0] in OF_A_MODEL)):
        raise rules.no_effect(option, "files of translations, which no model writes here")


def _score_file(config: EvaluateConfig, path: Path, texts: Texts, folder: Path | None) -> dict[str, Any]:
    scores = metrics.translation_scores(texts.hypotheses, texts.references)
    results: dict[str, Any] = {
        "hypothesis": str(path),
        "num_pairs": len(texts.references),
        **{name: score.value for name, score in scores.items()},
        "signatures": {name: score.signature for name, score in scores.items() if score.signature},
    }
    add_scores(results, texts, longest=config.lengths, comet=config.comet)
    print_scores(results, [name for name, value in results.items() if isinstance(value, float)])
    if folder is not None:
        write_evaluation(folder, results, texts)
    sys.stdout.write(f"{len(texts.references):,} lines of {path}" + (f"; more in {folder}\n" if folder else "\n"))
    return results


def _texts_in(folder: Path) -> Texts | None:
    """What a checkpoint was scored on, as it was written; None where it does not translate."""
    found = [folder / f"{name}.txt" for name in ("hypotheses", "reference", "source")]
    if not found[0].exists():
        return None
    # Not as lines of somebody else's: a carriage return at the end of one of ours is of the text.
    return Texts(*(path.read_bytes().decode("utf-8").split("\n")[:-1] for path in found))


def _compare(
    config: EvaluateConfig,
    names: Sequence[str],
    results: Sequence[Mapping[str, Any]],
    hypotheses: Sequence[Sequence[str] | None],
    references: Sequence[str] | None,
    output: Path | None,
) -> dict[str, Any]:
    comparison: dict[str, Any] = {"systems": dict(zip(names, results, strict=True))}
    resampled: dict[str, list[metrics.Resampled]] = {}
    translations = [(name, lines) for name, lines in zip(names, hypotheses, strict=True) if lines is not None]
    if references is not None and len(translations) == len(names):
        resampled, signatures = metrics.paired_bootstrap(
            translations, references, num_resamples=config.resamples, seed=config.seed
        )
        comparison["paired_bootstrap"] = {
            "signatures": signatures,
            **{metric: dict(zip(names, map(vars, found), strict=True)) for metric, found in resampled.items()},
        }
    sys.stdout.write("\n" + comparison_table(names, results, resampled))
    if resampled:
        sys.stdout.write(
            f"\n(p) of a difference to {names[0]}, and half of the 95 % confidence interval: "
            f"{config.resamples:,} paired resamples\n"
        )
        for metric, signature in comparison["paired_bootstrap"]["signatures"].items():
            sys.stdout.write(f"{metric:<12}{signature}\n")
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        write_results(output / "comparison.json", comparison)
        lengths = {name: found.get("by_source_length") for name, found in comparison["systems"].items()}
        if all(lengths.values()):
            plot_lengths(output / "by_source_length.png", lengths)
        sys.stdout.write(f"comparison.json, and a folder for each system, in {output}\n")
    return comparison


def comparison_table(
    names: Sequence[str],
    results: Sequence[Mapping[str, Any]],
    resampled: Mapping[str, Sequence[metrics.Resampled]],
) -> str:
    """A line for each system, a column for each score that one of them has."""
    columns = list(dict.fromkeys(key for found in results for key, value in found.items() if isinstance(value, float)))
    table = [["", *columns]]
    for i, (name, found) in enumerate(zip(names, results, strict=True)):
        cells = [name]
        for column in columns:
            cell = f"{found[column]:.4f}" if column in found else "-"
            if column in resampled:
                of_column = resampled[column][i]
                cell += f" ± {of_column.interval:.4f}"
                cell += "" if of_column.p_value is None else f" (p {of_column.p_value:.4f})"
            cells.append(cell)
        table.append(cells)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rows = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in table)
    return "".join(row.rstrip() + "\n" for row in rows)


def system_names(paths: Sequence[Path]) -> list[str]:
    """The shortest end of each path, without suffix, that no other has; the folders in it joined by dashes."""
    ends = [path.with_suffix("").parts for path in paths]
    names = []
    for end in ends:
        lengths = range(1, len(end))
        length = next((n for n in lengths if sum(other[-n:] == end[-n:] for other in ends) == 1), len(end))
        names.append("-".join(part for part in end[-length:] if part not in ("/", "checkpoints")))
    if len(set(names)) == len(names):
        return names
    return [f"{name}-{number}" for number, name in enumerate(names, start=1)]
