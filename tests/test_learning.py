"""One real training through the commands: what is learned is what the pairs say, on words never seen."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
LETTERS = "abcdefgh"


def write_pairs(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """ ">word" asks for the word, "<word" for the word from its last letter to its first; none occurs twice."""
    draw, seen = random.Random(1), set()
    splits: dict[str, list[tuple[str, str]]] = {}
    for split, size in (("valid", 50), ("test", 150), ("train", 12_000)):
        pairs = splits[split] = []
        while len(pairs) < size:
            word = "".join(draw.choices(LETTERS, k=draw.randint(4, 7)))
            if word not in seen:
                seen.add(word)
                pairs.append((f">{word}", word) if draw.random() < 0.5 else (f"<{word}", word[::-1]))
        lines = "".join(f"{source}\t{target}\n" for source, target in pairs)
        (folder / f"{split}.tsv").write_text(lines, encoding="utf-8", newline="\n")
    return splits


def run(folder: Path, command: str, *options: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """A command as a user gives it, in a folder of theirs, in the poorest locale (B14)."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, str(ROOT / command), *options],
        cwd=folder,
        input=stdin,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_a_small_model_learns_to_copy_and_to_reverse(tmp_path):
    """B29, B44: a model that sees the future, or whose targets are shifted wrongly, cannot do it.

    Also B97 (no carriage return in a log file) and B41 (one score whichever command gives it).
    """
    splits = write_pairs(tmp_path)
    log = run(
        tmp_path,
        "train.py",
        *("data=tsv", "data.path=train.tsv", "data.valid_path=valid.tsv", "data.test_path=test.tsv"),
        *("tokenizer=char", "position=rope", "norm=pre", "size=tiny", "decoding=greedy", "decoding.max_length=32"),
        *("model.d_model=64", "model.d_ff=128", "model.num_encoder_layers=1", "model.num_decoder_layers=1"),
        *("model.dropout=0", "task.label_smoothing=0", "task.headline=chrf"),
        *("optimizer=adam", "optimizer.lr=5e-3", "schedule=linear", "schedule.warmup_steps=100"),
        *("trainer=cpu", "trainer.max_steps=500", "trainer.max_tokens=512", "trainer.evaluate_every=null"),
        *("trainer.save_every=null", "trainer.num_threads=1", "trainer.precision=float32"),
        "hydra.run.dir=run",
    )
    assert "\r" not in log.stdout + log.stderr
    run_dir = tmp_path / "run"
    assert {path.name for path in run_dir.iterdir()} >= {"config.yaml", "metrics.jsonl", "tensorboard", "checkpoints"}
    checkpoint = f"checkpoint={run_dir}/checkpoints/best.pt"

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    sources = "".join(f"{source}\n" for source, _ in splits["test"])
    translated = run(
        elsewhere, "translate.py", checkpoint, "decoding=greedy", "precision=float32", stdin=sources
    ).stdout
    outputs = translated.split("\n")[:-1]
    correct = [output == target for output, (_, target) in zip(outputs, splits["test"], strict=True)]
    assert sum(correct) / len(correct) >= 0.98

    run(elsewhere, "evaluate.py", checkpoint, "decoding=greedy", "precision=float32", "output=scores")
    assert (elsewhere / "scores" / "hypotheses.txt").read_text(encoding="utf-8") == translated
    assert json.loads((elsewhere / "scores" / "evaluation.json").read_bytes())["perplexity"] < 1.1
