"""Pairs that are there already, scored by a translator's models."""

from collections.abc import Iterator, Sequence

from headloom.decoding.counts import Counts
from headloom.decoding.memory import in_halves
from headloom.decoding.translator import Translator, in_batches


def score_pairs(
    translator: Translator, pairs: Sequence[tuple[str, str]], counts: Counts
) -> Iterator[tuple[int, list[str], list[float]]]:
    """The row of each pair, the pieces of its target with eos behind, and the log-probability (nats) of each.

    Teacher forcing: every piece given the source and the true pieces before it. Batch by batch, in no order.
    """
    counts.lines += len(pairs)
    tokenizer, positions = translator.target_tokenizer, translator.positions
    encoded = translator.source_tokenizer.encode([source for source, _ in pairs])
    sources = [translator.cut(ids, counts) for ids in encoded]
    targets = tokenizer.encode([target for _, target in pairs])
    if positions is not None:
        counts.longest_target = positions
        counts.cut_targets += sum(len(ids) >= positions for ids in targets)
        targets = [ids[: positions - 1] for ids in targets]
    lengths = [max(len(source), len(target)) + 1 for source, target in zip(sources, targets, strict=True)]

    def forced(rows: Sequence[int]) -> list[list[float]]:
        with translator.computing():
            found = translator.searcher.force([sources[row] for row in rows], [targets[row] for row in rows])
        return [log_prob_T.tolist() for log_prob_T, _ in found]

    for batch in in_batches(lengths, lengths, translator.max_tokens):
        for rows, log_probs in in_halves(batch, forced):
            for row, log_prob in zip(rows, log_probs, strict=True):
                yield row, tokenizer.pieces([*targets[row], tokenizer.eos_id]), log_prob
