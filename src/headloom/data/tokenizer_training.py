"""Training a SentencePiece tokenizer on a stream of text."""

import io
import logging
import re
from collections.abc import Iterable, Iterator

import sentencepiece

from headloom.data.sentencepiece_model import LINE_END, UNKNOWN_SURFACE, with_special_pieces
from headloom.data.sentencepiece_tokenizer import SentencePieceTokenizer
from headloom.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

KINDS = ("bpe", "unigram", "char")
NORMALIZATIONS = ("nmt_nfkc", "nmt_nfkc_cf", "nfkc", "identity")
MAX_LINE_BYTES = 4192
"""SentencePiece's trainer skips a longer line without a word; here such a line is cut into pieces of this size."""
_NUM_SPECIALS = 4
_NUM_BYTES = 256
_EVERY_CHARACTER = 1_000_000  # vocabulary size that no set of characters reaches


def train_tokenizer(
    texts: Iterable[str],
    *,
    kind: str,
    vocab_size: int | None,
    normalization: str = "nmt_nfkc",
    character_coverage: float = 1.0,
    byte_fallback: bool = True,
    sampling: float = 0.0,
    running_text: bool = False,
    num_threads: int = 8,
) -> SentencePieceTokenizer:
    """A tokenizer learned from `texts`, which are read once, as a stream.

    `kind` is bpe, unigram or char. `vocab_size` counts the four specials and
    the 256 bytes of `byte_fallback` too; None takes every character, for char
    only. Where the text supports fewer pieces the tokenizer has fewer, with a
    warning that says how many. `normalization` identity keeps every space;
    then `decode(encode(text)) == text` for each line without U+2581, which
    SentencePiece uses for the space. `character_coverage` is the share of
    characters with a piece of their own; the others are bytes with
    `byte_fallback`, unknown without. With `running_text` the line end is a
    piece of its own that meets no other, and a text begins without an added
    space: text may then be cut before and behind any line end, and its parts
    have the ids that it has as a whole.

    The result is a function of the arguments: unigram sums in an order that
    `num_threads` decides, so that is not taken from the machine.

    Raises:
        ConfigError: an option is out of range, or `vocab_size` too small for the characters of the text.
        DataError: there is no text.
    """
    _check_options(kind, vocab_size, normalization, character_coverage, byte_fallback)
    feed = _Feed(texts)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(feed),
            model_writer=model,
            model_type=kind,
            vocab_size=_EVERY_CHARACTER if vocab_size is None else vocab_size,
            hard_vocab_limit=False,
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            unk_surface=UNKNOWN_SURFACE,
            normalization_rule_name=normalization,
            remove_extra_whitespaces=normalization != "identity" and not running_text,
            add_dummy_prefix=not running_text,
            user_defined_symbols=[LINE_END] if running_text else [],
            character_coverage=character_coverage,
            byte_fallback=byte_fallback,
            max_sentence_length=MAX_LINE_BYTES,
            num_threads=num_threads,
            minloglevel=2,  # its progress report belongs to another program
        )
    except RuntimeError as error:
        raise _explained(error, feed, vocab_size) from error
    if feed.num_cut:
        logger.info(
            "tokenizer training: %d of %d lines are longer than %d bytes and were read in pieces",
            feed.num_cut, feed.num_lines, MAX_LINE_BYTES,
        )  # fmt: skip
    complete = with_special_pieces(model.getvalue(), name="the trained tokenizer")
    tokenizer = SentencePieceTokenizer(complete, sampling=sampling, name="the trained tokenizer")
    if vocab_size is not None and tokenizer.vocab_size < vocab_size:
        logger.warning(
            "tokenizer.vocab_size=%d is more than the training text supports; the tokenizer has %d pieces",
            vocab_size, tokenizer.vocab_size,
        )  # fmt: skip
    return tokenizer


class _Feed:
    """Lines as the trainer takes them; counts them, and keeps an exception of the source to be raised as it was."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = texts
        self.num_lines = 0
        self.num_cut = 0
        self.failure: BaseException | None = None

    def __iter__(self) -> Iterator[str]:
        try:
            for text in self._texts:
                self.num_lines += 1
                if len(text) * 4 <= MAX_LINE_BYTES or len(text.encode("utf-8")) <= MAX_LINE_BYTES:
                    yield text
                else:
                    self.num_cut += 1
                    yield from cut_line(text, MAX_LINE_BYTES)
        except BaseException as error:  # the C++ side would turn even Ctrl-C into a RuntimeError
            self.failure = error
            raise


def cut_line(text: str, max_bytes: int) -> Iterator[str]:
    """`text` in pieces of at most `max_bytes` UTF-8 bytes, cut before a space where there is one; joined: `text`."""
    rest = text.encode("utf-8")
    start = 0
    while len(rest) - start > max_bytes:
        end = rest.rfind(b" ", start + 1, start + max_bytes + 1)
        if end <= start:
            end = start + max_bytes
            while rest[end] & 0xC0 == 0x80:  # inside a character
                end -= 1
        yield rest[start:end].decode("utf-8")
        start = end
    yield rest[start:].decode("utf-8")


def _check_options(
    kind: str, vocab_size: int | None, normalization: str, character_coverage: float, byte_fallback: bool
) -> None:
    if kind not in KINDS:
        raise ConfigError(f"tokenizer kind {kind!r} cannot be trained; choose one of {', '.join(KINDS)}")
    if normalization not in NORMALIZATIONS:
        raise ConfigError(f"tokenizer.normalization={normalization} is none of {', '.join(NORMALIZATIONS)}")
    if not 0.0 < character_coverage <= 1.0:
        raise ConfigError(f"tokenizer.character_coverage={character_coverage} must be above 0 and at most 1")
    if vocab_size is None:
        if kind != "char":
            raise ConfigError(f"tokenizer.vocab_size has no value; a {kind} tokenizer needs one")
        return
    smallest = _NUM_SPECIALS + _NUM_BYTES * byte_fallback + 1
    if vocab_size < smallest:
        remedy = "; raise it, or set tokenizer.byte_fallback=false" if byte_fallback else "; raise it"
        what = "the specials and the 256 bytes of byte_fallback" if byte_fallback else "the specials"
        raise ConfigError(f"tokenizer.vocab_size={vocab_size} has no room for {what} ({smallest} at least){remedy}")


def _explained(error: RuntimeError, feed: _Feed, vocab_size: int | None) -> BaseException:
    if feed.failure is not None:
        return feed.failure
    message = str(error)
    needed = re.search(r"smaller than required_chars\. (\d+) vs (\d+)", message)
    if needed:
        return ConfigError(
            f"tokenizer.vocab_size={vocab_size} is smaller than the characters of the text need ({needed[2]}); "
            "raise it, or lower tokenizer.character_coverage"
        )
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return DataError(f"the training text ({feed.num_lines} lines) holds no character to train a tokenizer on")
    return error
