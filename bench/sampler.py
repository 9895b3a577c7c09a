"""What it costs to find batches in corpora too large for this machine: python bench/sampler.py --help.

Row lengths and document ends are computed from their numbers, as if a file
held them, so that 10^12 tokens need no disk. `--folder` also writes a file of
lengths for the corpora of pairs and reads it as training does. Each line of the
table is a process of its own; seconds are CPU seconds, memory is what its peak
rose by after imports.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from headloom.data.mapped import MappedArray
from headloom.data.sampler import TokenBudgetSampler
from headloom.data.text_sampler import BlockOrder, BlockSampler, PackedSampler

MAX_LENGTH, PAIR_TOKENS, DOCUMENT_TOKENS, BLOCK = 49, 25, 800, 1024
"""Longest and mean tokens of a side of a pair, mean tokens of a document, tokens of a block."""
MAX_TOKENS, NUM_BATCHES = 16_384, 300


def scattered(number: np.ndarray, span: int) -> np.ndarray:
    """A number from 0 to `span` - 1 for each, the same each time."""
    mixed = (number.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(33)) % np.uint64(span)).astype(np.int64)


class GeneratedLengths:
    """A length for each of `num_rows` rows, in no memory."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        return 1 + scattered(rows, MAX_LENGTH)

    def max(self) -> int:
        return MAX_LENGTH


class GeneratedDocuments:
    """Documents of one length, as `TextTokens` shows them to a sampler."""

    def __init__(self, num_tokens: int) -> None:
        self.num_documents = num_tokens // DOCUMENT_TOKENS

    def __len__(self) -> int:
        return self.num_documents * DOCUMENT_TOKENS

    def documents(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        starts = np.arange(first, last) * DOCUMENT_TOKENS
        return starts, np.full(last - first, DOCUMENT_TOKENS)


def pairs(num_tokens: int, folder: Path | None) -> Any:
    lengths: Any = GeneratedLengths(num_tokens // PAIR_TOKENS)
    if folder is not None:
        lengths = MappedArray(folder / "lengths", "<i4", len(lengths))
    return TokenBudgetSampler(lengths, lengths, max_tokens=MAX_TOKENS, seed=1)


def blocks(num_tokens: int, folder: Path | None) -> Any:
    return BlockSampler(num_tokens, length=BLOCK, num_rows=MAX_TOKENS // BLOCK, order=BlockOrder.shuffled, seed=1)


def packed(num_tokens: int, folder: Path | None) -> Any:
    documents: Any = GeneratedDocuments(num_tokens)
    return PackedSampler(documents, length=BLOCK, num_rows=MAX_TOKENS // BLOCK, seed=1)


KINDS: dict[str, Callable[[int, Path | None], Any]] = {"pairs": pairs, "blocks": blocks, "packed": packed}


def seconds(act: Callable[[], Any]) -> tuple[float, Any]:
    started_at = time.process_time()
    result = act()
    return time.process_time() - started_at, result


def peak_mib() -> float:
    """Of this program; getrusage would count what forked it."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def measure(kind: str, num_tokens: int, folder: Path | None) -> dict[str, float]:
    """Of one sampler: seconds to make it, to its first batch, and to a batch in the middle of epoch 3."""
    before = peak_mib()
    start, sampler = seconds(lambda: KINDS[kind](num_tokens, folder))
    first, _ = seconds(lambda: next(sampler))
    state = sampler.state()
    if "pool" in state:
        pool_size = state["pool_size"]
        num_pools = -(-state.get("num_rows" if kind == "pairs" else "num_documents", 0) // pool_size)
        state |= {"pool": num_pools // 2, "batch": 0}
    else:
        state |= {"batch": num_tokens // MAX_TOKENS // 2}
    sampler.load_state(state | {"epoch": 3})
    seek, _ = seconds(lambda: next(sampler))
    each, _ = seconds(lambda: [next(sampler) for _ in range(NUM_BATCHES)])
    return {"start": start, "first": first, "seek": seek, "each": each / NUM_BATCHES, "mib": peak_mib() - before}


def write_lengths(folder: Path, num_rows: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lengths, part = GeneratedLengths(num_rows), 1 << 24
    with (folder / "lengths").open("wb") as file:
        for start in range(0, num_rows, part):
            lengths[np.arange(start, min(start + part, num_rows))].astype("<i4").tofile(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=float, nargs="+", default=[1e8, 1e10, 1e12])
    parser.add_argument("--folder", type=Path, help="write lengths of pairs here, 4 bytes each (10^10 tokens: 1.6 GB)")
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.kind:
        print(json.dumps(measure(arguments.kind, int(arguments.tokens[0]), arguments.folder)))
        return
    print("| tokens | batches of | made (s) | first batch (s) | seek (s) | then a batch (ms) | memory (MiB) |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for tokens in arguments.tokens:
        cases: list[tuple[str, list[str]]] = [(kind, []) for kind in KINDS]
        if arguments.folder is not None:
            write_lengths(arguments.folder, int(tokens) // PAIR_TOKENS)
            cases.append(("pairs", ["--folder", str(arguments.folder)]))
        for kind, more in cases:
            command = [sys.executable, __file__, "--kind", kind, "--tokens", str(tokens), *more]
            found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            name = f"{kind}, lengths on disk" if more else kind
            print(
                f"| {tokens:.0e} | {name} | {found['start']:.3f} | {found['first']:.3f} | {found['seek']:.3f} "
                f"| {1000 * found['each']:.2f} | {found['mib']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
