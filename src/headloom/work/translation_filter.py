"""What translate.py does with a translation checkpoint: see `decoding.lines.Predictor`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headloom.decoding.counts import Counts
from headloom.decoding.lines import Reply, text_of, texts_of, whole_number_of
from headloom.decoding.phrases import blank, forbidden_in, unwritable
from headloom.decoding.requests import Beam, MinimumBayesRisk, Output, Request, Sample
from headloom.decoding.scoring import score_pairs
from headloom.decoding.translator import Translator
from headloom.errors import DataError


class TranslationPredictor:
    """Translates: text to text, n-best divided by tabs.

    In JSON Lines a line has its text in `source` and may have `prefix`,
    `required`, `forbidden` and `seed`; it gets `translation`, `score`,
    `log_probability`, with alignments `alignment`, and with several outputs all
    of them in `n_best`.
    """

    def __init__(self, translator: Translator) -> None:
        self.translator = translator
        self.counts = Counts()
        method = translator.method
        self.has_n_best = not (isinstance(method, Beam | MinimumBayesRisk) and method.num_best == 1) and (
            method.rows_a_sentence > 1
        )

    def read(self, line: str | Mapping[str, Any]) -> Request:
        if isinstance(line, str):
            return Request(source=line)
        request = Request(
            source=text_of(line, "source"),
            prefix=text_of(line, "prefix", default=""),
            required=texts_of(line, "required"),
            forbidden=texts_of(line, "forbidden"),
            seed=whole_number_of(line, "seed"),
        )
        self._check_phrases(request)
        method = self.translator.method
        if self.translator.engine is not None and (request.prefix or request.required):
            name = "prefix" if request.prefix else "required"
            raise DataError(f"has a field {name!r}, which CTranslate2 does not take")
        if request.required and not (isinstance(method, Beam) and method.beam_size > 1):
            raise DataError("has a field 'required', which needs decoding=beam and decoding.beam_size above 1")
        draws = isinstance(method, Sample) or (
            isinstance(method, MinimumBayesRisk) and isinstance(method.candidates, Sample)
        )
        if request.seed is not None and not draws:
            raise DataError("has a field 'seed', which needs decoding=sample or mbr")
        return request

    def _check_phrases(self, request: Request) -> None:
        asked = [
            *(("required", phrase, unwritable) for phrase in request.required),
            *(("forbidden", phrase, blank) for phrase in request.forbidden),
            *([("prefix", request.prefix, unwritable)] if request.prefix.strip() else []),
        ]
        for name, phrase, obstacle in asked:
            if reason := obstacle(self.translator.target_tokenizer, phrase):
                raise DataError(f"has {phrase!r} in field {name!r}, {reason}")
        self._check_forbidden(request)
        self._check_room(request)

    def _check_forbidden(self, request: Request) -> None:
        forbidden = [*self.translator.forbidden, *request.forbidden]
        if not forbidden:
            return
        tokenizer = self.translator.target_tokenizer
        if held := forbidden_in(tokenizer, request.prefix, forbidden, at_beginning=True):
            raise DataError(f"has {request.prefix!r} in field 'prefix', which holds {held!r}, and that is forbidden")
        for phrase in (*self.translator.required, *request.required):
            if held := forbidden_in(tokenizer, phrase, forbidden, at_beginning=False):
                raise DataError(f"requires {phrase!r}, which holds {held!r}, and that is forbidden")

    def _check_room(self, request: Request) -> None:
        wanted = [text for text in (request.prefix, *request.required, *self.translator.required) if text]
        room = self.translator.positions
        if room is None or not wanted:
            return
        num_tokens = sum(map(len, self.translator.target_tokenizer.encode(wanted)))
        if num_tokens >= room:
            raise DataError(
                f"asks for {num_tokens} tokens in its prefix and what is required, and the positions of the model end "
                f"at {room}, eos counted: ask for less, or set position.max_length"
            )

    def answer(self, items: Sequence[Request]) -> Iterator[tuple[int, Reply]]:
        with self.translator.computing():  # around all batches: at its end converted weights are dropped
            for place, outputs in self.translator.answers(items, self.counts):
                texts = [output.text.replace("\t", " ") for output in outputs]
                fields = self._fields(outputs[0])
                if self.has_n_best:
                    fields["n_best"] = [self._fields(output) for output in outputs]
                yield (
                    place,
                    Reply(
                        "\t".join(texts) if self.has_n_best else outputs[0].text,
                        fields,
                        sum(output.num_tokens for output in outputs),
                    ),
                )

    def finish(self) -> None:
        self.counts.report()

    def _fields(self, output: Output) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "translation": output.text,
            "score": output.score,
            "log_probability": output.log_probability,
        }
        if self.translator.with_alignments:
            fields["alignment"] = output.alignment or []
        if output.error is not None:
            fields["error"] = output.error
        return fields


class PairScorer:
    """Scores pairs: text is a source, a tab and a target.

    It gets the log-probability (nats) of the target, a tab, and those of its
    tokens and of the eos behind them. In JSON Lines a line has `source` and
    `target`; it gets `log_probability` and `tokens`, each with `piece` and
    `log_probability`.
    """

    def __init__(self, translator: Translator) -> None:
        self.translator = translator
        self.counts = Counts()

    def read(self, line: str | Mapping[str, Any]) -> tuple[str, str]:
        if not isinstance(line, str):
            return text_of(line, "source"), text_of(line, "target")
        columns = line.split("\t")
        if len(columns) != 2:
            raise DataError(
                f"has {len(columns)} columns where decoding=score needs 2: source and target, divided by a tab"
            )
        return columns[0], columns[1]

    def answer(self, items: Sequence[tuple[str, str]]) -> Iterator[tuple[int, Reply]]:
        with self.translator.computing():
            for place, pieces, log_probs in score_pairs(self.translator, items, self.counts):
                total = sum(log_probs)
                tokens = [
                    {"piece": piece, "log_probability": _number(log_prob)}
                    for piece, log_prob in zip(pieces, log_probs, strict=True)
                ]
                text = f"{total:.6f}\t{' '.join(f'{log_prob:.6f}' for log_prob in log_probs)}"
                yield place, Reply(text, {"log_probability": _number(total), "tokens": tokens}, len(log_probs))

    def finish(self) -> None:
        self.counts.report()


def _number(value: float) -> float | None:
    """JSON has neither NaN nor infinity."""
    return value if math.isfinite(value) else None
