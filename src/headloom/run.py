"""What the entry points and the tests call: train, evaluate, translate.

Modules that only one of them needs are imported inside it, so that a
translation starts fast.
"""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import torch

from headloom import build
from headloom.build_model import build_model
from headloom.config import saved
from headloom.config.schema import EvaluateConfig, TrainConfig, TranslateConfig
from headloom.config.schema_data import DataConfig
from headloom.config.schema_training import DecodingConfig
from headloom.config.strict import check_can_be_written
from headloom.data.files import open_parallel, read_lines, written_beside
from headloom.data.tokenizer_base import Tokenizer
from headloom.decoding.arrival import as_they_arrive
from headloom.decoding.translator import Translator
from headloom.errors import DataError
from headloom.models.seq2seq import Seq2Seq
from headloom.training.checkpoint import load_checkpoint, load_weights
from headloom.training.memory import keep_freed_memory
from headloom.training.precision import autocast_dtype, choose_device

if TYPE_CHECKING:
    from headloom.data.text import TextPairs

logger = logging.getLogger(__name__)


def train(config: TrainConfig, run_dir: Path) -> float:
    """Train as `config` says, with everything the run leaves in `run_dir`; the best headline metric reached.

    Raises:
        ConfigError, DataError, CheckpointError: the run cannot start or go on; the message says why.
        TrainingDiverged: see `Trainer.train_step`.
        SystemExit: it was interrupted, after `last.pt` was written; the status is 128 + the signal's number.
    """
    from headloom.training_run import TrainingRun

    keep_freed_memory()
    return TrainingRun(config, run_dir).run()


@dataclass(frozen=True)
class Trained:
    """What a checkpoint holds for use: the averaged weights where there are any."""

    config: TrainConfig
    model: Seq2Seq
    tokenizers: tuple[Tokenizer, Tokenizer]
    step: int
    device: torch.device
    dtype: torch.dtype | None
    """Type of the matrix products; None: float32."""

    def translator(self, decoding: DecodingConfig) -> Translator:
        return build.build_translator(
            decoding,
            self.model,
            self.tokenizers,
            max_source_length=self.config.data.max_length,
            device=self.device,
            autocast_dtype=self.dtype,
        )


def load_trained(path: Path, *, device: str, precision: str) -> Trained:
    """The model and tokenizers of a checkpoint, which needs no other file.

    Raises:
        CheckpointError: the file cannot be read, or does not fit this version.
        ConfigError: the device or precision is not to be had here.
    """
    target = choose_device(device)
    contents = load_checkpoint(path, target)
    config = saved.from_plain(contents["config"])
    source, target_tokenizer = build.saved_tokenizers(contents["tokenizers"])
    with torch.random.fork_rng(devices=[]):  # initial weights are overwritten: drawing them must leave no trace
        model = build_model(config, source_vocab_size=source.vocab_size, target_vocab_size=target_tokenizer.vocab_size)
    load_weights(model, contents["model"], path=path)
    if contents["average"] is not None:
        model.load_state_dict(contents["average"]["weights"], strict=False)  # parameters; tied ones once
    model.to(target).eval()
    return Trained(
        config, model, (source, target_tokenizer), contents["step"], target, autocast_dtype(precision, target)
    )


def evaluate(config: EvaluateConfig) -> dict[str, Any]:
    """Score a checkpoint on a split of its corpus or on two files; print the scores and write them with the texts.

    Writes evaluation.json, hypotheses.txt, source.txt and reference.txt.

    Raises:
        ConfigError, DataError, CheckpointError: it cannot be scored; the message says why.
    """
    from headloom.data.batch import EvaluationBatches
    from headloom.data.token_store import tokenize_pairs

    keep_freed_memory()
    trained = load_trained(config.checkpoint, device=config.device.name, precision=config.precision.name)
    output = config.output or _run_dir(config.checkpoint) / "evaluation" / config.data.name
    # The folder of the training may be another machine's.
    kept = replace(trained.config.data, folder=config.data.folder or trained.config.data.folder)
    check_can_be_written("data.folder", kept.folder, folder=True)
    pairs, name = _pairs_to_score(config, kept)
    tokens = tokenize_pairs(
        pairs,
        *trained.tokenizers,
        folder=kept.folder / "prepared",
        max_length=trained.config.data.max_length,
        truncate=True,
        description=name,
    )
    batches = EvaluationBatches(tokens, *trained.tokenizers, max_tokens=trained.config.trainer.max_tokens)
    evaluation = build.build_task(trained.config.task).evaluate(
        trained.model,
        batches,
        trained.translator(config.decoding),
        device=trained.device,
        autocast_dtype=trained.dtype,
        description=name,
    )
    results = {
        "checkpoint": str(config.checkpoint),
        "step": trained.step,
        "data": name,
        "num_pairs": len(tokens),
        **{key: value for key, value in evaluation.metrics.items()},
        "signatures": dict(evaluation.signatures),
        "decoding": saved.to_plain(config.decoding),
    }
    texts = [tokens.text(row) for row in range(len(tokens))]
    output.mkdir(parents=True, exist_ok=True)
    _write_lines(output / "source.txt", [source for source, _ in texts])
    _write_lines(output / "reference.txt", [target for _, target in texts])
    _write_lines(output / "hypotheses.txt", evaluation.hypotheses)
    with written_beside(output / "evaluation.json") as partial:
        partial.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")
    for key, value in evaluation.metrics.items():
        signature = evaluation.signatures.get(key)
        sys.stdout.write(f"{key:<12}{value:>9.4f}" + (f"   {signature}" if signature else "") + "\n")
    sys.stdout.write(f"{len(tokens)} pairs of {name}; texts and evaluation.json in {output}\n")
    return results


def _pairs_to_score(config: EvaluateConfig, kept: DataConfig) -> tuple["TextPairs", str]:
    """The pairs and what to call them. `kept`: the corpus of the training, and where it is kept here."""
    if config.data.source is not None and config.data.target is not None:
        pairs = open_parallel(config.data.source, config.data.target, cache=kept.folder / "prepared")
        return pairs, pairs.name
    corpus = build.build_corpus(kept)
    split = config.data.name
    found = corpus.test if split == "test" else corpus.valid
    if found is None:
        raise DataError(
            f"{corpus.name} has no test split: score data.split=valid, or two files with data.source= and data.target="
        )
    return found, f"{corpus.name} {split}"


def translate(config: TranslateConfig) -> None:
    """Translate the lines of a stream or file: one line out for each line in, in order.

    Raises:
        ConfigError, DataError, CheckpointError: the message says why; a file named by `output` is then as it was.
    """
    keep_freed_memory()
    trained = load_trained(config.checkpoint, device=config.device.name, precision=config.precision.name)
    translator = trained.translator(config.decoding)
    with _input(config.input) as lines, _output(config.output) as output:
        for line in translator.stream(lines, buffer_lines=config.buffer_lines):
            output.write(line + "\n")
            output.flush()


@contextmanager
def _input(path: Path) -> Iterator[Iterator[str | None]]:
    """Lines, with None where a person or a slow program has not written the next one yet."""
    if str(path) != "-":
        try:
            stream = path.open("rb")
        except OSError as error:
            raise DataError(f"input={path} cannot be read ({error.strerror})") from error
        with stream:
            yield iter(read_lines(stream, name=str(path)))
        return
    if sys.stdin.isatty():
        sys.stderr.write("Type a sentence and press Enter; Ctrl-D ends.\n")
    # Not sys.stdin: the reading thread may hold its lock when the interpreter ends.
    with open(0, "rb", closefd=False) as stream:
        yield as_they_arrive(read_lines(stream))


@contextmanager
def _output(path: Path) -> Iterator[TextIO]:
    """stdout, or a file that is whole or as it was."""
    if str(path) == "-":
        with open(1, "w", encoding="utf-8", newline="\n", closefd=False) as stream:
            yield stream
        return
    with written_beside(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as stream:
        yield stream


def _run_dir(checkpoint: Path) -> Path:
    """The run's folder of RUN/checkpoints/NAME.pt; the file's own folder where it lies elsewhere."""
    folder = checkpoint.resolve().parent
    return folder.parent if folder.name == "checkpoints" else folder


def _write_lines(path: Path, lines: list[str]) -> None:
    with written_beside(path) as partial:
        partial.write_text("".join(line + "\n" for line in lines), encoding="utf-8", newline="\n")
