"""What a user should hear about the lines that went through a model, said once at the end."""

import logging
from dataclasses import dataclass

logger = logging.getLogger(__name__)

UNMET = "none was found that holds what is required and nothing forbidden"
NOT_FINITE = "the model's logits are not finite"


@dataclass
class Counts:
    """What happened to the lines of one call, for one warning of each kind."""

    lines: int = 0
    cut: int = 0
    longest_source: int = 0
    cut_targets: int = 0
    longest_target: int = 0
    without_output: int = 0
    unmet: int = 0

    def report(self) -> None:
        if self.cut:
            logger.warning(
                "%d of %d lines are longer than %d tokens, the longest source of this model (data.max_length, "
                "position.max_length): translated up to there",
                self.cut,
                self.lines,
                self.longest_source,
            )
        if self.cut_targets:
            logger.warning(
                "%d of %d targets are longer than %d tokens, the positions of the model (position.max_length): scored "
                "up to there",
                self.cut_targets,
                self.lines,
                self.longest_target,
            )
        if self.unmet:
            logger.warning(
                "%d of %d lines have no translation: %s; loosen decoding.required, forbidden or no_repeat_ngram, or "
                "raise decoding.beam_size",
                self.unmet,
                self.lines,
                UNMET,
            )
        if self.without_output:
            logger.warning(
                "%d of %d lines have no translation: %s. Has its training diverged?",
                self.without_output,
                self.lines,
                NOT_FINITE,
            )
