"""The filter with decoding.engine=ctranslate2 beside CTranslate2 called directly: python bench/engine.py EXPORT LINES.

EXPORT is a folder of python -m headloom.export format=ctranslate2, LINES a text.
Both are in one process, with the same program in memory, and translate the same
lines in turn, from text to text; seconds are of the processor, which others on a
busy machine do not change much: take --threads 1. One gets the lines in one call, in the batches
that it makes itself, the other is translate.py's own filter on a file. A ratio
is the median over the rounds, above 1 where the filter is faster. Lines may differ where an output does not end:
theirs has 255 tokens then, ours three times those of the source and 10 more. With --length every output has that
many tokens, so that a model of any size can be measured without being trained; the lines of such a model differ,
since the direct call lets it write what is no text.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from headloom import build
from headloom.config.schema_decoding import BeamConfig, DecodingConfig, GreedyConfig, LengthPenaltyForm
from headloom.config.schema_use import TranslateConfig
from headloom.decoding.filter import filter_lines
from headloom.decoding.lines import Format, OnBadLine
from headloom.export.use import load_exported
from headloom.work.families import predictor

DECODINGS: dict[str, Callable[..., DecodingConfig]] = {
    "greedy": GreedyConfig,
    "beam 5": partial(BeamConfig, beam_size=5, length_penalty=1.0, length_penalty_form=LengthPenaltyForm.power),
}
BATCHES = {"32 lines": ("examples", 32), "64 lines": ("examples", 64), "512 tokens": ("tokens", 512)}
"""Of the direct call."""
LENGTH_OPTIONS = ("max_decoding_length", "min_decoding_length")


def direct(trained: Any, lines: list[str], decoding: DecodingConfig, batch: str, length: int | None) -> list[str]:
    """What a user of CTranslate2 writes."""
    # Neither counts eos, which ours does.
    lengths = {"max_decoding_length": 255} if length is None else dict.fromkeys(LENGTH_OPTIONS, length - 1)
    source, target = build.saved_tokenizers(trained.contents["tokenizers"])
    source_pieces = source.pieces(range(source.vocab_size))
    id_of = {piece: i for i, piece in enumerate(target.pieces(range(target.vocab_size)))}
    results = trained.engine.program.translate_batch(
        [[source_pieces[i] for i in ids] for ids in source.encode(lines)],
        beam_size=getattr(decoding, "beam_size", 1),
        batch_type=BATCHES[batch][0],
        max_batch_size=BATCHES[batch][1],
        length_penalty=1,
        **lengths,
    )
    return [target.decode([id_of[piece] for piece in result.hypotheses[0]]) for result in results]


def seconds(act: Callable[[], object]) -> float:
    started_at = time.process_time()
    act()
    return time.process_time() - started_at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", type=Path)
    parser.add_argument("lines", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    # A power of two: to one the filter rounds the limits of its batches up.
    parser.add_argument("--length", type=int, choices=(8, 16, 32, 64), help="tokens of every output, eos among them")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    lines = [line for line in arguments.lines.read_text(encoding="utf-8").split("\n") if line.strip()]
    print(f"{'search':<8}  {'direct batch':>12}  {'direct s':>9}  {'filter s':>9}  {'speed ratio':>11}  same lines")
    with tempfile.TemporaryDirectory() as folder:
        given, output = Path(folder) / "in.txt", Path(folder) / "out.txt"
        given.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        length = arguments.length
        forced = {} if length is None else {"min_length": length, "max_length": length, "max_ratio": 1000.0}
        for name, decoding_with in DECODINGS.items():
            decoding = decoding_with(**forced)
            config = TranslateConfig(checkpoint=arguments.export, decoding=decoding, input=given, output=output)
            trained = load_exported(arguments.export, config)
            answering = predictor(trained, config, [])

            def through_filter(answering: Any = answering) -> None:
                filter_lines(
                    answering,
                    source=given,
                    target=output,
                    line_format=Format.text,
                    on_bad_line=OnBadLine.fail,
                    buffer_lines=1024,
                )

            for batch in BATCHES:
                direct(trained, lines[:32], decoding, batch, length)
                times = []
                for round_ in range(arguments.rounds):
                    acts = [lambda: direct(trained, lines, decoding, batch, length), through_filter]  # noqa: B023
                    found = [seconds(act) for act in (acts if round_ % 2 == 0 else acts[::-1])]
                    times.append(found if round_ % 2 == 0 else found[::-1])
                ratio = statistics.median(a / b for a, b in times)
                a, b = (statistics.median(column) for column in zip(*times, strict=True))
                same = sum(
                    one == other
                    for one, other in zip(
                        direct(trained, lines, decoding, batch, length),
                        output.read_text(encoding="utf-8").split("\n"),
                        strict=False,
                    )
                )
                print(f"{name:<8}  {batch:>12}  {a:>9.2f}  {b:>9.2f}  {ratio:>11.3f}  {same} of {len(lines)}")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
