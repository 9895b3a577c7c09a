"""What every export holds beside the model: the tokenizers as files, and headloom.json, which describes it.

headloom.json has the format, the checkpoint that it was made of (SHA-256 of its
file), the configuration of the training, of a classifier the labels, and the
SHA-256 of each file beside it. A SentencePiece tokenizer is a .model file that
SentencePiece itself reads.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headloom.config import saved
from headloom.config.schema import TrainConfig
from headloom.config.strict import EXPORT_NAME
from headloom.errors import CheckpointError
from headloom.work.base import Trained

VERSION = 1
MODEL_FILES = {"source": "source.model", "target": "target.model", "text": "tokenizer.model"}
JOINT = "tokenizer.model"


@dataclass(frozen=True)
class Description:
    """An export: `contents` as in a checkpoint, tokenizers and labels."""

    format: str
    checkpoint: str
    step: int
    config: TrainConfig
    contents: Mapping[str, Any]


def sha256_of(path: Path) -> str:
    """In hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_description(trained: Trained, folder: Path, *, format: str, checkpoint: str) -> None:
    """Of all that is in `folder`. `checkpoint`: the SHA-256 of its file."""
    tokenizers: dict[str, Any] = {}
    states = trained.contents["tokenizers"]
    for side, state in states.items():
        if state is None:
            tokenizers[side] = None
            continue
        described = {name: value for name, value in state.items() if name != "model"}
        if "model" in state:
            described["file"] = JOINT if side == "source" and states.get("target") is None else MODEL_FILES[side]
            (folder / described["file"]).write_bytes(state["model"])
        tokenizers[side] = described
    content = {
        "magic": "headloom export",
        "version": VERSION,
        "format": format,
        "checkpoint": checkpoint,
        "step": trained.step,
        "tokenizers": tokenizers,
        "labels": trained.contents.get("labels"),
        "config": saved.to_plain(trained.config),
        "files": {
            path.relative_to(folder).as_posix(): sha256_of(path) for path in sorted(folder.rglob("*")) if path.is_file()
        },
    }
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    (folder / EXPORT_NAME).write_text(text, encoding="utf-8", newline="\n")


def read_description(folder: Path) -> Description:
    """What `write_description` wrote.

    Raises:
        CheckpointError: the folder is no export of ours, is damaged, or is a newer version's.
    """
    path = folder / EXPORT_NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is no export: it has no {EXPORT_NAME}; name a checkpoint's file") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}): export again") from error
    if not isinstance(content, dict) or content.get("magic") != "headloom export":
        raise CheckpointError(f"{path} does not describe an export of Headloom")
    try:
        return _described(folder, content)
    except (AttributeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error!r}): export again") from error


def _described(folder: Path, content: Mapping[str, Any]) -> Description:
    if content["version"] > VERSION:
        raise CheckpointError(
            f"{folder / EXPORT_NAME} has version {content['version']}; this one reads up to {VERSION}: upgrade"
        )
    for name, digest in content.get("files", {}).items():  # an early export has none
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder} is not whole: {name} is missing; export again")
        if sha256_of(folder / name) != digest:
            raise CheckpointError(f"{folder} is damaged: {name} is not as it was exported; export again")
    tokenizers = {}
    for side, described in content["tokenizers"].items():
        if described is not None and "file" in described:
            model = folder / Path(described.pop("file")).name
            if not model.is_file():
                raise CheckpointError(f"{folder} is not whole: {model.name} is missing; export again")
            described["model"] = model.read_bytes()
        tokenizers[side] = described
    contents = {"tokenizers": tokenizers, "labels": content["labels"]}
    config = saved.from_plain(content["config"])
    return Description(content["format"], content["checkpoint"], content["step"], config, contents)
