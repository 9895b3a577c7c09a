"""What translate.py does with a checkpoint of the encoder with a head: see `decoding.lines.Predictor`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from headloom import build_labelled
from headloom.config import schema_labelled
from headloom.config.rules import no_effect
from headloom.config.schema_use import TranslateConfig
from headloom.data.labelled import BETWEEN_TEXTS
from headloom.data.labelled_batch import padded_tokens
from headloom.data.labelled_store import Rows
from headloom.data.mapped import Ranges
from headloom.data.sampler import ordered_batches
from headloom.data.tokenizer import tokenizer_from_state
from headloom.decoding.lines import Reply, text_of
from headloom.errors import ConfigError, DataError
from headloom.models.classifier import Classifier
from headloom.nn.evaluating import evaluating_in
from headloom.tasks.classification import answers, mean_log_probability
from headloom.tasks.tagging import outside_of
from headloom.work.base import Trained


def label_predictor(trained: Trained, config: TranslateConfig, ensemble: Sequence[Trained]) -> "LabelPredictor":
    """Answers of a checkpoint, one for each line.

    Raises:
        ConfigError: an option has no meaning here.
    """
    task = trained.config.task.kind.name
    if ensemble:
        raise ConfigError(f"ensemble is for translation, and this checkpoint is one of task={task}: remove it")
    if config.alignments:
        raise no_effect("alignments=true", f"a checkpoint of task={task}")
    return LabelPredictor(trained)


class LabelPredictor:
    """Names the label of a text, its value, or the tags of its words; no answer depends on the lines beside it.

    Text: the label, a tab and its probability; the value; or the tags with
    blanks between them. Two texts in a line have a tab between them. In JSON
    Lines a line has `text`, and `second_text` where there are two; it gets
    `label` and `probability`, `value`, or the list `tags`.
    """

    def __init__(self, trained: Trained) -> None:
        assert isinstance(trained.model, Classifier)
        assert isinstance(trained.config.data, schema_labelled.LabelledTextConfig)
        self.trained = trained
        self.model = trained.model
        self.labels = trained.contents["labels"]
        self.tokenizer = tokenizer_from_state(trained.contents["tokenizers"]["source"])
        self.encoder = build_labelled.build_encoder(trained.config, self.tokenizer, self.labels)
        self.num_segmentations = build_labelled.num_segmentations(trained.config)
        self.has_two_texts = trained.config.data.has_two_texts
        self.has_tags = trained.config.data.has_tags

    def read(self, line: str | Mapping[str, Any]) -> str:
        if not isinstance(line, str):
            texts = [text_of(line, name) for name in ("text", "second_text")[: 1 + self.has_two_texts]]
            line = BETWEEN_TEXTS.join(text.replace(BETWEEN_TEXTS, " ") for text in texts)
        elif self.has_two_texts and line.count(BETWEEN_TEXTS) != 1:
            raise DataError(
                f"has {1 + line.count(BETWEEN_TEXTS)} columns where this checkpoint needs 2, divided by a tab"
            )
        if self.has_two_texts:
            return line
        line = line.replace(BETWEEN_TEXTS, " ")
        return " ".join(word for word in line.split(" ") if word) if self.has_tags else line

    def answer(self, items: Sequence[str]) -> Iterator[tuple[int, Reply]]:
        if not items:
            return
        variants = [self.encoder.variant(items, number) for number in range(self.num_segmentations)]
        all_ids = [Ranges.of(rows.ids) for rows in variants]
        lengths = all_ids[0].lengths
        dtype, device = self.trained.dtype, self.trained.device
        max_tokens = self.trained.config.trainer.max_tokens
        for batch in ordered_batches(lengths, lengths, max_tokens=max_tokens):
            segmentations = [padded_tokens(ids.take(batch), pad=self.tokenizer.pad_id) for ids in all_ids]
            with evaluating_in(self.model, device, dtype):
                found = answers(self.model, segmentations, device).cpu()
            told = mean_log_probability(found) if "names" in self.labels else found.mean(0)
            for row, answer in zip(batch.tolist(), told, strict=True):
                yield row, self._reply(answer, variants[0], row, items[row])

    def finish(self) -> None:
        pass

    def _reply(self, answer: torch.Tensor, rows: Rows, row: int, text: str) -> Reply:
        num_tokens = len(rows.ids[row])
        if self.has_tags:
            tags = self._tags(answer, rows, row, text)
            return Reply(" ".join(tags), {"tags": tags}, num_tokens)
        if "names" not in self.labels:
            value = self.labels["centre"] + self.labels["spread"] * answer.item()
            return Reply(f"{value:.6g}", {"value": value}, num_tokens)
        best = answer.max(-1)
        label, probability = self.labels["names"][int(best.indices)], best.values.exp().item()
        return Reply(f"{label}\t{probability:.6f}", {"label": label, "probability": probability}, num_tokens)

    def _tags(self, log_p_SC: torch.Tensor, rows: Rows, row: int, text: str) -> list[str]:
        """A tag for each word; those that were cut off are outside of all."""
        assert rows.words is not None
        if not text:
            return []
        names = self.labels["names"]
        tags = [names[i] for i in log_p_SC[torch.from_numpy(rows.words[row])].argmax(-1).tolist()]
        return tags + [outside_of(names)] * (len(text.split(" ")) - len(tags))
