"""An embedding checkpoint in use: pairs compared by evaluate.py, vectors of lines by translate.py."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from headloom import build_embedding
from headloom.config.rules import no_effect
from headloom.config.schema_use import EvaluateConfig, LineFormat, TranslateConfig
from headloom.config.strict import check_can_be_written
from headloom.decoding.lines import Reply, text_of
from headloom.decoding.vectors import VECTOR_SUFFIX
from headloom.errors import ConfigError
from headloom.models.embedder import Embedder
from headloom.tasks.embedding import embed, likeness_correlation
from headloom.work.base import Trained
from headloom.work.results_file import write_results
from headloom.work.running_text import saved_tokenizer


def vector_predictor(trained: Trained, config: TranslateConfig, ensemble: Sequence[Trained]) -> "EmbeddingPredictor":
    """What makes a vector of each line.

    Raises:
        ConfigError: an option has no meaning here, or vectors cannot be written so.
    """
    if ensemble:
        raise no_effect("ensemble", "a checkpoint of task=embedding")
    if config.alignments:
        raise no_effect("alignments", "a checkpoint of task=embedding")
    if config.output.suffix != VECTOR_SUFFIX and config.format is LineFormat.text:
        raise ConfigError(
            "a checkpoint of task=embedding answers with vectors, which are no lines of text: "
            f"set output=FILE{VECTOR_SUFFIX} or format=jsonl"
        )
    return EmbeddingPredictor(trained, normalize=config.normalize is not False)


class EmbeddingPredictor:
    """See `decoding.lines.Predictor` and `decoding.vectors.VectorPredictor`. In JSON Lines a line has `text` and gets
    `vector`."""

    def __init__(self, trained: Trained, *, normalize: bool) -> None:
        assert isinstance(trained.model, Embedder)
        self.model = trained.model
        self.width = trained.config.model.d_model
        self.normalize = normalize
        self.encoding = build_embedding.build_encoding(
            trained.config, saved_tokenizer(trained.contents), device=trained.device, autocast_dtype=trained.dtype
        )

    def read(self, line: str | Mapping[str, Any]) -> str:
        return line if isinstance(line, str) else text_of(line, "text")

    def vectors(self, texts: list[str]) -> np.ndarray:
        return embed(self.model, texts, self.encoding, normalize=self.normalize)

    def answer(self, items: Sequence[str]) -> Iterator[tuple[int, Reply]]:
        for place, vector in enumerate(self.vectors(list(items))):
            yield place, Reply("", {"vector": vector.tolist()})

    def finish(self) -> None:
        pass


def evaluate_embedding(trained: Trained, config: EvaluateConfig, output: Path) -> dict[str, Any]:
    """Compare the pairs of a file, or score a split of the corpus; print the scores and write evaluation.json.

    Raises:
        ConfigError, DataError: it cannot be scored; the message says why.
    """
    if config.data.source is not None:
        raise ConfigError("data.source and data.target are for translation; compare pairs of texts with data.path=")
    # The folder of the training may be another machine's.
    folder = config.data.folder or trained.config.data.folder
    check_can_be_written("data.folder", folder, folder=True)
    assert isinstance(trained.model, Embedder)
    tokenizer = saved_tokenizer(trained.contents)
    encoding = build_embedding.build_encoding(
        trained.config, tokenizer, device=trained.device, autocast_dtype=trained.dtype
    )
    metrics: Mapping[str, float]
    if config.data.path is not None:
        name = str(config.data.path)
        rows = build_embedding.read_likeness(config.data.path, cache=folder)
        metrics = {"spearman": likeness_correlation(trained.model, rows, encoding)}
    else:
        kept = replace(trained.config, data=replace(trained.config.data, folder=folder))
        corpus = build_embedding.SentenceCorpus.of(kept)
        name = f"{corpus.corpus.name} {config.data.name}"
        tokens = corpus.tokens(kept, tokenizer, config.data.name)
        batches = build_embedding.build_evaluation_batches(kept, tokens, tokenizer)
        task = build_embedding.build_embedding_task(kept)
        metrics = task.evaluate(trained.model, batches, None, encoding, description=name)
    results = {"checkpoint": str(config.checkpoint), "step": trained.step, "data": name, **metrics}
    output.mkdir(parents=True, exist_ok=True)
    write_results(output / "evaluation.json", results)
    for key, value in metrics.items():
        sys.stdout.write(f"{key:<12}{value:>9.4f}\n")
    sys.stdout.write(f"{name}; evaluation.json in {output}\n")
    return results
