"""What every export holds beside the model: the tokenizers as files, and headloom.json, which describes it.

headloom.json has the format, the checkpoint that it was made of (SHA-256 of its
file), the configuration of the training, and of a classifier the labels. A
SentencePiece tokenizer is a .model file that SentencePiece itself reads.
"""

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


def write_description(trained: Trained, folder: Path, *, format: str, checkpoint: str) -> None:
    """`checkpoint`: the SHA-256 of its file, in hexadecimal."""
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
    if content["version"] > VERSION:
        raise CheckpointError(f"{path} has version {content['version']}; this one reads up to {VERSION}: upgrade")
    tokenizers = {}
    for side, described in content["tokenizers"].items():
        if described is not None and "file" in described:
            model = folder / described.pop("file")
            if not model.is_file():
                raise CheckpointError(f"{folder} is not whole: {model.name} is missing; export again")
            described["model"] = model.read_bytes()
        tokenizers[side] = described
    contents = {"tokenizers": tokenizers, "labels": content["labels"]}
    config = saved.from_plain(content["config"])
    return Description(content["format"], content["checkpoint"], content["step"], config, contents)
