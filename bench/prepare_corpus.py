"""Does a large corpus stay out of memory, and does training on it start at once?

Writes made-up parallel text to a temporary folder, and prepares and opens it as
train.py does: line offsets, validation pairs split off, token store, batches.
Every stage runs in a process of its own, whose memory is read from the kernel.
A corpus of 100,000 pairs goes the same way, for comparison.

    python bench/prepare_corpus.py                    # 10 million pairs, about 5 GB of temporary disk
    python bench/prepare_corpus.py --pairs 1000000

Linux only: memory is read from /proc.
"""

import argparse
import json
import logging
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from headloom.data.batch import TrainingBatches
from headloom.data.corpora import parallel
from headloom.data.text import Corpus, evenly_spread
from headloom.data.token_store import TokenPairs, tokenize_pairs
from headloom.data.tokenizer import Tokenizer, tokenizer_from_state, train_tokenizer

SMALL = 100_000
CHUNK = 100_000  # pairs generated at once
NUM_WORDS = 50_000
MAX_LENGTH = 256
MAX_TOKENS = 4096
NUM_BATCHES = 1000


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10_000_000, help="size of the large corpus")
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    parser.add_argument("--stage", choices=["generate", "prepare", "train"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage is not None:
        json.dump(STAGES[arguments.stage](arguments.folder, arguments.pairs), sys.stdout)
        return
    with tempfile.TemporaryDirectory(prefix="headloom-bench-", dir=arguments.folder) as folder:
        results = [measure(Path(folder) / str(pairs), pairs) for pairs in (SMALL, arguments.pairs)]
    print_table(results)


def measure(folder: Path, num_pairs: int) -> dict[str, float]:
    folder.mkdir()
    results: dict[str, float] = {"pairs": num_pairs}
    for stage in STAGES:
        print(f"{num_pairs:,} pairs: {stage}", file=sys.stderr)
        command = [sys.executable, __file__, "--stage", stage, "--pairs", str(num_pairs), "--folder", str(folder)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        answer = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout
        results |= json.loads(answer)
    return results


def generate(folder: Path, num_pairs: int) -> dict[str, float]:
    """Sentences of about 12 words, drawn by Zipf's law; the target has one word for each of the source."""
    draw = np.random.default_rng(1)
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    num_syllables = draw.integers(1, 4, NUM_WORDS)
    words = ["".join(draw.choice(syllables, n)) for n in num_syllables]
    others = ["".join(draw.choice(syllables, n + 1)) for n in num_syllables]
    likelihood = 1 / np.arange(1, NUM_WORDS + 1)
    cumulative = np.cumsum(likelihood / likelihood.sum())
    with (folder / "source").open("wb") as source, (folder / "target").open("wb") as target:
        for start in range(0, num_pairs, CHUNK):
            lengths = np.clip(draw.poisson(11, min(CHUNK, num_pairs - start)) + 1, 1, 40)
            chosen = np.searchsorted(cumulative, draw.random(lengths.sum())).clip(max=NUM_WORDS - 1).tolist()
            ends = np.cumsum(lengths).tolist()
            for first, last in zip([0, *ends], ends, strict=False):
                source.write((" ".join([words[i] for i in chosen[first:last]]) + "\n").encode())
                target.write((" ".join([others[i] for i in chosen[first:last]]) + "\n").encode())
    text_bytes = sum((folder / side).stat().st_size for side in ("source", "target"))
    return {"text_mb": text_bytes / 1e6}


def open_corpus(folder: Path) -> Corpus:
    return parallel(source=folder / "source", target=folder / "target", valid_share=0.001, folder=folder / "data")


def prepare(folder: Path, num_pairs: int) -> dict[str, float]:
    """The first run on a corpus: everything is made."""
    started_at = time.perf_counter()
    corpus = open_corpus(folder)
    opened_at = time.perf_counter()
    tokenizer = trained_tokenizer(corpus, folder / "tokenizer.json")
    trained_at = time.perf_counter()
    tokenize(corpus, tokenizer, folder)
    tokenized_at = time.perf_counter()
    preparing_seconds = (opened_at - started_at) + (tokenized_at - trained_at)
    return {
        "open_seconds": opened_at - started_at,
        "tokenizer_seconds": trained_at - opened_at,
        "tokenize_seconds": tokenized_at - trained_at,
        "pairs_per_second": num_pairs / preparing_seconds,
        "prepare_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
    }


def train(folder: Path, num_pairs: int) -> dict[str, float]:
    """A later run: everything is found. 1,000 batches are read, as training would."""
    imported_mb = memory_mb()
    started_at = time.perf_counter()
    corpus = open_corpus(folder)
    tokenizer = saved_tokenizer(folder / "tokenizer.json")
    tokens = tokenize(corpus, tokenizer, folder)
    batches = TrainingBatches(tokens, tokenizer, tokenizer, max_tokens=MAX_TOKENS, seed=1)
    next(batches)
    first_batch_at = time.perf_counter()
    first_mb, first_own_mb = memory_mb(), memory_mb("RssAnon")
    for _ in range(NUM_BATCHES):
        next(batches)
    return {
        "first_batch_seconds": first_batch_at - started_at,
        "batches_per_second": NUM_BATCHES / (time.perf_counter() - first_batch_at),
        "imported_mb": imported_mb,
        "first_batch_mb": first_mb,
        "first_batch_own_mb": first_own_mb,
        "growth_mb": memory_mb() - first_mb,
        "own_growth_mb": memory_mb("RssAnon") - first_own_mb,
        "train_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
    }


STAGES = {"generate": generate, "prepare": prepare, "train": train}


def trained_tokenizer(corpus: Corpus, path: Path) -> Tokenizer:
    texts = (text for pair in evenly_spread(corpus.train, max_pairs=50_000) for text in pair)
    tokenizer = train_tokenizer(texts, kind="bpe", vocab_size=8000)
    state = {key: value.hex() if isinstance(value, bytes) else value for key, value in tokenizer.state().items()}
    path.write_text(json.dumps(state), encoding="utf-8")
    return tokenizer


def saved_tokenizer(path: Path) -> Tokenizer:
    state = json.loads(path.read_text(encoding="utf-8"))
    return tokenizer_from_state({**state, "model": bytes.fromhex(state["model"])})


def tokenize(corpus: Corpus, tokenizer: Tokenizer, folder: Path) -> TokenPairs:
    return tokenize_pairs(
        corpus.train, tokenizer, tokenizer, folder=folder / "data", max_length=MAX_LENGTH, description="train"
    )


def memory_mb(kind: str = "VmRSS") -> float:
    """Resident memory of this process: VmRSS all of it, RssAnon without the pages of mapped files."""
    fields = Path("/proc/self/status").read_text(encoding="utf-8").split()
    return int(fields[fields.index(f"{kind}:") + 1]) * 1024 / 1e6


ROWS = [
    ("text, MB", "text_mb", "{:,.0f}"),
    ("preparing (offsets, split, ids), pairs/s", "pairs_per_second", "{:,.0f}"),
    ("  of which offsets and split, s", "open_seconds", "{:,.1f}"),
    ("  of which ids, s", "tokenize_seconds", "{:,.1f}"),
    ("training the tokenizer on 50,000 pairs, s", "tokenizer_seconds", "{:,.1f}"),
    ("peak memory while preparing, MB", "prepare_peak_mb", "{:,.0f}"),
    ("prepared corpus to first batch, s", "first_batch_seconds", "{:,.1f}"),
    ("batches/s after it", "batches_per_second", "{:,.0f}"),
    ("memory before the corpus is opened, MB", "imported_mb", "{:,.0f}"),
    ("memory at the first batch, MB", "first_batch_mb", "{:,.0f}"),
    ("  of which not pages of files, MB", "first_batch_own_mb", "{:,.0f}"),
    (f"growth over {NUM_BATCHES:,} batches, MB", "growth_mb", "{:,.0f}"),
    ("  of which not pages of files, MB", "own_growth_mb", "{:,.0f}"),
    ("peak memory while reading batches, MB", "train_peak_mb", "{:,.0f}"),
]


def print_table(results: list[dict[str, float]]) -> None:
    """Memory is resident memory; MB are 10^6 bytes.

    The pages of mapped files are counted in it, though the system takes them
    back when others need the room.
    """
    headers = [f"{result['pairs']:,} pairs" for result in results]
    print(f"| {'':<42} | " + " | ".join(f"{header:>16}" for header in headers) + " |")
    print(f"| {'-' * 42} | " + " | ".join(f"{'-' * 15}:" for _ in headers) + " |")
    for label, key, form in ROWS:
        print(f"| {label:<42} | " + " | ".join(f"{form.format(result[key]):>16}" for result in results) + " |")


if __name__ == "__main__":
    main()
