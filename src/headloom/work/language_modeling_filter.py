"""What translate.py does with a language model: see `decoding.lines.Predictor`."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headloom.decoding.continuation import Continuer, Prompt
from headloom.decoding.lines import Reply, text_of, whole_number_of
from headloom.decoding.requests import Beam, Sample
from headloom.decoding.search import NOTHING, Hypothesis
from headloom.errors import DataError

logger = logging.getLogger(__name__)


class ContinuingPredictor:
    """Continues: a line gets what follows it, without the line itself; several outputs are divided by tabs.

    An empty line begins a text. Line ends in an output are blanks. In JSON Lines
    a line has its text in `prompt` and may have `seed`; it gets `continuation`
    and `log_probability`, and with several outputs all of them in `n_best`.
    """

    def __init__(self, continuer: Continuer) -> None:
        self.continuer = continuer
        method = continuer.method
        self.has_n_best = method.rows_a_sentence > 1 and not (isinstance(method, Beam) and method.num_best == 1)
        self.num_lines = self.num_without_output = 0

    def read(self, line: str | Mapping[str, Any]) -> Prompt:
        if isinstance(line, str):
            return Prompt(self._encode(line))
        prompt = Prompt(self._encode(text_of(line, "prompt")), whole_number_of(line, "seed"))
        if prompt.seed is not None and not isinstance(self.continuer.method, Sample):
            raise DataError("has a field 'seed', which needs decoding=sample")
        return prompt

    def answer(self, items: Sequence[Prompt]) -> Iterator[tuple[int, Reply]]:
        self.num_lines += len(items)
        for place, hypotheses in self.continuer.continued(items):
            self.num_without_output += hypotheses == [NOTHING]
            outputs = {self.continuer.tokenizer.decode(one.ids): one for one in reversed(hypotheses)}
            fields = [self._fields(text, one) for text, one in reversed(outputs.items())]
            best = fields[0]["continuation"]
            text = best
            if self.has_n_best:
                fields[0]["n_best"] = [dict(some) for some in fields]
                text = "\t".join(some["continuation"].replace("\t", " ") for some in fields)
            yield place, Reply(text, fields[0], sum(len(one.ids) + 1 for one in hypotheses if one is not NOTHING))

    def finish(self) -> None:
        if not self.num_without_output:
            return
        continuer = self.continuer
        wishes = (continuer.required, continuer.forbidden, continuer.no_repeat_ngram)
        if any(wishes) and all(weight.isfinite().all() for weight in continuer.model.parameters()):
            reason = (
                "none was found that holds what is required and nothing forbidden; loosen decoding.required, forbidden "
                "or no_repeat_ngram, or raise decoding.max_length or beam_size"
            )
        else:
            reason = "the model's logits are not finite. Has its training diverged?"
        logger.warning("%d of %d lines have no continuation: %s", self.num_without_output, self.num_lines, reason)

    def _encode(self, text: str) -> list[int]:
        [ids] = self.continuer.tokenizer.encode([text])
        return ids

    @staticmethod
    def _fields(text: str, hypothesis: Hypothesis) -> dict[str, Any]:
        log_probability = None if hypothesis is NOTHING else hypothesis.log_probability
        return {"continuation": text, "log_probability": log_probability}
