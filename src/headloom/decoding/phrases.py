"""Which phrases can be asked of an output."""

from collections.abc import Sequence

from headloom.data.tokenizer_base import Tokenizer
from headloom.decoding.forbidden import phrase_text, with_single_blanks
from headloom.errors import ConfigError


def unwritable(tokenizer: Tokenizer, phrase: str) -> str | None:
    """Why no output can be made to hold `phrase`, to be said behind it; None: it can."""
    if parts := tokenizer.unknown(phrase):
        return f"of which the vocabulary cannot spell {', '.join(map(repr, parts))}"
    return blank(tokenizer, phrase)


def blank(tokenizer: Tokenizer, phrase: str) -> str | None:
    """As `unwritable`, of a phrase that no output is to hold: what cannot be spelled is never there."""
    return None if any(tokenizer.encode([phrase])) and phrase_text(tokenizer, phrase) != " " else "which is blank"


def forbidden_in(tokenizer: Tokenizer, text: str, forbidden: Sequence[str], *, at_beginning: bool) -> str | None:
    """The first of the `forbidden` phrases that an output with `text` holds from the beginning of a word on.

    `at_beginning`: of the output; elsewhere the tokens of `text` may follow others without a blank.
    """
    written = phrase_text(tokenizer, text) if at_beginning else with_single_blanks(tokenizer.as_written(text))
    return next((phrase.strip() for phrase in forbidden if phrase_text(tokenizer, phrase) in written), None)


def check_phrases(tokenizer: Tokenizer, *, required: Sequence[str], forbidden: Sequence[str]) -> None:
    """Raises:
    ConfigError: one of them cannot be asked of an output.
    """
    for option, phrases, obstacle in (("required", required, unwritable), ("forbidden", forbidden, blank)):
        for phrase in phrases:
            if reason := obstacle(tokenizer, phrase):
                raise ConfigError(f"decoding.{option} holds {phrase!r}, {reason}: remove it, or write it otherwise")
    for phrase in required:
        if held := forbidden_in(tokenizer, phrase, forbidden, at_beginning=False):
            raise ConfigError(
                f"decoding.required holds {phrase!r}, of which decoding.forbidden keeps out {held!r}: remove one"
            )
