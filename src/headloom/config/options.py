"""The manual, generated from the schema: docs/options.md and the text of --help.

`python -m headloom.config.options` writes docs/options.md; see generated.py.
"""

import ast
import dataclasses
import inspect
import sys
import textwrap
import types
from dataclasses import Field, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import yaml
from omegaconf import MISSING

from headloom.config.generated import renew
from headloom.config.schema import CHOICES, DISCRIMINATORS, MODULES, ROOTS, TrainConfig
from headloom.config.schema_training import TrainerConfig

TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}
PLURALS = {int: "whole numbers", str: "texts", Path: "paths", float: "numbers"}


def takes(annotation: Any) -> str:
    """The values of an option in words: 'a whole number or null', 'layer or rms'."""
    if annotation is Any:
        return "a whole number or auto"
    if get_origin(annotation) in (Union, types.UnionType):
        words = [takes(part) for part in get_args(annotation) if part is not type(None)]
        return " or ".join([*words, "null"])
    if get_origin(annotation) is list:
        (item,) = get_args(annotation)
        return f"a list of {PLURALS[item]}"
    if issubclass(annotation, Enum):
        names = list(annotation.__members__)
        return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]
    return TYPES[annotation]


@cache
def _meanings(schema: type[Any]) -> dict[str, str]:
    """The docstring below each field of one class (not of its bases)."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(schema))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                found[name] = " ".join(words.split())
    return found


def meaning(schema: type[Any], option: str) -> str:
    """What the schema says about an option; '' for a section, whose dataclass says it."""
    classes = [cls for cls in schema.__mro__ if is_dataclass(cls)]
    return next((_meanings(cls)[option] for cls in classes if option in _meanings(cls)), "")


def help_text(name: str, conf: Path) -> str:
    """What `NAME.py --help` prints."""
    return f"{USAGE[name]}\n\n{_groups_text(name, conf)}\n\n{FOOTER}\n"


USAGE = {
    "train": """\
Train a model: python train.py [group=choice ...] [option=value ...]

  python train.py                                              the default corpus, English to German
  python train.py data=parallel data.source=a.en data.target=a.de
  python train.py size=base trainer=gpu optimizer.lr=5e-4 seed=2
  python train.py experiment=copy                              a recipe: the settings of a whole run
  python train.py hydra.run.dir=outputs/mine                   the run's folder; else outputs/DATE/TIME-ID
  python train.py hydra.run.dir=outputs/mine resume=auto       go on where that run stopped
  python train.py -m position=rope,sinusoidal seed=1,2         a sweep: four runs under multirun/DATE/TIME-ID
  python train.py --cfg job                                    show every option and its value, train nothing""",
    "evaluate": """\
Score a checkpoint or translations: python evaluate.py checkpoint=FILE [option=value ...]

  python evaluate.py checkpoint=outputs/RUN/checkpoints/best.pt
  python evaluate.py checkpoint=... data.split=valid decoding=greedy
  python evaluate.py checkpoint=... data.source=new.en data.target=new.de
  python evaluate.py checkpoint=best.pt compare=[last.pt,average.pt]   one table, and a paired bootstrap test
  python evaluate.py hypothesis=ours.de reference=new.de compare=[theirs.de]
  python evaluate.py --cfg job                                 show every option and its value""",
    "translate": """\
Translate, continue or label lines: python translate.py checkpoint=FILE [option=value ...]

  echo "Good morning." | python translate.py checkpoint=outputs/RUN/checkpoints/best.pt
  python translate.py checkpoint=... input=new.en output=new.de
  python translate.py checkpoint=... decoding=beam decoding.beam_size=10 decoding.num_best=5
  python translate.py checkpoint=... decoding=sample decoding.top_p=0.9
  python translate.py checkpoint=... decoding=score input=pairs.tsv    source, tab, target: log-probabilities
  python translate.py checkpoint=... format=jsonl input=new.jsonl      wishes and scores line by line
  python translate.py --cfg job                                show every option and its value""",
}

FOOTER = """\
docs/options.md says what each option means. A value with other signs than letters, digits and ./_- is quoted
twice, for the shell and for Hydra: 'data.path="a=b.tsv"'. What pip installs has the commands as headloom-train,
headloom-evaluate and headloom-translate."""


def _groups_text(name: str, conf: Path) -> str:
    """The groups with their choices, as the folders under conf/ have them, and the options outside of groups."""
    defaults: dict[str, str] = {}
    for entry in yaml.safe_load((conf / f"{name}.yaml").read_text(encoding="utf-8"))["defaults"]:
        if isinstance(entry, dict):
            defaults.update({group: choice for group, choice in entry.items() if not group.startswith("override ")})
    lines = ["Groups (* what it takes when you say nothing):"]
    for group, default in defaults.items():
        choices = [f"{path.stem}{'*' * (path.stem == default)}" for path in sorted((conf / group).glob("*.yaml"))]
        lines.append(f"  {group + '=':<14}{' '.join(choices)}")
    lines += ["", "Options outside of groups:"]
    for field in _options(ROOTS[name]):
        lines.append(f"  {field.name + '=':<14}{meaning(ROOTS[name], field.name)}")
    return "\n".join("\n".join(textwrap.wrap(line, 110, subsequent_indent=" " * 16)) for line in lines)


def _options(schema: type[Any]) -> list[Field[Any]]:
    """The fields that are options, and not sections."""
    return [field for field in fields(schema) if not is_dataclass(field.type)]


def markdown(conf: Path) -> str:
    """docs/options.md."""
    parts = [INTRODUCTION, *(_root_section(name) for name in ROOTS), *map(_module_section, MODULES), "# Groups\n"]
    annotations: dict[str, Any] = {field.name: field.type for field in fields(TrainConfig)}
    for group, choices in CHOICES.items():
        parts.append(_group_section(group, annotations[group], choices))
    parts.append(
        f"## trainer\n\n{_summary(TrainerConfig)}\n\n{_table('trainer', _options(TrainerConfig), TrainerConfig)}"
    )
    parts += [_presets_section(group, conf, text) for group, text in PRESETS.items()]
    return "\n".join(parts)


INTRODUCTION = """\
# Options

Generated from src/headloom/config/ by `python -m headloom.config.options`; edit the schema, not this file.

`group=choice` picks a part, `option=value` sets an option of it: `position=rope position.base=500000`. What is not
listed does not exist and is refused before anything is loaded. Numbers are written as 0.001 or 1e-3; whole numbers
without point or exponent. Relative paths start from the folder where you stand, and are saved as absolute ones.

Every run saves its options with their values in its folder and in its checkpoints: no option takes a secret, and one
that reads an environment variable whose name looks like a secret's is refused.

A YAML file of your own (`--config-dir FOLDER`, with `FOLDER/experiment/mine.yaml`) begins with the line
`# @package _global_`. Quote words such as `no`, `on` and `yes` in it: YAML takes them for truth values.
"""

PRESETS = {
    "trainer": "Presets of the options above.",
    "size": "Presets of the options of `model`.",
    "experiment": "Whole recipes: choices and options of a run, which the command line may still override.",
    "sweep": "Whole sweeps; `python train.py sweep=NAME` runs every combination.",
}


def _root_section(name: str) -> str:
    root = ROOTS[name]
    # Sections of its own: not a choice of a group, and not of train.py.
    shared = {f.type for f in fields(TrainConfig)}
    sections = [f for f in fields(root) if is_dataclass(f.type) and f.type not in shared and root is not TrainConfig]
    parts = [f"# {name}.py\n\n{_summary(root)}\n\n{_table('', _options(root), root)}"]
    for field in sections:
        section: Any = field.type
        parts.append(f"{_summary(section)}\n\n{_table(field.name, _options(section), section)}")
    groups = [f.name for f in fields(root) if f.name in CHOICES and f not in sections]
    return "\n".join([*parts, f"Groups: {', '.join(f'`{group}`' for group in groups)}, described below.\n"])


def _module_section(name: str) -> str:
    schema = MODULES[name]
    return f"# python -m {name}\n\n{_summary(schema)}\n\n{_table('', _options(schema), schema)}"


def _group_section(group: str, base: Any, choices: dict[str, type[Any]]) -> str:
    parts = [f"## {group}\n\n{_summary(base)}\n"]
    shared = [f for f in _options(base) if f.name != DISCRIMINATORS[group]]
    if shared:
        parts.append(f"Options of every choice:\n\n{_table(group, shared, base)}")
    for choice, schema in choices.items():
        own = [f for f in _options(schema) if f.name != DISCRIMINATORS[group] and not _same(f, shared)]
        own.sort(key=lambda field: field.default != MISSING)  # what is required comes first
        parts.append(f"### {group}={choice}\n\n{_summary(schema)}\n")
        if own:
            parts.append(_table(group, own, schema))
    return "\n".join(parts)


def _same(field: Field[Any], shared: list[Field[Any]]) -> bool:
    return any(field.name == other.name and field.default == other.default for other in shared)


def _presets_section(group: str, conf: Path, text: str) -> str:
    """The presets of a group: their values, or of whole recipes the comment that says what they are."""
    parts = [f"### {group} presets\n\n{text}\n"]
    for path in sorted((conf / group).glob("*.yaml")):
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line and "@package" not in line]
        comment = " ".join(line[2:] for line in lines if line.startswith("# "))
        values = [line for line in lines if line[0] not in "# " and line != "defaults:"]
        shown = comment if group in ("experiment", "sweep") else ", ".join(f"`{value}`" for value in values)
        parts.append(f"- `{group}={path.stem}`: {shown}")
    return "\n".join(parts) + "\n"


def _table(section: str, options: list[Field[Any]], schema: type[Any]) -> str:
    lines = ["| option | takes | default | meaning |", "| --- | --- | --- | --- |"]
    for field in options:
        name = f"{section}.{field.name}" if section else field.name
        text = meaning(schema, field.name).replace("|", "\\|")
        lines.append(f"| `{name}` | {takes(field.type)} | {_default(field)} | {text} |")
    return "\n".join(lines) + "\n"


def _default(field: Field[Any]) -> str:
    match field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default:
        case value if value == MISSING:
            return "required"
        case None:
            return "null"
        case bool(value):
            return str(value).lower()
        case Enum(name=name):
            return str(name)
        case value:
            return str(value)


def _summary(schema: Any) -> str:
    return inspect.cleandoc(schema.__doc__ or "").replace("\n", " ")


def main(arguments: list[str]) -> int:
    """Write docs/options.md, or with --check say whether it is up to date."""
    root = Path(__file__).resolve().parents[3]
    document = root / "docs" / "options.md"
    return renew(
        arguments, module="headloom.config.options", document=document, render=lambda _: markdown(root / "conf")
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
