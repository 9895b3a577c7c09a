"""Checkpoints of each family, trained for a few updates."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headloom import run
from headloom.config.schema import TrainConfig
from headloom.config.schema_labelled import ClassificationConfig, ClassifierConfig, LabelledConfig
from headloom.config.schema_language import Batching, Documents, LanguageModelingConfig, LmConfig, TextConfig
from headloom.config.schema_optimizer import AdamConfig
from headloom.config.schema_pretraining import EmbeddingConfig, EmbeddingHeadline, MaskedLanguageModelingConfig
from headloom.config.schema_text import ByteConfig, TranslationConfig
from headloom.config.schema_training import Precision

SIZE = {"d_model": 16, "num_heads": 2, "d_ff": 32, "num_layers": 2}
EXACT = {"precision": Precision.float32}
LINES = [
    " ".join(["abcdefgh"[i % 8 :][:3], *("xyz"[int(digit) % 3 :] + digit for digit in str(i))]) for i in range(200)
]


def _copies(
    make_config: Callable[..., TrainConfig],
    folder: Path,
    *,
    trainer: dict[str, Any],
    data: dict[str, Any],
    lr: float,
    **model: Any,
) -> Path:
    """Checkpoint of the copy task."""
    config = make_config(
        folder / "data",
        trainer=EXACT | {"evaluate_every": None, "save_every": None} | trainer,
        data=data,
        optimizer=AdamConfig(lr=lr),
        model={"dropout": 0.0, **model},
        task=TranslationConfig(label_smoothing=0.0),  # smoothing gives pad a tenth of so small a vocabulary
    )
    run.train(config, folder / "run")
    return folder / "run" / "checkpoints" / "last.pt"


@pytest.fixture(scope="session")
def checkpoint(make_config: Callable[..., TrainConfig], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained until its outputs end and mostly are copies."""
    folder = tmp_path_factory.mktemp("copy")
    data = {"num_train": 300, "num_valid": 20}
    return _copies(make_config, folder, trainer={"max_steps": 150}, data=data, lr=1e-2)


@pytest.fixture(scope="session")
def wide_checkpoint(make_config: Callable[..., TrainConfig], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained until its outputs are copies, and so wide that they stay that with weights of eight bits, also on a
    processor that adds the products of eight bits in sixteen (AVX2)."""
    folder = tmp_path_factory.mktemp("wide_copy")
    trainer, data = {"max_steps": 400, "max_tokens": 400}, {"num_train": 2000, "num_valid": 100}
    return _copies(make_config, folder, trainer=trainer, data=data, lr=3e-3, d_model=64, d_ff=128)


@pytest.fixture(scope="session")
def checkpoints(
    checkpoint: Path, make_config: Callable[..., TrainConfig], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """One of each task."""
    folder = tmp_path_factory.mktemp("every_task")
    (folder / "lines.txt").write_text("".join(f"{line}\n" for line in LINES))
    (folder / "rows.tsv").write_text("".join(f"{line}\t{line[0]}\n" for line in LINES))
    text = {"path": folder / "lines.txt", "folder": folder / "data", "max_length": 24, "valid_share": 0.2}
    lines: dict[str, Any] = text | {"documents": Documents.line, "batching": Batching.documents}
    encoder = ClassifierConfig(**SIZE)
    sections: dict[str, dict[str, Any]] = {
        "language_modeling": {
            "model": LmConfig(**SIZE),
            "task": LanguageModelingConfig(),
            "data": TextConfig(**lines),
        },
        "classification": {
            "model": encoder,
            "task": ClassificationConfig(),
            "data": LabelledConfig(path=folder / "rows.tsv", folder=folder / "data", max_length=24, valid_share=0.2),
        },
        "masked_language_modeling": {
            "model": encoder,
            "task": MaskedLanguageModelingConfig(),
            "data": TextConfig(**text),
        },
        "embedding": {
            "model": encoder,
            "task": EmbeddingConfig(headline=EmbeddingHeadline.loss),
            "data": TextConfig(**lines),
        },
    }
    found = {"translation": checkpoint}
    for task, options in sections.items():
        trainer = EXACT | {"max_steps": 4, "max_tokens": 200, "evaluate_every": None, "save_every": None}
        run.train(make_config(tokenizer=ByteConfig(), trainer=trainer, **options), folder / task)
        found[task] = folder / task / "checkpoints" / "last.pt"
    return found
