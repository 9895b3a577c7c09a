"""Translation as a work: pairs, two tokenizers, an encoder-decoder, samples and attention maps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from headloom import build
from headloom.build_decoding import build_translator
from headloom.build_model import build_model
from headloom.config.schema import TrainConfig
from headloom.data.batch import Batch, EvaluationBatches, TrainingBatches
from headloom.data.text import Corpus
from headloom.data.token_store import tokenize_pairs, warn_of_unknown
from headloom.data.tokenizer_base import Tokenizer
from headloom.insight.samples import Sample, sample_rows
from headloom.models.seq2seq import Seq2Seq
from headloom.nn.attention import recording_attention
from headloom.nn.evaluating import evaluating
from headloom.ranks import Ranks
from headloom.tasks.translation import TranslationTask
from headloom.work.warm_start import WarmStart

if TYPE_CHECKING:
    from headloom.insight.dashboard import Dashboard  # loads TensorBoard: not to use a checkpoint

MAPPED_TOKENS = (6, 24)
"""Fewest and most tokens a side of the sentence whose attention is drawn, where there is such a one."""


def fresh_model(config: TrainConfig, contents: Mapping[str, Any]) -> Seq2Seq:
    """The model of a checkpoint, before its weights are loaded."""
    source, target = build.saved_tokenizers(contents["tokenizers"])
    return build_model(config, source_vocab_size=source.vocab_size, target_vocab_size=target.vocab_size)


def _tokenizers(
    config: TrainConfig, corpus: Corpus, folder: Path, warm: WarmStart | None
) -> tuple[Tokenizer, Tokenizer]:
    if warm is None:
        return build.build_tokenizers(config.tokenizer, corpus.train, folder)
    source, target = warm.tokenizers(config.tokenizer)
    return source, target or build.build_tokenizers(config.tokenizer, corpus.train, folder)[1]


class TranslationWork:
    """See `work.base.Work`."""

    model: Seq2Seq
    task: TranslationTask

    def __init__(self, config: TrainConfig, contents: Mapping[str, Any] | None, warm: WarmStart | None = None) -> None:
        self.config = config
        corpus = build.build_corpus(config.data)
        self.corpus = corpus
        prepared = config.data.folder / "prepared"
        if contents is None:
            self.tokenizers = _tokenizers(config, corpus, prepared, warm)
        else:
            self.tokenizers = build.saved_tokenizers(contents["tokenizers"])
        source, target = self.tokenizers
        self.train_pairs, self.valid_pairs = (
            tokenize_pairs(
                pairs,
                source,
                target,
                folder=prepared,
                max_length=config.data.max_length,
                truncate=name != "train",
                description=f"{corpus.name} {name}",
            )
            for name, pairs in (("train", corpus.train), ("valid", corpus.valid))
        )
        warn_of_unknown(self.train_pairs, source, target, corpus.name)
        self.train_batches = TrainingBatches(
            self.train_pairs,
            source,
            target,
            max_tokens=config.trainer.max_tokens,
            seed=config.seed,
            pad_to_multiple=config.trainer.pad_to_multiple,
            sampling=source.sampling > 0 or target.sampling > 0,
            sampled_sides=build.sampled_sides(config.tokenizer),
        )
        self.valid_batches = EvaluationBatches(self.valid_pairs, source, target, max_tokens=config.trainer.max_tokens)
        self.sample_rows = sample_rows(len(self.valid_pairs))
        self.mapped_row = self._row_to_map()

    @property
    def corpus_fingerprint(self) -> str:
        return self.corpus.train.fingerprint

    @property
    def valid_fingerprint(self) -> str:
        return self.corpus.valid.fingerprint

    def summary(self) -> str:
        source, target = self.tokenizers
        vocabulary = source.vocab_size if source is target else f"{source.vocab_size} and {target.vocab_size}"
        return (
            f"{self.corpus.name}: {len(self.train_pairs)} training pairs, {len(self.valid_pairs)} validation pairs; "
            f"vocabulary {vocabulary}"
        )

    def texts(self, batch: Batch) -> Sequence[str]:
        return [" => ".join(self.train_pairs.text(int(row))) for row in batch.rows]

    def saved(self) -> dict[str, Any]:
        source, target = self.tokenizers
        return {
            "tokenizers": {"source": source.state(), "target": None if target is source else target.state()},
        }

    def build(self, device: torch.device, dtype: torch.dtype | None) -> None:
        source, target = self.tokenizers
        self.device, self.dtype = device, dtype
        self.model = build_model(self.config, source_vocab_size=source.vocab_size, target_vocab_size=target.vocab_size)
        self.model.to(device).train()
        self.task = build.build_task(self.config.task)
        self.translator = build_translator(
            self.config.decoding,
            self.model,
            self.tokenizers,
            max_source_length=self.config.data.max_length,
            device=device,
            autocast_dtype=dtype,
        )

    def validate(self, step: int, dashboard: "Dashboard", ranks: Ranks) -> Mapping[str, float]:
        decodes = self.task.headline != "loss"
        evaluation = self.task.evaluate(
            self.model,
            self.valid_batches,
            self.translator if decodes else None,
            device=self.device,
            autocast_dtype=self.dtype,
            description="validation",
            ranks=ranks,
        )
        texts = [self.valid_pairs.text(row) for row in self.sample_rows]
        if decodes:
            translations = [evaluation.hypotheses[row] for row in self.sample_rows]
        else:
            translations = self.translator.translate([source for source, _ in texts])
        dashboard.samples(
            step, [Sample(source, target, out) for (source, target), out in zip(texts, translations, strict=True)]
        )
        self._draw_attention(step, dashboard)
        return evaluation.metrics

    def _draw_attention(self, step: int, dashboard: "Dashboard") -> None:
        from headloom.insight.attention_maps import attention_figures  # loads matplotlib: not to use a checkpoint

        source, target = self.tokenizers
        source_ids = [int(i) for i in self.valid_pairs.source(self.mapped_row)]
        input_ids = [target.bos_id, *(int(i) for i in self.valid_pairs.target(self.mapped_row)[:-1])]
        with evaluating(self.model), recording_attention(self.model) as weights:
            self.model(
                torch.tensor([source_ids], device=self.device), None, torch.tensor([input_ids], device=self.device)
            )
        for tag, pixels in attention_figures(
            weights, source_pieces=source.pieces(source_ids), target_pieces=target.pieces(input_ids)
        ):
            dashboard.figure(step, tag, pixels)

    def _row_to_map(self) -> int:
        """The first sample of a readable length; the first one where there is none."""
        fewest, most = MAPPED_TOKENS
        for row in self.sample_rows:
            lengths = int(self.valid_pairs.source_lengths[row]), int(self.valid_pairs.target_lengths[row])
            if fewest <= min(lengths) and max(lengths) <= most:
                return row
        return self.sample_rows[0]
