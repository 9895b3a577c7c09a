"""A command line, checked before Hydra acts on it, so that one line can say what is wrong."""

import codecs
import itertools
import re
import shlex
import time
import warnings
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from headloom.config.schema import CHOICES
from headloom.config.schema_training import TrainerConfig
from headloom.config.strict import check_files, explain, suggestion, takes, to_config
from headloom.errors import ConfigError

PRESETS = ("experiment", "sweep")  # groups that may be left out, or given as a list
GROUPS = {
    "train": (*CHOICES, "size", "trainer", *PRESETS),
    "evaluate": ("decoding",),
    "translate": ("decoding",),
}
"""One tree of YAML serves every entry point; these groups of it belong to each."""

# Dictionaries of Hydra's that take any key.
FREE = ("hydra.job.env_set.", "hydra.sweeper.params.", "hydra.job_logging.", "hydra.hydra_logging.", "hydra.callbacks.")
_ITEM = re.compile(r"""(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[^,])+""")  # of a list; quoted, it may hold commas
_NO_CHOICE = re.compile(r".*Could not find '(.+)/(.+)'\s+Available options in '.*':((?:\n\t.+)+)")  # Hydra says so
SECONDS_FOR_JOBS = 5.0


@dataclass(frozen=True)
class Checked:
    """What a command line asks for, as far as it can be known before a job starts."""

    configs: list[Any]
    """The configuration of each job; of a long sweep only the first ones."""
    composed: DictConfig
    """The first job's options as Hydra composes them."""
    hydra: DictConfig
    """Hydra's own options, under `hydra`."""
    is_sweep: bool
    given: frozenset[str]
    """Options and groups that the command line sets."""


def check(
    overrides: Sequence[str],
    *,
    conf: Path,
    name: str,
    base: Path,
    multirun: bool = False,
    presets: Path | None = None,
    only_show: bool = False,
) -> Checked:
    """Compose and check each job that `overrides` describe, on the tree `conf` with the primary file `name`.

    Jobs of a sweep are checked one after another for about a second; those left are checked when they start.
    Relative paths are taken from `base`. `presets` is a folder of the user's with more YAML files. With `only_show`
    what is missing, be it an option or a file, is no error, and `configs` stays empty.

    Raises:
        ConfigError: an override names no option or group, has a wrong value, or a job breaks a rule.
    """
    search = [f"hydra.searchpath=[{quoted(f'file://{presets.resolve()}')}]"] if presets is not None else []
    if presets is not None and not presets.is_dir():
        raise ConfigError(f"--config-dir {presets} is not a folder: name one with YAML files in it")
    try:
        with initialize_config_dir(str(conf.resolve()), version_base="1.3"), warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # Hydra only warns of a search path that is not there
            return _Checker(name, [*search, *overrides], base).check(multirun, only_show)
    except (yaml.YAMLError, UserWarning) as error:
        raise ConfigError(" ".join(str(error).split())) from error


class _Checker:
    def __init__(self, name: str, overrides: Sequence[str], base: Path) -> None:
        self.name = name
        self.base = base
        self.loader: ConfigLoader = GlobalHydra.instance().config_loader()
        parsed = [self._parse(text) for text in overrides]
        self.hydra_values = [o for o in parsed if o.key_or_group.startswith("hydra.")]
        self.hydra_groups = [o for o in parsed if o.key_or_group.startswith("hydra/") and self._is_group(o)]
        self.hydra_values += [o for o in parsed if o.key_or_group.startswith("hydra/") and not self._is_group(o)]
        self.overrides = [o for o in parsed if not o.is_hydra_override()]
        self.composed: dict[tuple[str, ...], tuple[DictConfig, DictConfig]] = {}

    def check(self, multirun: bool, only_show: bool) -> Checked:
        _, hydra = self._compose([next(self._values(o)) for o in self.overrides if self._is_group(o)])
        is_sweep = multirun or getattr(hydra.hydra.mode, "name", None) == "MULTIRUN"
        self._check_hydra(hydra, is_sweep)
        if is_sweep:  # as the sweeper does: what a preset sweeps over, then the command line
            params = hydra.hydra.sweeper.get("params") or {}
            self.overrides = [self._parse(f"{key}={value}") for key, value in params.items()] + self.overrides
        for override in self.overrides:
            if override.is_sweep_override() and not is_sweep:
                raise ConfigError(f"'{override.input_line}' has several values: add -m to sweep, or quote the comma")
        configs: list[Any] = []
        first = None
        for job in self._jobs():
            composed, config = self._check_job(job, only_show)
            configs += [config] if config is not None else []
            first = first or composed
        assert first is not None
        return Checked(configs, first, hydra, is_sweep, frozenset(o.key_or_group for o in self.overrides))

    def _jobs(self) -> Iterator[list[Override]]:
        """The jobs of a sweep (else one), until `SECONDS_FOR_JOBS` are over."""
        started_at = time.monotonic()
        values = {o.get_key_element().lstrip("+"): list(self._values(o)) for o in self.overrides}
        for number, job in enumerate(itertools.product(*values.values())):
            if number and time.monotonic() - started_at > SECONDS_FOR_JOBS:
                return
            yield list(job)

    def _check_job(self, job: Sequence[Override], only_show: bool) -> tuple[DictConfig, Any]:
        """What Hydra composes from these overrides; a choice of groups is composed once, so that a job costs little."""
        try:
            composed = deepcopy(self._compose([o for o in job if self._is_group(o)])[0])
            known = _names(composed)
            for override in job:
                if not self._is_group(override):
                    self._set(override, composed, known)
            if only_show and OmegaConf.missing_keys(composed):
                return composed, None
            config = to_config(composed, self.base)
            if only_show:
                return composed, None
            check_files(config)
        except ConfigError as error:
            swept = [str(o.input_line) for o in job if o not in self.overrides]
            raise ConfigError(f"{error} (in the job {' '.join(swept)})" if swept else str(error)) from error
        return composed, config

    def _check_hydra(self, hydra: DictConfig, is_sweep: bool) -> None:
        if not self.hydra_values:
            return
        known = [*_names(hydra), *(f"hydra/{group}" for group in self.loader.list_groups("hydra"))]
        for override in self.hydra_values:
            if not override.key_or_group.startswith(FREE):
                self._set(override, hydra, known)
        unused, used = ("hydra.run.dir", "hydra.sweep.dir") if is_sweep else ("hydra.sweep.dir", "hydra.run.dir")
        if any(o.key_or_group == unused for o in self.hydra_values):
            raise ConfigError(f"{unused} has no effect {'in' if is_sweep else 'without'} a sweep: set {used}")

    def _compose(self, groups: Sequence[Override]) -> tuple[DictConfig, DictConfig]:
        """Our part of the configuration and Hydra's, before any single option is set."""
        for override in (*self.hydra_groups, *groups):
            self._check_choice(override)
        search = [o for o in self.hydra_values if o.key_or_group == "hydra.searchpath"]
        lines = tuple(str(o.input_line) for o in (*search, *self.hydra_groups, *groups))
        if lines not in self.composed:
            try:
                composed = compose(self.name, list(lines), return_hydra_config=True)
            except HydraException as error:
                raise ConfigError(self._unseen_header(groups) or _explain_composition(error)) from error
            except UnicodeDecodeError as error:
                raise ConfigError(f"{self._not_utf8()} is not UTF-8: convert it to UTF-8") from error
            except RecursionError as error:
                raise ConfigError(
                    "a YAML file names itself among its defaults, by itself or through others: write _self_ for its own"
                ) from error
            hydra = OmegaConf.masked_copy(composed, "hydra")
            OmegaConf.set_struct(composed, False)
            del composed["hydra"]
            OmegaConf.set_struct(composed, True)
            self.composed[lines] = composed, hydra
        return self.composed[lines]

    def _is_group(self, override: Override) -> bool:
        name = override.key_or_group
        return name in GROUPS[self.name] or (name.startswith("hydra/") and bool(self._choices(name)))

    def _choices(self, group: str) -> list[str]:
        names = set(self.loader.get_group_options(group))
        for folder in self._folders_searched():
            names |= {path.stem for path in (folder / group).glob("*.yaml")}
        return sorted(names)

    def _folders_searched(self) -> list[Path]:
        """Folders of YAML files besides conf/; Hydra's loader knows them only while it composes."""
        paths = [path for o in self.hydra_values if o.key_or_group == "hydra.searchpath" for path in _listed(o.value())]
        return [self.base / path.removeprefix("file://") for path in paths if not path.startswith("pkg://")]

    def _unseen_header(self, groups: Sequence[Override]) -> str | None:
        """What keeps a preset of the user's from setting options of all groups, which Hydra tells in other words."""
        for override in groups:
            chosen, group = override.value(), override.key_or_group
            if group not in ("experiment", "sweep"):
                continue
            for choice in chosen if isinstance(chosen, list) else [chosen]:
                paths = (folder / group / f"{choice}.yaml" for folder in self._folders_searched())
                path = next((path for path in paths if path.is_file()), None)
                if path is None:
                    continue
                content = path.read_bytes()
                if b"@package _global_" not in content:
                    return f"{path} needs '# @package _global_' as its first line, to set options of any group"
                if content.startswith(codecs.BOM_UTF8):
                    return (
                        f"{path} begins with a byte order mark, and Hydra does not read its first line: save it without"
                    )
        return None

    def _not_utf8(self) -> str:
        """The file of the user's that could not be read."""
        for path in (path for folder in self._folders_searched() for path in sorted(folder.rglob("*.yaml"))):
            try:
                path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                return str(path)
        return "a YAML file"

    def _check_choice(self, override: Override) -> None:
        group, chosen = override.key_or_group, override.value()
        _refuse_plus(override)
        if override.package is not None:
            raise ConfigError(f"'{override.input_line}': a group stays where it is; write {group}={chosen}")
        if override.is_sweep_override():
            return
        if chosen is None and group in PRESETS:
            raise ConfigError(f"'{override.input_line}' is how it is when nothing is said: remove it")
        choices = self._choices(group)
        for choice in chosen if isinstance(chosen, list) and group in PRESETS else [chosen]:
            if choice not in choices:
                choice = "null" if choice is None else choice
                near = suggestion(str(choice), choices, f"{group}=")
                raise ConfigError(f"'{group}={choice}' is not a choice: {group} is one of {', '.join(choices)}{near}")

    def _set(self, override: Override, composed: DictConfig, known: list[str]) -> None:
        name, value = override.key_or_group, override.value()
        if name not in known or override.package is not None:
            raise ConfigError(self._not_an_option(name, known))
        _refuse_plus(override)
        if override.is_sweep_override():
            return  # an interval: what a sweeper draws from it is checked when its job starts
        node = OmegaConf.select(composed, name, throw_on_missing=False, throw_on_resolution_failure=False)
        if isinstance(node, DictConfig) and is_dataclass(OmegaConf.get_type(node)) and not isinstance(value, dict):
            inside = ", ".join(f"{name}.{key}" for key in map(str, node))
            raise ConfigError(f"'{override.input_line}': {name} is a section of options; set {inside}")
        try:
            OmegaConf.update(composed, name, value, merge=True)
        except OmegaConfBaseException as error:
            rule = takes(composed, name)
            near = suggestion(value, rule.replace(",", "").split(), f"{name}=") if isinstance(value, str) else ""
            reason = f"it takes {rule}{near}" if rule else explain(error)
            raise ConfigError(f"'{override.input_line}' is refused: {reason}") from error

    def _not_an_option(self, name: str, known: list[str]) -> str:
        group = name.partition(".")[0]
        owners = _owners(name)
        if owners and group in GROUPS[self.name]:
            return f"'{name}' is not an option here, only with {' or '.join(owners)}: choose that, or remove it"
        if owners or (group not in known and group in GROUPS["train"]):
            return f"'{name}' is not an option of {self.name}.py: what it sets comes from the checkpoint"
        near = suggestion(name, [*known, *GROUPS[self.name]]) or ": docs/options.md lists them all"
        return f"'{name}' is not an option{near}"

    def _parse(self, text: str) -> Override:
        key, equals, value = text.partition("=")
        if key.startswith("~"):
            raise ConfigError(f"'{text}': nothing can be removed, every option has a value; set {key[1:]}=... instead")
        if not equals:
            raise ConfigError(f"'{text}' is not an override: write option=value")
        try:
            return OverridesParser.create(self.loader).parse_overrides([text])[0]
        except HydraException as error:
            is_list = value.startswith("[") and value.endswith("]")
            items = [item.strip() for item in _ITEM.findall(value[1:-1])]
            fixed = f"[{','.join(map(_quoted_once, items))}]" if is_list else quoted(value)
            example = shlex.quote(f"{key}={fixed}")
            raise ConfigError(f"'{text}' cannot be read: quote the value, as in {example}") from error

    def _values(self, override: Override) -> Iterator[Override]:
        """One override for each value that is swept over; an interval stays as it is."""
        if override.is_sweep_override() and override.is_discrete_sweep():
            for value in override.sweep_string_iterator():
                yield self._parse(f"{override.get_key_element()}={value}")
        else:
            yield override


def _names(node: DictConfig, prefix: str = "") -> list[str]:
    names = []
    for key in map(str, node):
        names.append(f"{prefix}{key}")
        if OmegaConf.is_missing(node, key) or OmegaConf.is_interpolation(node, key):
            continue
        if isinstance(node[key], DictConfig):
            names += _names(node[key], f"{prefix}{key}.")
    return names


def _owners(name: str) -> list[str]:
    """The choices of a group that have the option, such as tokenizer=bpe."""
    group, _, option = name.partition(".")
    choices = CHOICES.get(group, {})
    return [f"{group}={choice}" for choice, schema in choices.items() if option in {f.name for f in fields(schema)}]


def _listed(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def _refuse_plus(override: Override) -> None:
    if override.is_add():
        plain = str(override.input_line).lstrip("+")
        raise ConfigError(f"'{override.input_line}' would add what is there: write {plain}")


def quoted(value: str) -> str:
    """`value` as Hydra's grammar reads it back."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _quoted_once(item: str) -> str:
    return item if len(item) > 1 and item[0] == item[-1] and item[0] in "\"'" else quoted(item)


def _explain_composition(error: HydraException) -> str:
    """What is wrong in a YAML file, in one line: Hydra names the file, OmegaConf the key in a line of its own."""
    if isinstance(error.__cause__, OmegaConfBaseException):
        return explain(error.__cause__)
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    if (found := _NO_CHOICE.match(str(error))) is not None:
        group, choice, choices = found[1], found[2], found[3].split()
        near = suggestion(choice, choices, f"{group}: ")
        return f"'{group}: {choice}' in a YAML file is not a choice: {group} is one of {', '.join(choices)}{near}"
    keys = [line.removeprefix("full_key: ") for line in lines if line.startswith("full_key: ")]
    if not keys or len(lines) < 2:
        return lines[0]
    where = lines[0].partition(": ")[0]
    if f"Key '{keys[0].rpartition('.')[2]}' not in" not in lines[1]:
        return f"{where}: {keys[0]}: {lines[1]}"
    if owners := _owners(keys[0]):
        return f"{where}: '{keys[0]}' is an option only with {' or '.join(owners)}: choose that"
    schemas: list[tuple[str, type[Any]]] = [("trainer", TrainerConfig)]
    schemas += [(group, schema) for group, choices in CHOICES.items() for schema in choices.values()]
    known = {f"{group}.{field.name}": None for group, schema in schemas for field in fields(schema)}
    return f"{where}: '{keys[0]}' is not an option{suggestion(keys[0], known)}"
