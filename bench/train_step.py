"""Training speed beside a plain loop around torch.nn.Transformer: `make bench`, or python bench/train_step.py --help.

Each candidate is a process of its own. All are loaded at once and take the
same batches in turn, first A B C, then C B A, so that whatever else the
machine does meets them alike. A ratio is the median over paired batches.

`torch.nn.Transformer` is what a careful user writes: float32, post-norm, tied
embeddings, dropout 0.1 everywhere, label smoothing 0.1, clipping, Adam. Its
`kept memory` twin differs in that malloc keeps freed memory, as ours does.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

PAD, BOS, EOS, FIRST = 0, 2, 3, 4
SIZES = {
    # layers a stack, d_model, d_ff, heads, vocabulary, target tokens a batch
    "tiny": (4, 128, 256, 4, 10_000, 4096),
    "small": (3, 256, 1024, 8, 8_000, 4096),
    "base": (6, 512, 2048, 8, 32_000, 1024),
}
CANDIDATES = ("torch.nn.Transformer", "torch.nn.Transformer, kept memory", "Headloom")
DROPOUT, SMOOTHING, LEARNING_RATE, BETAS = 0.1, 0.1, 3e-4, (0.9, 0.98)
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]
Step = Callable[[Arrays], float]


def make_batches(vocab_size: int, max_tokens: int, num_batches: int) -> list[Arrays]:
    """Source, target input and target of batches of similar length: log-normal lengths of 15 tokens on average."""
    random = np.random.default_rng(1)
    num_pairs = 3 * num_batches * max_tokens // 16
    shared, own = random.normal(size=(2, num_pairs))
    spread = 0.35
    target_length = np.clip(15 * np.exp(spread * shared - spread**2 / 2), 3, 60).astype(int)
    source_length = np.clip(15 * np.exp(spread * (0.97 * shared + 0.24 * own) - spread**2 / 2), 3, 60).astype(int)
    order = np.lexsort((source_length, target_length))
    batches, start = [], 0
    while start < num_pairs:
        stop = start + 1
        while stop < num_pairs and (stop + 1 - start) * (target_length[order[stop]] + 1) <= max_tokens:
            stop += 1
        batches.append(order[start:stop])
        start = stop
    chosen = random.permutation(len(batches))[:num_batches]

    def token(count: int) -> np.ndarray:
        return np.minimum(FIRST + (5 * random.pareto(0.7, size=count)).astype(np.int64), vocab_size - 1)

    made = []
    for rows in (batches[i] for i in chosen):
        source = np.full((len(rows), source_length[rows].max() + 1), PAD, dtype=np.int64)
        target = np.full((len(rows), target_length[rows].max() + 1), PAD, dtype=np.int64)
        for row, pair in enumerate(rows):
            for side, length in ((source, source_length[pair]), (target, target_length[pair])):
                side[row, :length] = token(length)
                side[row, length] = EOS
        shifted = np.concatenate([np.full((len(rows), 1), BOS), target[:, :-1]], axis=1)
        made.append((source, np.where(target == PAD, PAD, shifted), target))
    return made


def plain_step(size: str, attention_dropout: bool) -> Step:
    """One update of a model around torch.nn.Transformer."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    layers, d_model, d_ff, heads, vocab_size, _ = SIZES[size]

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(vocab_size, d_model, padding_idx=PAD)
            nn.init.normal_(self.table.weight, std=d_model**-0.5)
            angle = torch.arange(512.0)[:, None] * torch.exp(
                -math.log(10_000) / d_model * torch.arange(0, d_model, 2.0)
            )
            self.register_buffer("positions", torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1))
            self.dropout = nn.Dropout(DROPOUT)
            self.transformer = nn.Transformer(d_model, heads, layers, layers, d_ff, DROPOUT, batch_first=True)
            for module in self.modules():
                if isinstance(module, nn.MultiheadAttention) and not attention_dropout:
                    module.dropout = 0.0

        def embed(self, token: torch.Tensor) -> torch.Tensor:
            return self.dropout(self.table(token) * math.sqrt(d_model) + self.positions[: token.size(1)])

        def forward(self, source: torch.Tensor, target_input: torch.Tensor) -> torch.Tensor:
            future = torch.ones(target_input.size(1), target_input.size(1), dtype=torch.bool).triu(1)
            padding = source == PAD
            hidden = self.transformer(
                self.embed(source),
                self.embed(target_input),
                tgt_mask=future,
                src_key_padding_mask=padding,
                memory_key_padding_mask=padding,
                tgt_is_causal=True,
            )
            return F.linear(hidden, self.table.weight)

    torch.manual_seed(1)
    model = Plain()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, betas=BETAS)

    def step(batch: Arrays) -> float:
        source, target_input, target = map(torch.from_numpy, batch)
        logits = model(source, target_input)
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD, label_smoothing=SMOOTHING)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def our_step(size: str, attention_dropout: bool, precision: str) -> Step:
    """One update of the same model by `Trainer.train_step`, built from the configuration as train.py does."""
    import torch

    from headloom.build import build_task
    from headloom.build_model import build_model
    from headloom.build_training import build_optimizer
    from headloom.config import saved, schema
    from headloom.data.batch import Batch
    from headloom.nn.loss import IGNORE
    from headloom.training.precision import autocast_dtype
    from headloom.training.random_state import seed_everything
    from headloom.training.trainer import Trainer

    layers, d_model, d_ff, heads, vocab_size, _ = SIZES[size]
    plain = {group: {schema.DISCRIMINATORS[group]: next(iter(choices))} for group, choices in schema.CHOICES.items()}
    plain["model"] |= {"d_model": d_model, "num_heads": heads, "d_ff": d_ff, "dropout": DROPOUT}
    plain["model"] |= {"num_encoder_layers": layers, "num_decoder_layers": layers}
    plain["model"] |= {} if attention_dropout else {"attention_dropout": 0.0}
    plain["position"], plain["norm"] = {"kind": "sinusoidal"}, {"placement": "post"}
    config = saved.from_plain(plain)
    device = torch.device("cpu")
    seed_everything(1)
    model = build_model(config, source_vocab_size=vocab_size, target_vocab_size=vocab_size).train()
    trainer = Trainer(
        model,
        build_task(config.task),
        build_optimizer(config.optimizer, model, device=device),
        learning_rate=lambda step: LEARNING_RATE,
        device=device,
        autocast_dtype=autocast_dtype(precision, device),
    )

    def step(arrays: Arrays) -> float:
        source, target_input, target = map(torch.from_numpy, arrays)
        allowed = source != PAD
        batch = Batch(
            source_BS=source,
            source_allowed_BS=None if bool(allowed.all()) else allowed,
            target_input_BT=target_input,
            target_BT=target.masked_fill(target == PAD, IGNORE),
            num_targets=int((target != PAD).sum()),
            rows=np.arange(len(arrays[0])),
        )
        report = trainer.train_step([batch])
        return report.loss.item() / report.num_targets

    return step


def work(candidate: str, size: str, attention_dropout: bool, precision: str, num_batches: int) -> None:
    """A worker: batch numbers on stdin, a line of seconds and loss on stdout for each."""
    if candidate != "torch.nn.Transformer":
        from headloom.training.memory import keep_freed_memory

        assert keep_freed_memory(), "not glibc: this candidate would be the plain one"
    batches = make_batches(SIZES[size][4], SIZES[size][5], num_batches)
    step = (
        our_step(size, attention_dropout, precision) if candidate == "Headloom" else plain_step(size, attention_dropout)
    )
    for batch in batches[:2]:
        step(batch)
    print("ready", flush=True)
    for line in sys.stdin:
        started_at = time.perf_counter()
        loss = step(batches[int(line)])
        print(json.dumps({"seconds": time.perf_counter() - started_at, "loss": loss}), flush=True)


class Worker:
    def __init__(self, candidate: str, arguments: argparse.Namespace, size: str) -> None:
        command = [
            sys.executable,
            __file__,
            "--worker",
            candidate,
            "--sizes",
            size,
            "--batches",
            str(arguments.batches),
        ]
        command += ["--precision", arguments.precision] + (
            [] if arguments.attention_dropout else ["--no-attention-dropout"]
        )
        threads = str(arguments.threads)
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.questions, self.answers = self.process.stdin, self.process.stdout
        assert self.answers.readline() == "ready\n", f"{candidate} failed"

    def step(self, batch: int) -> dict[str, float]:
        self.questions.write(f"{batch}\n")
        self.questions.flush()
        answer: dict[str, float] = json.loads(self.answers.readline())
        return answer

    def peak_gib(self) -> float:
        """Most memory the process ever held; its imports, about 0.3 GiB, counted."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(status.split("VmHWM:")[1].split()[0]) / 2**20

    def close(self) -> None:
        self.questions.close()
        self.process.wait()


def measure(size: str, arguments: argparse.Namespace) -> list[str]:
    """A table row for each candidate."""
    batches = make_batches(SIZES[size][4], SIZES[size][5], arguments.batches)
    num_targets = [int((target != PAD).sum()) for _, _, target in batches]
    workers = {candidate: Worker(candidate, arguments, size) for candidate in CANDIDATES}
    seconds: dict[str, list[float]] = {candidate: [] for candidate in CANDIDATES}
    losses: dict[str, list[float]] = {candidate: [] for candidate in CANDIDATES}
    for number in range(2, arguments.batches):
        for candidate in CANDIDATES if number % 2 else reversed(CANDIDATES):
            answer = workers[candidate].step(number)
            seconds[candidate].append(answer["seconds"])
            losses[candidate].append(answer["loss"])
    rows = []
    reference = seconds[CANDIDATES[0]]
    peaks = {candidate: worker.peak_gib() for candidate, worker in workers.items()}
    for candidate, worker in workers.items():
        worker.close()
        rate = statistics.median(n / s for n, s in zip(num_targets[2:], seconds[candidate], strict=True))
        ratios = sorted(a / b for a, b in zip(reference, seconds[candidate], strict=True))
        low, high = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
        rows.append(
            f"| {size} | {candidate} | {rate:,.0f} | {statistics.median(ratios):.2f} ({low:.2f}..{high:.2f}) "
            f"| {peaks[candidate]:.2f} ({peaks[candidate] / peaks[CANDIDATES[0]]:.2f}) | {losses[candidate][-1]:.3f} |"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--batches", type=int, default=14, help="batches a candidate; the first two are not timed")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--precision", default="auto", choices=("auto", "float32", "bfloat16"), help="of Headloom")
    parser.add_argument("--no-attention-dropout", dest="attention_dropout", action="store_false")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker, arguments.sizes[0], arguments.attention_dropout, arguments.precision, arguments.batches)
        return
    print("| size | candidate | target tokens/s | ratio (p10..p90) | peak GiB (ratio) | last loss |")
    print("| --- | --- | --- | --- | --- | --- |")
    for size in arguments.sizes:
        for row in measure(size, arguments):
            print(row, flush=True)


if __name__ == "__main__":
    main()
