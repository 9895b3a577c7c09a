"""The gate: an export passes when its program answers a sample as the checkpoint does.

Exact formats: token for token, greedy and with a beam. Where the checkpoint
itself holds the two tokens, or the two outputs of a beam, equally likely, so
that the rounding of a sum decides, either is right. Formats that round the
weights: the scores of the translations, within a bound.
"""

import logging
from collections.abc import Sequence
from itertools import zip_longest

import numpy as np

from headloom import metrics
from headloom.errors import CheckpointError
from headloom.export.base import Reader, Runtime, Tokenizing, Writer
from headloom.export.own import OwnContinuation, OwnTranslation, own_runtime
from headloom.export.sample import Sample
from headloom.work.base import Trained

logger = logging.getLogger(__name__)

BEAM_SIZE = 4
TIE_NATS = 1e-3
"""Log-probabilities this near are equal: the two programs add the same numbers in another order."""
MAX_DIFFERENCE = 1e-3
"""Largest difference between two outputs of an encoder, relative to the largest of them."""
MAX_BLEU_LOSS = 1.0
"""BLEU that rounded weights may cost against the references of a sample that has them."""
MAX_DISAGREEMENT = 30.0
"""chrF that the outputs of rounded weights may be away from those of the checkpoint, taken as references. Not BLEU,
which is 0 where every output has fewer than four words."""


def check(trained: Trained, runtime: Runtime, sample: Sample, *, is_exact: bool) -> None:
    """Let both answer and compare.

    Raises:
        CheckpointError: they differ; the message says where.
    """
    if isinstance(runtime, Tokenizing):
        _check_tokenizer(runtime, sample)
    own = own_runtime(trained)
    if isinstance(own, Writer):
        assert isinstance(runtime, Writer)
        if is_exact:
            _check_tokens(own, runtime, sample)
        else:
            _check_scores(own, runtime, sample)
    else:
        assert isinstance(runtime, Reader)
        _check_outputs(own, runtime, sample)


def _check_tokenizer(runtime: Tokenizing, sample: Sample) -> None:
    place = runtime.first_difference(sample.lines)
    if place is not None:
        raise CheckpointError(
            f"the export is refused: its tokenizer gives line {place + 1} of those with a token in {sample.name} other "
            f"ids: {sample.lines[place]!r}"
        )


def _check_tokens(own: OwnTranslation | OwnContinuation, runtime: Writer, sample: Sample) -> None:
    limit = own.max_length(sample.sources)
    for beam_size in (1, BEAM_SIZE):
        search = "greedy" if beam_size == 1 else f"beam {beam_size}"
        ours = own.search(sample.sources, beam_size=beam_size, max_length=limit)
        theirs = runtime.search(sample.sources, beam_size=beam_size, max_length=limit)
        num_ties = num_compared = 0
        for row, (source, a, b) in enumerate(zip(sample.sources, ours, theirs, strict=True)):
            if beam_size > 1 and max(len(a), len(b)) >= limit - 1:
                continue  # programs rank hypotheses that did not end each in their own way
            num_compared += 1
            # Whether what is never written, pad and bos, keeps its share of the probability is for the program to say.
            if a == b or b == own.divided_search(source, beam_size=beam_size, max_length=limit):
                continue
            if not _is_tie(own, source, a, b, is_greedy=beam_size == 1, limit=limit):
                raise CheckpointError(
                    f"the export is refused: line {row + 1} of those with a token in {sample.name} gives other tokens "
                    f"({search}): {_first_difference(a, b)}"
                )
            num_ties += 1
        if num_compared == 0:
            logger.warning(
                "%s: none of the %d outputs for %s ended, so that nothing was compared", search, len(ours), sample.name
            )
            continue
        logger.info(
            "%s: %d of %d lines of %s have the same tokens%s%s",
            search,
            num_compared - num_ties,
            num_compared,
            sample.name,
            f", {num_ties} others that are equally likely" if num_ties else "",
            f"; {len(ours) - num_compared} did not end and were not compared" if num_compared < len(ours) else "",
        )


def _is_tie(
    own: OwnTranslation | OwnContinuation,
    source: Sequence[int],
    ours: Sequence[int],
    theirs: Sequence[int],
    *,
    is_greedy: bool,
    limit: int,
) -> bool:
    """Whether the checkpoint holds both equally likely: at the first difference, or, of a beam, as a whole."""
    log_probs = [own.log_probabilities(source, ids) for ids in (ours, theirs)]
    if not is_greedy:
        return abs(sum(log_probs[0]) - sum(log_probs[1])) < TIE_NATS
    place = _place_of_difference(ours, theirs)
    if min(len(ours), len(theirs)) == place and place == limit - 1:
        return False
    return abs(log_probs[0][place] - log_probs[1][place]) < TIE_NATS


def _place_of_difference(ours: Sequence[int], theirs: Sequence[int]) -> int:
    return next(i for i, (a, b) in enumerate(zip_longest(ours, theirs)) if a != b)


def _first_difference(ours: Sequence[int], theirs: Sequence[int]) -> str:
    place = _place_of_difference(ours, theirs)
    shown = [str(ids[place]) if place < len(ids) else "the end" for ids in (theirs, ours)]
    return f"its token {place + 1} is {shown[0]}, that of the checkpoint {shown[1]}"


def _check_scores(own: OwnTranslation | OwnContinuation, runtime: Writer, sample: Sample) -> None:
    limit = own.max_length(sample.sources)
    ours, theirs = (
        [own.tokenizer.decode(ids) for ids in one.search(sample.sources, beam_size=BEAM_SIZE, max_length=limit)]
        for one in (own, runtime)
    )
    against = {"the checkpoint's outputs": (ours, "chrF", MAX_DISAGREEMENT)}
    if sample.references is not None:
        against["the references"] = (list(sample.references), "BLEU", MAX_BLEU_LOSS)
    for name, (references, score, bound) in against.items():
        before, after = (
            metrics.translation_scores(texts, references, (score.lower(),))[score.lower()].value
            for texts in (ours, theirs)
        )
        found = (
            f"{score} against {name} of {len(ours)} lines of {sample.name}: {after:.2f}, the checkpoint {before:.2f}"
        )
        if before - after > bound:
            raise CheckpointError(
                f"the export is refused: {found}, and {bound} less is allowed: choose another quantization, or none"
            )
        logger.info("%s (%s less is allowed)", found, bound)


def _check_outputs(own: Reader, runtime: Reader, sample: Sample) -> None:
    worst = 0.0
    pairs = zip(own.outputs(sample.sources), runtime.outputs(sample.sources), strict=True)
    for row, (ours, theirs) in enumerate(pairs):
        difference = float(np.abs(ours - theirs).max() / np.abs(ours).max())
        worst = max(worst, difference)
        if not difference <= MAX_DIFFERENCE:  # also of nan
            raise CheckpointError(
                f"the export is refused: line {row + 1} of those with a token in {sample.name} gives numbers that "
                f"differ by {difference:.2g} of the largest, more than {MAX_DIFFERENCE}"
            )
    logger.info("%d lines of %s: numbers differ by %.2g of the largest", len(sample.sources), sample.name, worst)
