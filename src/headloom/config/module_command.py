"""How a command of the package runs: `python -m headloom.average option=value ...`; --help lists its options.

The entry points with groups and sweeps go through launch.py.
"""

import logging
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from headloom.config.ending import status_of
from headloom.config.options import meaning
from headloom.config.strict import check_files, explain, suggestion, takes, to_config
from headloom.errors import ConfigError


def run_module(
    work: Callable[[Any], object], arguments: Sequence[str], *, schema: type[Any], module: str, usage: str
) -> int:
    """Run `work` with the options that `arguments` set in `schema`; the exit status, as in launch.py."""

    def act() -> None:
        if {"--help", "-h"} & set(arguments):
            sys.stdout.write(_help(schema, usage))
            return
        config = parse(schema, arguments, base=Path.cwd())
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
        work(config)

    return status_of(act, module)


def parse(schema: type[Any], arguments: Sequence[str], *, base: Path) -> Any:
    """An instance of `schema` with its options set from `option=value`, checked as those of the entry points are.

    Raises:
        ConfigError: an argument is no option, or its value or a file that it names is wrong.
    """
    composed = OmegaConf.structured(schema)
    names = [field.name for field in fields(schema)]
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if not equals:
            raise ConfigError(f"'{argument}' is not an option: write option=value, and --help lists them")
        if name not in names:
            raise ConfigError(f"'{name}' is not an option{suggestion(name, names) or f'; there are {_listed(names)}'}")
        _set(composed, argument, name)
    config = to_config(composed, base)
    check_files(config)
    return config


def _set(composed: DictConfig, argument: str, name: str) -> None:
    try:
        composed.merge_with_dotlist([argument])
    except OmegaConfBaseException as error:
        raise ConfigError(f"'{argument}' is refused: it takes {takes(composed, name) or explain(error)}") from error
    except Exception as error:  # of the YAML reader, which reads the value
        raise ConfigError(f"'{argument}' cannot be read: quote the value, as in '{name}=\"...\"'") from error


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _help(schema: type[Any], usage: str) -> str:
    lines = [f"  {field.name + '=':<14}{meaning(schema, field.name)}" for field in fields(schema)]
    wrapped = ["\n".join(textwrap.wrap(line, 110, subsequent_indent=" " * 16)) for line in lines]
    return "\n".join([usage, "", "Options:", *wrapped, ""])
