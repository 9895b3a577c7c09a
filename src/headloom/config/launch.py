"""How an entry point runs: its command line, its folder and log, its exit status (see ending.py).

Work arrives as a function, so that this module, which runs before torch is loaded, knows nothing of models.
"""

import argparse
import gc
import logging
import math
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import hydra
import yaml
from hydra._internal.utils import get_args_parser  # the very parser that reads the command line after us
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from headloom.config import saved, schema, several
from headloom.config.claim import claimed
from headloom.config.ending import (
    OF_THE_USER,
    STATUS_FAILED,
    STATUS_INTERRUPTED,
    STATUS_OPTION,
    one_line,
    status_of,
    unwritten,
)
from headloom.config.options import help_text
from headloom.config.overrides import Checked, check
from headloom.config.strict import check_can_be_written, check_files, refuse_used_folder, to_config
from headloom.errors import CheckpointError, ConfigError

log = logging.getLogger("headloom")


class JobFailed(RuntimeError):
    """A job of a sweep failed; its own log says why. Holds no traceback, and so no tensors, of the job."""


def run_once(work: Callable[[Any, frozenset[str]], object], *, name: str, conf: Path) -> int:
    """Run `work` once with the configuration that the command line describes: evaluate.py, translate.py.

    `work` takes the configuration and the names of what the command line sets, which a checkpoint may have other
    defaults for.
    Nothing is written but what `work` writes: no run folder, no log file. The log goes to stderr.
    """

    def act() -> None:
        schema.register()
        flags = _parse(sys.argv[1:])
        if flags.help:
            sys.stdout.write(help_text(name, conf))
            return
        if unused := [flag for flag in ("multirun", "info", "hydra_help", "shell_completion") if getattr(flags, flag)]:
            raise ConfigError(f"--{unused[0].replace('_', '-')} is a flag of train.py only: remove it")
        if several.num_processes() > 1:
            raise ConfigError(f"{_command(name)} is one process: start it without torchrun")
        checked = _check(flags, name, conf)
        if flags.cfg is not None:
            sys.stdout.write(OmegaConf.to_yaml(checked.composed))
            return
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
        logging.getLogger("sacrebleu").setLevel(logging.WARNING)  # it tells every step of a paired test
        work(checked.configs[0], checked.given)

    return status_of(act, _command(name))


def run_jobs(work: Callable[..., float], *, name: str, conf: Path) -> int:
    """Run `work` for each job that the command line describes, in a folder of its own: train.py.

    `work` takes a configuration, a folder and, where a launcher such as torchrun has started several processes, their
    `ranks`. It returns the headline metric of the run, which a sweeper reads. In a sweep a job that fails returns
    nan to Hydra's own sweeper, which goes on, and raises `JobFailed` to a plugin, which has its own rules for that.
    """
    jobs = _Jobs(work, Path.cwd())

    def act() -> None:
        schema.register()
        os.environ["HEADLOOM_RUN_ID"] = secrets.token_hex(3)
        flags = _parse(sys.argv[1:])
        if flags.help:
            sys.stdout.write(help_text(name, conf))
            return
        # Flags first: Hydra does not take them between overrides.
        before = [a for a in sys.argv[1:] if a not in flags.overrides]
        start = hydra.main(version_base="1.3", config_path=str(conf.resolve()), config_name=name)(jobs.run)
        if not (flags.hydra_help or flags.info or flags.shell_completion):
            checked = _check(flags, name, conf)
            if flags.cfg is None:
                section = "sweep" if checked.is_sweep else "run"
                folder = jobs.base / checked.hydra.hydra[section].dir
                if several.num_processes() > 1:
                    several.refuse_what_is_for_one(checked.configs[0], is_sweep=checked.is_sweep)
                    with several.joined_ranks(checked.configs[0], folder) as place:
                        jobs.work = partial(work, ranks=place.ranks)
                        if place.ranks.is_first:
                            sys.argv[1:] = before + several.placed(flags.overrides, place)
                            start()
                        else:
                            jobs.work(replace(checked.configs[0], resume=place.resume), place.run_dir)
                    return
                check_can_be_written(f"hydra.{section}.dir", folder, folder=True)
                if not checked.is_sweep:
                    refuse_used_folder(folder, checked.configs[0].resume)
        sys.argv[1:] = before + flags.overrides
        start()

    try:
        status = status_of(act, _command(name))
    finally:
        jobs.print_table()
    return status or jobs.status()


def _command(name: str) -> str:
    """How the user calls it: train.py, or headloom-train where pip installed it."""
    installed = f"headloom-{name}"
    return installed if Path(sys.argv[0]).stem == installed else f"{name}.py"


@dataclass
class _Outcome:
    """What became of one job."""

    number: int
    options: str
    metric_name: str
    metric: float = math.nan
    failure: str | None = None
    status: int = 0
    elapsed_seconds: float = 0.0

    def __str__(self) -> str:
        result = f"ok      {self.metric_name} {self.metric:.4g}" if self.failure is None else f"failed  {self.failure}"
        return f"{self.number:>4}  {result}  ({self.elapsed_seconds:.1f} s)  {self.options}"


class _Jobs:
    def __init__(self, work: Callable[..., float], base: Path) -> None:
        self.work = work
        self.base = base
        self.outcomes: list[_Outcome] = []
        self.is_sweep = False

    def run(self, composed: DictConfig) -> float:
        """One job, called by Hydra with the options of this job in a folder that Hydra made."""
        hydra_config = HydraConfig.get()
        self.is_sweep = hydra_config.mode is RunMode.MULTIRUN
        run_dir = Path(hydra_config.runtime.output_dir)
        overrides = list(hydra_config.overrides.task)
        number = hydra_config.job.num if self.is_sweep else 0
        outcome = _Outcome(number, " ".join(overrides), "headline")
        self.outcomes.append(outcome)
        started_at = time.monotonic()
        try:
            config = to_config(composed, self.base)
            outcome.metric_name = config.task.headline.name
            check_files(config)
            with claimed(run_dir), _removed_where_refused(run_dir, is_sweep=self.is_sweep):
                option = "hydra.sweep.dir or hydra.sweep.subdir" if self.is_sweep else "hydra.run.dir"
                refuse_used_folder(run_dir, config.resume, option=option)
                with _recorded(run_dir, config, overrides):
                    outcome.metric = float(self.work(config, run_dir))
        except OF_THE_USER as error:
            log.error("%s", one_line(error))
            outcome.failure = f"{type(error).__name__}: {one_line(error)}"
            outcome.status = STATUS_OPTION if isinstance(error, ConfigError) else STATUS_FAILED
        except Exception as error:
            if (reason := unwritten(error, run_dir)) is not None:
                log.error("%s", reason)
            else:
                log.exception("the run failed")
            outcome.failure = f"{type(error).__name__}: {one_line(error)}"
            outcome.status = STATUS_FAILED
        except BaseException:  # Ctrl-C, or the clean end after a signal: there is no next job
            outcome.failure, outcome.status = "interrupted", STATUS_INTERRUPTED
            raise
        finally:
            outcome.elapsed_seconds = time.monotonic() - started_at
        if outcome.failure is not None:
            gc.collect()  # cycles of the failed job may hold its tensors: the next one needs the memory
            if self.is_sweep and not _runs_here(hydra_config):
                raise JobFailed(outcome.failure)
        return outcome.metric

    def status(self) -> int:
        """The exit status of all jobs together."""
        failed = [outcome.status for outcome in self.outcomes if outcome.failure is not None]
        if not failed:
            return 0
        return STATUS_FAILED if self.is_sweep else failed[0]

    def print_table(self) -> None:
        """What became of each job of a sweep, on stderr."""
        if not self.is_sweep:
            return
        num_failed = sum(outcome.failure is not None for outcome in self.outcomes)
        total = f"{len(self.outcomes) - num_failed} of {len(self.outcomes)} jobs ok, {num_failed} failed"
        sys.stderr.write("\n".join([*map(str, self.outcomes), total, ""]))


def _runs_here(hydra_config: Any) -> bool:
    """True when Hydra's own sweeper and launcher run the jobs one after another in this process."""
    targets = [OmegaConf.select(hydra_config, f"{part}._target_") for part in ("sweeper", "launcher")]
    return all(str(target).startswith("hydra._internal.core_plugins.") for target in targets)


@contextmanager
def _recorded(run_dir: Path, config: Any, overrides: list[str]) -> Iterator[None]:
    """What runs: every option with its value, and what the command line said, without the values of `${...}`.

    The two files speak of the checkpoints beside them: where the block writes none, such as a resumed run that is
    refused or has nothing left to do, the earlier files stay.
    """
    text = yaml.safe_dump(overrides, allow_unicode=True) if overrides else "[]\n"
    record = {run_dir / "config.yaml": saved.to_yaml(config), run_dir / "overrides.yaml": text}
    checkpoints = _checkpoints(run_dir)
    earlier = {path: path.read_text(encoding="utf-8") for path in record if checkpoints and path.exists()}
    _write_texts(record)
    try:
        yield
    finally:
        if _checkpoints(run_dir) == checkpoints:
            _write_texts(earlier)


@contextmanager
def _removed_where_refused(run_dir: Path, *, is_sweep: bool) -> Iterator[None]:
    """A run that is refused before it began leaves no folder behind that holds nothing but what was asked for.

    The folder must be claimed: it may be that of a run which has just started. Those of a sweep stay.
    """
    try:
        yield
    except (ConfigError, CheckpointError):
        ours = {run_dir / name for name in ("config.yaml", "overrides.yaml", "train.log")}
        if not is_sweep and all(path in ours and path.is_file() for path in run_dir.glob("*")):
            shutil.rmtree(run_dir, ignore_errors=True)
        raise


def _checkpoints(run_dir: Path) -> set[tuple[str, int]]:
    return {(path.name, path.stat().st_mtime_ns) for path in (run_dir / "checkpoints").glob("*.pt")}


def _write_texts(texts: Mapping[Path, str]) -> None:
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8", newline="\n")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; options are written option=value, and --help shows what there is")


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = _Parser(parents=[get_args_parser()], add_help=False)
    flags = parser.parse_intermixed_args(arguments)
    if flags.config_path is not None:
        raise ConfigError(f"--config-path {flags.config_path} is not taken: add your files with --config-dir FOLDER")
    if flags.config_name is not None:
        raise ConfigError(
            f"--config-name {flags.config_name} is not taken: make it an experiment= of --config-dir FOLDER"
        )
    modes = [flag for flag in ("run", "multirun", "cfg", "info", "shell_completion") if getattr(flags, flag)]
    if len(modes) > 1:
        raise ConfigError(f"--{modes[0]} and --{modes[1]} are two different things to do: choose one".replace("_", "-"))
    if flags.resolve and flags.cfg is None:
        raise ConfigError("--resolve has no effect without --cfg: remove it")
    if flags.experimental_rerun is not None:
        raise ConfigError("--experimental-rerun is not taken: a pickle may run code; use resume= or the overrides.yaml")
    return flags


def _check(flags: argparse.Namespace, name: str, conf: Path) -> Checked:
    return check(
        flags.overrides,
        conf=conf,
        name=name,
        base=Path.cwd(),
        multirun=flags.multirun,
        presets=Path(flags.config_dir) if flags.config_dir is not None else None,
        only_show=flags.cfg is not None,
    )
