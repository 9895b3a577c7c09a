"""Training speed of the other families beside the classes of transformers that a user would pick instead.

    python bench/families.py [--families lm] [--sizes char mid] [--peer-python PYTHON]

Each candidate is a process of its own. All are loaded at once and take the same batches in turn, first A B C, then
C B A, so that whatever else the machine does meets them alike. A ratio is the median over paired batches, to the first
candidate.

`transformers` is no dependency of Headloom: `--peer-python` names a Python that has it and torch. Its class is
trained as a careful user does: AdamW, clipping, float32; its twins have memory that malloc keeps, as ours does, and
autocast in bfloat16. The language model is of one size on both sides: learned positions, pre-norm, GELU, tied output,
no dropout, a loss on every token; the classifier: see families_classifier.py. Ours is built from its configuration as
train.py does, in the precision that it chooses here.

To add a family: its sizes in SIZES, its peer in `peer_step` and ours in `our_step`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import families_classifier
import numpy as np

SIZES = {
    # layers, d_model, heads, tokens a row, rows a batch, vocabulary
    "lm": {
        "char": (4, 128, 4, 64, 12, 69),
        "mid": (6, 384, 6, 256, 16, 69),
        "word": (6, 384, 6, 256, 8, 8000),
    },
    "classifier": families_classifier.SIZES,
}
PEERS = {"lm": "transformers GPT-2", "classifier": "transformers BERT"}
VARIANTS = ("", ", kept memory", ", kept memory, bfloat16")
OURS = "Headloom"
LEARNING_RATE, BETAS, WEIGHT_DECAY = 1e-3, (0.9, 0.99), 0.1
Step = Callable[[np.ndarray], float]


def make_batches(family: str, size: str, num_batches: int) -> list[np.ndarray]:
    """Random rows of ids; a language model reads all but the last and predicts all but the first."""
    if family == "classifier":
        return families_classifier.make_batches(size, num_batches)
    _, _, _, length, num_rows, vocab_size = SIZES[family][size]
    return list(np.random.default_rng(1).integers(4, vocab_size, size=(num_batches, num_rows, length + 1)))


def peer_step(family: str, size: str, bfloat16: bool) -> Step:
    """One update of the class of transformers."""
    if family == "classifier":
        return families_classifier.peer_step(
            size, bfloat16, learning_rate=LEARNING_RATE, betas=BETAS, decay=WEIGHT_DECAY
        )
    import torch
    from torch.nn import functional as F
    from transformers import GPT2Config, GPT2LMHeadModel

    assert family == "lm"
    layers, d_model, heads, length, _, vocab_size = SIZES[family][size]
    torch.manual_seed(1)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocab_size,
            n_positions=length,
            n_embd=d_model,
            n_layer=layers,
            n_head=heads,
            resid_pdrop=0,
            embd_pdrop=0,
            attn_pdrop=0,
            use_cache=False,
            bos_token_id=2,
            eos_token_id=3,
        )
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY)

    def step(ids: np.ndarray) -> float:
        both = torch.from_numpy(ids)
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            logits = model(both[:, :-1]).logits
            loss = F.cross_entropy(logits.flatten(0, 1), both[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def our_step(family: str, size: str, precision: str) -> Step:
    """One update of the same model by `Trainer.train_step`."""
    if family == "classifier":
        return families_classifier.our_step(
            size, precision, learning_rate=LEARNING_RATE, betas=BETAS, decay=WEIGHT_DECAY
        )
    import torch

    from headloom.build_language import build_language_model, build_language_task
    from headloom.build_training import build_optimizer
    from headloom.config import saved, schema
    from headloom.data.text_batch import TextBatch
    from headloom.training.precision import autocast_dtype
    from headloom.training.random_state import seed_everything
    from headloom.training.trainer import Trainer

    assert family == "lm"
    layers, d_model, heads, length, _, vocab_size = SIZES[family][size]
    plain = {group: {schema.DISCRIMINATORS[group]: next(iter(choices))} for group, choices in schema.CHOICES.items()}
    plain |= {
        "model": {"kind": "lm", "d_model": d_model, "num_heads": heads, "num_layers": layers, "d_ff": 4 * d_model}
        | {"dropout": 0.0, "scale_embedding": False, "initialization": "normal"},
        "position": {"kind": "learned", "max_length": length},
        "norm": {"placement": "pre"},
        "feed_forward": {"kind": "gelu_tanh"},
        "tokenizer": {"kind": "char"},
        "task": {"kind": "language_modeling"},
        "data": {"kind": "alice", "max_length": length},
        "optimizer": {"kind": "adamw", "beta1": BETAS[0], "beta2": BETAS[1], "weight_decay": WEIGHT_DECAY},
    }
    config = saved.from_plain(plain)
    device = torch.device("cpu")
    seed_everything(1)
    model = build_language_model(config, vocab_size=vocab_size).train()
    trainer = Trainer(
        model,
        build_language_task(config.task),
        build_optimizer(config.optimizer, model, device=device),
        learning_rate=lambda step: LEARNING_RATE,
        device=device,
        autocast_dtype=autocast_dtype(precision, device),
    )

    def step(ids: np.ndarray) -> float:
        both = torch.from_numpy(ids)
        batch = TextBatch(both[:, :-1].contiguous(), both[:, 1:].contiguous(), None, None, both[:, 1:].numel())
        report = trainer.train_step([batch])
        return report.loss.item() / report.num_targets

    return step


def work(candidate: str, arguments: argparse.Namespace) -> None:
    """A worker: batch numbers on stdin, a line of seconds and loss on stdout for each."""
    answers, sys.stdout = sys.stdout, sys.stderr
    family, size = arguments.families[0], arguments.sizes[0]
    if candidate == OURS or "kept memory" in candidate:
        from headloom.training.memory import keep_freed_memory

        assert keep_freed_memory(), "not glibc: this candidate would be the plain one"
    if candidate == OURS:
        step = our_step(family, size, arguments.precision)
    else:
        step = peer_step(family, size, "bfloat16" in candidate)
    batches = make_batches(family, size, arguments.batches)
    for batch in batches[:2]:
        step(batch)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        started_at = time.perf_counter()
        loss = step(batches[int(line)])
        print(json.dumps({"seconds": time.perf_counter() - started_at, "loss": loss}), file=answers, flush=True)


class Worker:
    def __init__(self, candidate: str, family: str, size: str, arguments: argparse.Namespace) -> None:
        python = sys.executable if candidate == OURS else arguments.peer_python
        command = [python, __file__, "--worker", candidate, "--families", family, "--sizes", size]
        command += ["--batches", str(arguments.batches), "--precision", arguments.precision]
        threads = str(arguments.threads)
        source = str(Path(__file__).parents[1] / "src")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONPATH": source},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.questions, self.answers = self.process.stdin, self.process.stdout
        if self.answers.readline() != "ready\n":
            raise SystemExit(f"{candidate} could not start: does {python} have torch and transformers?")

    def step(self, batch: int) -> dict[str, float]:
        self.questions.write(f"{batch}\n")
        self.questions.flush()
        answer: dict[str, float] = json.loads(self.answers.readline())
        return answer

    def close(self) -> None:
        self.questions.close()
        self.process.wait()


def measure(family: str, size: str, arguments: argparse.Namespace) -> list[str]:
    """A table row for each candidate."""
    candidates = [*(PEERS[family] + variant for variant in VARIANTS), OURS]
    workers = {candidate: Worker(candidate, family, size, arguments) for candidate in candidates}
    seconds: dict[str, list[float]] = {candidate: [] for candidate in candidates}
    losses = {}
    for number in range(2, arguments.batches):
        for candidate in candidates if number % 2 else reversed(candidates):
            answer = workers[candidate].step(number)
            seconds[candidate].append(answer["seconds"])
            losses[candidate] = answer["loss"]
    _, _, _, length, num_rows, _ = SIZES[family][size]
    rows = []
    for candidate, worker in workers.items():
        worker.close()
        ratios = sorted(a / b for a, b in zip(seconds[candidates[0]], seconds[candidate], strict=True))
        low, high = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
        rate = length * num_rows / statistics.median(seconds[candidate])
        rows.append(
            f"| {family} {size} | {candidate} | {rate:,.0f} | {statistics.median(ratios):.2f} ({low:.2f}..{high:.2f}) "
            f"| {losses[candidate]:.3f} |"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--sizes", nargs="+", help="of each family; all where none is named")
    parser.add_argument("--batches", type=int, default=30, help="batches a candidate; the first two are not timed")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--precision", default="auto", choices=("auto", "float32", "bfloat16"), help="of Headloom")
    parser.add_argument("--peer-python", default=sys.executable, help="a Python with torch and transformers")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker, arguments)
        return
    print("| size | candidate | tokens/s | ratio (p10..p90) | last loss |")
    print("| --- | --- | --- | --- | --- |")
    for family in arguments.families:
        for size in arguments.sizes or SIZES[family]:
            for row in measure(family, size, arguments):
                print(row, flush=True)


if __name__ == "__main__":
    main()
