"""From a composed configuration to our dataclasses, refusing whatever names no option or breaks a rule.

Nothing here loads a model, a corpus or torch, so that a wrong option is refused at once.
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException

from headloom.config import options
from headloom.config.schema import CHOICES, RESUME_WORDS, TrainConfig
from headloom.config.schema_average import AverageConfig
from headloom.config.schema_data import DataConfig, Multi30kConfig, ParallelConfig, TatoebaConfig
from headloom.config.schema_export import ExportConfig
from headloom.config.schema_language import TextConfig
from headloom.config.schema_use import EvaluateConfig, EvaluateDataConfig, TranslateConfig
from headloom.errors import ConfigError

STANDARD_STREAM = Path("-")
SECRET = re.compile(r"\$\{oc\.env:\s*([^,}]*(?:TOKEN|SECRET|PASSW|KEY|CREDENTIAL)[^,}]*)", re.IGNORECASE)
# Paths that are written, and need not exist.
CREATED = {
    (DataConfig, "folder"),
    (EvaluateConfig, "output"),
    (EvaluateDataConfig, "folder"),
    (ExportConfig, "output"),
}
EXPORT_NAME = "headloom.json"
"""What a folder that python -m headloom.export wrote has in it: see export/folder.py."""
TAKE_EXPORTS = ("checkpoint", "compare")
FOLDERS = {(Multi30kConfig, "path"), (AverageConfig, "run")}
EITHER = {
    (TatoebaConfig, "path"),
    (EvaluateDataConfig, "path"),
    (TrainConfig, "warm_start"),
    *((TextConfig, name) for name in ("path", "valid_path", "test_path")),
}


def to_config(composed: DictConfig, base: Path) -> Any:
    """The composed configuration as an instance of its schema, checked.

    Hydra lets `+optimizer.lrr=1` through even where a schema knows no `lrr`, and the value
    then reaches nothing; here that is an error. The schemas' `__post_init__` rules run here too,
    once everything is merged and every interpolation is resolved.

    `base` is the folder where the user stands: relative paths are made absolute from there.

    Raises:
        ConfigError: a key is not an option, is missing, or its value breaks a rule.
    """
    _refuse_unknown_keys(composed)
    _refuse_secrets(composed)
    try:
        _refuse_missing(composed)
        config = OmegaConf.to_object(composed)
    except OmegaConfBaseException as error:
        raise ConfigError(explain(error)) from error
    _refuse_words_read_as_booleans(config)
    _make_paths_absolute(config, base)
    return config


def check_files(config: Any) -> None:
    """Every file that an option names is there and readable, and there is one to evaluate.

    Not part of `to_config`: a configuration out of a checkpoint may name files of another machine.

    Raises:
        ConfigError: a file is missing, is a folder, or may not be read.
    """
    if isinstance(config, EvaluateConfig) and config.checkpoint is None and config.hypothesis is None:
        raise ConfigError(
            "checkpoint is missing: set checkpoint=... (the checkpoint, such as outputs/RUN/checkpoints/best.pt), or "
            "hypothesis=... and reference=..."
        )
    for owner, option, name, value in _paths(config):
        if value == STANDARD_STREAM and isinstance(owner, TranslateConfig) and option in ("input", "output"):
            continue
        if value == STANDARD_STREAM:
            raise ConfigError(f"{option}=- is a stream, which only translate.py reads and writes: name a file")
        place = next(((cls, name) for cls in type(owner).__mro__ if (cls, name) in CREATED | FOLDERS | EITHER), None)
        if place in CREATED or option == "output":
            check_can_be_written(option, value, folder=place in CREATED)
        elif not value.exists():
            raise ConfigError(f"{option}={value} does not exist: check the path")
        elif place in FOLDERS and not value.is_dir():
            raise ConfigError(f"{option}={value} is a file: name the folder")
        elif place is None and value.is_dir() and not (option in TAKE_EXPORTS and (value / EXPORT_NAME).is_file()):
            of_a_run = option in ("checkpoint", "ensemble", "compare")
            inside = f", such as {value / 'checkpoints' / 'best.pt'}" if of_a_run else ""
            raise ConfigError(f"{option}={value} is a folder: name a file{inside}")
        elif not os.access(value, os.R_OK):
            raise ConfigError(f"{option}={value} may not be read: change its permissions")
    if isinstance(config, TrainConfig) and config.resume not in RESUME_WORDS and not Path(config.resume).exists():
        raise ConfigError(f"resume={config.resume} does not exist: give a checkpoint, a run's folder, auto or never")
    if isinstance(config, TrainConfig) and isinstance(config.data, ParallelConfig):
        _refuse_one_file_twice(config.data)
    if isinstance(config, TranslateConfig) and config.output != STANDARD_STREAM:
        _refuse_output_over_what_is_read(config)


def check_can_be_written(option: str, path: Path, *, folder: bool) -> None:
    """`path` can be made or written to: a folder with all that leads to it, a file in a folder that is there.

    Raises:
        ConfigError: something else is in its place, its folder is missing or does not allow it, or it is too long.
    """
    try:
        path.exists()
    except OSError as error:
        raise ConfigError(f"{option}={path} cannot be written ({error.strerror}): choose another place") from error
    if path.exists() and path.is_dir() is not folder:
        is_, wanted = ("file", "folder") if folder else ("folder", "file")
        raise ConfigError(f"{option}={path} is a {is_}: name a {wanted}")
    nearest = path if path.exists() else next(parent for parent in path.parents if parent.exists())
    if not folder and not path.parent.is_dir():
        raise ConfigError(f"{option}={path} cannot be written: there is no folder {path.parent}; make it first")
    if not nearest.is_dir() and nearest != path:
        raise ConfigError(f"{option}={path} cannot be written: {nearest} is a file; choose another place")
    if not os.access(nearest, os.W_OK):
        raise ConfigError(f"{option}={path} cannot be written: {nearest} does not allow it; choose another place")


def refuse_used_folder(run_dir: Path, resume: str, *, option: str = "hydra.run.dir") -> None:
    """A folder that holds checkpoints, and that `option` names, is written to only when `resume` says so (B88).

    Raises:
        ConfigError: there are checkpoints and `resume` is never.
    """
    if resume == "never" and any((run_dir / "checkpoints").glob("*.pt")):
        raise ConfigError(
            f"{run_dir} already holds checkpoints: continue it with resume=auto, or choose another {option}"
        )


def suggestion(name: str, choices: Iterable[str], prefix: str = "") -> str:
    """'. Did you mean ...?' with what is near `name`; '' when nothing is.

    A dotted name is compared within its section first, then as a whole; a name without section
    also with the last words of the options, so that `steps` finds `trainer.max_steps`.
    """
    choices = list(choices)
    section, dot, leaf = name.rpartition(".")
    siblings = [choice for choice in choices if dot and choice.rpartition(".")[0] == section]
    if siblings:
        near = [f"{section}.{match}" for match in _near(leaf, [s.rpartition(".")[2] for s in siblings])]
        if not near:
            return f". {section} has the options {', '.join(s.rpartition('.')[2] for s in siblings)}"
    else:
        near = _near(name, choices)
    if not near:
        words: dict[str, list[str]] = {}
        for choice in choices:
            last = choice.rpartition(".")[2]
            for word in {last, last.rpartition("_")[2]}:
                words.setdefault(word, []).append(choice)
        near = [choice for word in _near(leaf, words) for choice in words[word][:3]]
    return f". Did you mean {' or '.join(repr(prefix + choice) for choice in near)}?" if near else ""


def _near(name: str, choices: Iterable[str]) -> list[str]:
    return get_close_matches(name, list(choices), n=1)


def explain(error: OmegaConfBaseException) -> str:
    """What OmegaConf refused, in one line."""
    reason = str(error).split("\n", 1)[0].rstrip(".")
    if isinstance(error, InterpolationKeyError):
        reason += "; write the value, or the name of an option that exists"
    return f"{error.full_key}: {reason}" if error.full_key else reason


def takes(composed: DictConfig, key: str) -> str:
    """The values of an option in words, as the schema has them; '' for what is no option of ours."""
    parent, _, name = key.rpartition(".")
    section = OmegaConf.select(composed, parent) if parent else composed
    schema = OmegaConf.get_type(section)
    if not (is_dataclass(schema) and schema.__module__.startswith("headloom.")):
        return ""
    return next((options.takes(f.type) for f in fields(schema) if f.name == name and not is_dataclass(f.type)), "")


def walk(config: Any, prefix: str = "") -> Iterator[tuple[Any, str, str, Any]]:
    """Every option of a configuration: its dataclass, its full name, its name and its value."""
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from walk(value, f"{prefix}{field.name}.")
        else:
            yield config, f"{prefix}{field.name}", field.name, value


def _paths(config: Any) -> Iterator[tuple[Any, str, str, Path]]:
    """`walk`, but only the paths, those of a list one by one."""
    for owner, option, name, value in walk(config):
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Path):
                yield owner, option, name, item


def _refuse_unknown_keys(node: DictConfig, prefix: str = "") -> None:
    schema = OmegaConf.get_type(node)
    known = [field.name for field in fields(schema)] if is_dataclass(schema) else []
    for key in map(str, node):
        if key not in known:
            raise ConfigError(f"'{prefix}{key}' is not an option{suggestion(key, known, prefix)}")
        if OmegaConf.is_missing(node, key) or OmegaConf.is_interpolation(node, key):
            continue
        if OmegaConf.is_dict(node[key]):
            _refuse_unknown_keys(node[key], f"{prefix}{key}.")


def _refuse_missing(composed: DictConfig) -> None:
    missing = sorted(OmegaConf.missing_keys(composed))
    if not missing:
        return
    key = missing[0]
    if key in CHOICES:
        raise ConfigError(f"{key} is missing: choose one of {', '.join(CHOICES[key])}")
    parent, _, name = key.rpartition(".")
    section = OmegaConf.select(composed, parent) if parent else composed
    choice = f" with {parent}={section['kind'].name}" if "kind" in section else ""
    others = f", as {'is' if len(missing) == 2 else 'are'} {' and '.join(missing[1:])}" if missing[1:] else ""
    schema = OmegaConf.get_type(section)
    assert schema is not None
    meaning = options.meaning(schema, name).rstrip(".")
    raise ConfigError(f"{key} is missing{choice}{others}: set {key}=... ({meaning[0].lower()}{meaning[1:]})")


def _refuse_secrets(composed: DictConfig) -> None:
    """Options are saved with their values in the run's folder and in checkpoints (B114)."""
    text = str(OmegaConf.to_container(composed, resolve=False))
    if found := SECRET.search(text):
        raise ConfigError(
            f"an option reads the environment variable {found[1].strip()}, and options are saved in the run's folder "
            "and in checkpoints: put no secret into an option"
        )


def _refuse_words_read_as_booleans(config: Any) -> None:
    for _, option, _, value in walk(config):
        if isinstance(value, str | Path) and str(value) in ("True", "False"):
            words = "yes, on or true" if str(value) == "True" else "no, off or false"
            raise ConfigError(f"{option}={value}: YAML takes an unquoted {words} for a truth value; quote the text")
        if isinstance(value, str) and not value.strip():
            raise ConfigError(f"{option} is empty: give it a value or leave it out")


def _make_paths_absolute(config: Any, base: Path) -> None:
    for owner, _, name, value in walk(config):
        if isinstance(value, Path) and value != STANDARD_STREAM:
            setattr(owner, name, _absolute(value, base))
        if isinstance(value, list):
            setattr(owner, name, [_absolute(item, base) if isinstance(item, Path) else item for item in value])
    if isinstance(config, TrainConfig) and config.resume not in RESUME_WORDS:
        config.resume = str(_absolute(Path(config.resume), base))


def _absolute(path: Path, base: Path) -> Path:
    """`Path.resolve` would follow links, and the saved configuration should name what the user named."""
    return Path(os.path.abspath(base / path.expanduser()))  # noqa: PTH100


def _refuse_one_file_twice(data: ParallelConfig) -> None:
    for side in ("", "valid_", "test_"):
        source, target = getattr(data, f"{side}source"), getattr(data, f"{side}target")
        if source is not None and source == target:
            raise ConfigError(f"data.{side}target={target} is data.{side}source too: name the file of the translations")


def _refuse_output_over_what_is_read(config: TranslateConfig) -> None:
    read = [("checkpoint", config.checkpoint), ("input", config.input), *(("ensemble", p) for p in config.ensemble)]
    for option, path in read:
        # By another name, too; a device, such as the terminal, may be both.
        if path.is_file() and config.output.is_file() and config.output.samefile(path):
            raise ConfigError(f"output={config.output} is {option} too, which it would replace: name another file")
