"""A lesson: a character-level language model in NumPy, trained on Alice in Wonderland while you watch.

Prints every array of the first step with its shape and the equation it comes
from, the loss as it falls, and what the model writes at the end. With
alice29.txt it reaches 1.49 nats a character on the tenth of the text that it
has not seen, in 48 seconds of one core.
"""

import argparse
import os
import pydoc_data.topics
import sys
import time
from pathlib import Path

if __name__ == "__main__":  # read when NumPy is loaded: products as small as these gain nothing from more threads
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from headloom.reference import parts
from headloom.reference.adam import Adam
from headloom.reference.layers import Settings
from headloom.reference.model import Transformer
from headloom.reference.parts import Array

OPTIONS = {  # default, least, meaning
    "steps": (2000, 1, "updates of the weights"),
    "batch": (16, 1, "pieces of text a step"),
    "length": (64, 1, "characters of a piece"),
    "width": (64, 8, "width of the residual stream, a multiple of 8"),
    "layers": (2, 1, "layers"),
    "seed": (0, 0, "of weights, pieces and sample"),
    "sample": (400, 0, "characters to write at the end"),
}
ALICE = Path("data/alice29.txt")  # where train.py with data=alice keeps it
NUM_HEADS, PEAK_LEARNING_RATE, WARMUP_STEPS = 4, 6e-3, 50


def main(arguments: list[str] | None = None) -> float:
    """Train and write as the command line says; returns the loss on held-out text in nats a character."""
    parser = argparse.ArgumentParser("python -m headloom.reference.alice", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--text", type=Path, metavar="FILE", help=f"UTF-8; default: {ALICE}")
    for name, (default, _, meaning) in OPTIONS.items():
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{meaning}; default: {default}")
    options = parser.parse_args(arguments)
    for name, (_, least, meaning) in OPTIONS.items():
        if (value := getattr(options, name)) < least or (name == "width" and value % 8):
            sys.exit(f"--{name} {value} ({meaning}) must be at least {least}")
    T = options.length
    text, origin = read_text(options.text)
    if len(text) < 20 * T:
        sys.exit(f"{origin} has {len(text):,} characters, too few for pieces of {T}: give a longer --text")
    characters = sorted(set(text))
    token_N = np.array([characters.index(character) for character in text])
    train_N, held_out_N = np.split(token_N, [len(text) * 9 // 10])
    sys.stdout.write(f"{origin}: {len(text):,} characters, {len(characters)} different, the last tenth held out\n\n")

    rng = np.random.default_rng(options.seed)
    sizes = {"d_model": options.width, "d_ff": 4 * options.width, "num_heads": NUM_HEADS, "num_kv_heads": NUM_HEADS}
    depth, vocabulary = {"decoder": options.layers}, {"decoder": len(characters)}
    settings = Settings(**sizes, num_layers=depth, vocab_size=vocabulary, position="rope", tying="decoder")
    model = Transformer(settings, {}, rng, watch=_write_row)
    adam = Adam(model.weights)
    started_at = time.monotonic()
    for step in range(1, options.steps + 1):
        start_B1 = rng.integers(0, train_N.size - T, (options.batch, 1))
        token_BT = train_N[start_B1 + np.arange(T + 1)]
        logits_BTV, backward = model.language_model(token_BT[:, :-1])
        loss, loss_backward = parts.cross_entropy(logits_BTV, token_BT[:, 1:])
        gradients = backward(*loss_backward(1 / (options.batch * T)))
        warmup, decay = min(1, step / WARMUP_STEPS), 1 - (step - 1) / options.steps
        adam.step(gradients, learning_rate=PEAK_LEARNING_RATE * warmup * decay)
        if step == 1:
            model.watch = lambda *_: None
            sys.stdout.write(f"\n{sum(weight.size for weight in model.weights.values()):,} weights\n\n")
        line = f"step {step:>5}   loss {loss / (options.batch * T):.3f}   {time.monotonic() - started_at:4.0f} s"
        if step == 1 or step % max(1, options.steps // 20) == 0:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        elif sys.stderr.isatty():
            sys.stderr.write(line + "\r")  # the next line is written over it; a log file gets none

    loss_nats = held_out_loss(model, held_out_N, T)
    sys.stdout.write(f"\nheld-out text: {loss_nats:.3f} nats a character\n\n")
    sample = write(model, held_out_N[:T], options.sample, rng)
    sys.stdout.write("".join(characters[token] for token in sample) + "\n")
    return loss_nats


def read_text(path: Path | None) -> tuple[str, str]:
    """The text to learn and where it is from: `path`, else ALICE, else Python's own help."""
    if path is None and not ALICE.exists():
        return "\n".join(pydoc_data.topics.topics.values())[:150_000], f"no --text and no {ALICE}, so Python's help"
    path = path or ALICE
    try:
        return path.read_bytes().decode().replace("\r\n", "\n"), str(path)
    except (OSError, UnicodeError) as error:
        sys.exit(f"--text {path} cannot be read as UTF-8 text: {error}")


def held_out_loss(model: Transformer, token_N: Array, T: int) -> float:
    """Nats a character over pieces of T characters, each predicted from those before it in its piece."""
    num_pieces = (token_N.size - 1) // T
    input_BT, target_BT = (token_N[i : i + num_pieces * T].reshape(num_pieces, T) for i in (0, 1))
    logits_BTV, _ = model.language_model(input_BT)
    return float(parts.cross_entropy(logits_BTV, target_BT)[0] / target_BT.size)


def write(model: Transformer, prompt_T: Array, num_characters: int, rng: np.random.Generator) -> list[int]:
    """Tokens drawn one by one from the model's distribution, given as many before as the prompt has."""
    tokens = prompt_T.tolist()
    for _ in range(num_characters):
        logits_1TV, _ = model.language_model(np.array([tokens[-prompt_T.size :]]))
        p_V = parts.softmax(logits_1TV[0, -1].astype(np.float64))
        tokens.append(rng.choice(p_V.size, p=p_V))
    return tokens[prompt_T.size :]


def _write_row(name: str, array: Array, equation: str) -> None:
    sys.stdout.write(f"{name:<32} {'x'.join(map(str, array.shape)):<16} {equation}\n")


if __name__ == "__main__":
    main()
