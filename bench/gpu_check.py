"""What only a GPU can show, in one table: precisions, kernels, recomputation, compilation, resuming, waiting, memory.

bench/gpu_check.sh runs it. On a CPU it does the same with tiny sizes, so that it is known to work before a GPU is
there. Exit status 1: something is wrong; the table says what.
"""

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headloom import run
from headloom.build_execution import preference, prepare_execution
from headloom.build_model import build_model
from headloom.config.schema import Check, TrainConfig
from headloom.config.schema_data import CopyConfig
from headloom.config.schema_decoding import GreedyConfig
from headloom.config.schema_model import Seq2SeqConfig
from headloom.config.schema_optimizer import AdamConfig
from headloom.config.schema_parts import PreNormConfig, ReluConfig
from headloom.config.schema_position import SinusoidalConfig
from headloom.config.schema_schedule import ConstantConfig
from headloom.config.schema_text import CharConfig, TranslationConfig
from headloom.config.schema_training import (
    ActivationCheckpointing,
    AttentionKernel,
    Device,
    Precision,
    TrainerConfig,
)
from headloom.data.batch import Batch
from headloom.nn import gpu_kernels
from headloom.nn.kernels import Kernel
from headloom.nn.loss import IGNORE, sequence_loss
from headloom.tasks.translation import TranslationTask
from headloom.training.compilation import num_graphs
from headloom.training.optim import adam
from headloom.training.precision import autocast_dtype
from headloom.training.trainer import Trainer

DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Sizes:
    """`vocab_size` also of the loss alone, with `num_targets`."""

    d_model: int
    num_heads: int
    d_ff: int
    num_layers: int
    vocab_size: int
    rows: int
    length: int
    num_targets: int
    updates: int


LARGE = Sizes(512, 8, 2048, 6, 64_000, 64, 64, 8192, 30)
TINY = Sizes(16, 2, 32, 1, 50, 4, 12, 64, 4)


class Lab:
    """Models and batches of one size on one device."""

    def __init__(self, device: torch.device, sizes: Sizes) -> None:
        self.device = device
        self.sizes = sizes

    def config(self, folder: Path = Path("unused"), **trainer: Any) -> TrainConfig:
        s = self.sizes
        return TrainConfig(
            model=Seq2SeqConfig(
                d_model=s.d_model,
                num_heads=s.num_heads,
                d_ff=s.d_ff,
                num_encoder_layers=s.num_layers,
                num_decoder_layers=s.num_layers,
                dropout=0.1,
                attention_dropout=0.0,
            ),
            position=SinusoidalConfig(),
            norm=PreNormConfig(),
            feed_forward=ReluConfig(),
            tokenizer=CharConfig(),
            task=TranslationConfig(),
            data=CopyConfig(folder=folder, num_train=200, num_valid=4, num_symbols=5, max_symbols=6, max_length=64),
            optimizer=AdamConfig(),
            schedule=ConstantConfig(warmup_steps=4),
            decoding=GreedyConfig(max_length=16),
            trainer=TrainerConfig(**{"device": Device[self.device.type], "compile": False} | trainer),
        )

    def batch(self, seed: int) -> Batch:
        """Sources and targets of unequal lengths."""
        s, generator = self.sizes, torch.Generator().manual_seed(seed)
        lengths = torch.randint(s.length // 2, s.length + 1, (2, s.rows, 1), generator=generator)
        lengths[:, 0] = s.length
        allowed_BS, real_BT = (torch.arange(s.length) < lengths).unbind()
        source_BS, target_BT = torch.randint(4, s.vocab_size, (2, s.rows, s.length), generator=generator)
        input_BT = torch.cat([torch.ones(s.rows, 1, dtype=torch.int64), target_BT[:, :-1]], dim=1)
        return Batch(
            source_BS=source_BS * allowed_BS,
            source_allowed_BS=allowed_BS,
            target_input_BT=input_BT * real_BT,
            target_BT=target_BT.masked_fill(~real_BT, IGNORE),
            num_targets=int(real_BT.sum()),
            rows=np.arange(s.rows),
        )

    def trainer(self, dtype: torch.dtype | None, **options: Any) -> Trainer:
        torch.manual_seed(1)
        config = self.config(**options)
        model = build_model(config, source_vocab_size=self.sizes.vocab_size, target_vocab_size=self.sizes.vocab_size)
        model.to(self.device).train()
        prepare_execution(model, config.trainer, device=self.device, dtype=dtype)
        return Trainer(
            model,
            TranslationTask(label_smoothing=0.1, headline="loss"),
            adam(model, beta1=0.9, beta2=0.98, epsilon=1e-9),
            learning_rate=lambda step: 3e-4,
            device=self.device,
            autocast_dtype=dtype,
            waits=False,
        )

    def train(self, dtype: torch.dtype | None, **options: Any) -> "Measured":
        """Some updates; what is compiled is so before the clock starts."""
        trainer = self.trainer(dtype, **options)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        torch.manual_seed(7)
        first = [trainer.train_step([self.batch(seed)]) for seed in range(3)]
        self.wait()
        started_at = time.perf_counter()
        reports = [trainer.train_step([self.batch(3 + seed)]) for seed in range(self.sizes.updates)]
        self.wait()
        seconds = time.perf_counter() - started_at
        losses = [float(report.loss) / report.num_targets for report in first + reports]
        peak = torch.cuda.max_memory_allocated() if self.device.type == "cuda" else 0
        return Measured(losses, sum(r.num_targets for r in reports) / seconds, peak / 2**20, trainer.num_skipped)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


@dataclass(frozen=True)
class Measured:
    losses: list[float]
    tokens_per_second: float
    peak_mib: float
    num_skipped: int

    def __str__(self) -> str:
        skipped = f", {self.num_skipped} skipped" if self.num_skipped else ""
        return (
            f"loss {self.losses[0]:.3f} to {self.losses[-1]:.3f}, {self.tokens_per_second:,.0f} targets/s, "
            f"peak {self.peak_mib:,.0f} MiB{skipped}"
        )

    def difference(self, other: "Measured") -> float:
        return max(abs(a - b) for a, b in zip(self.losses, other.losses, strict=True))


def precision(lab: Lab, name: str) -> str:
    """Losses follow those of float32; those that float16 skips aside."""
    measured = lab.train(DTYPES[name])
    assert all(np.isfinite(measured.losses[-3:])), measured
    if name != "float32" and not measured.num_skipped:
        difference = measured.difference(lab.train(None))
        assert difference < 0.2, f"{measured}: off from float32 by {difference}"
    return str(measured)


def kernel_names(lab: Lab, dtype: torch.dtype | None, asked: AttentionKernel) -> str:
    """The operations that attention runs as, from PyTorch's profiler."""
    trainer = lab.trainer(dtype, attention=asked)
    trainer.train_step([lab.batch(0)])
    activities = [torch.profiler.ProfilerActivity.CPU]
    if lab.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        trainer.train_step([lab.batch(1)])
    words = ("attention", "flash", "fmha", "softmax", "varlen", "flex")
    found = {event.key for event in profile.key_averages() if any(word in event.key.lower() for word in words)}
    return "; ".join(sorted(name[:60] for name in found))


def works(lab: Lab, kernel: Kernel, dtype: torch.dtype) -> str:
    found = gpu_kernels.works(kernel, lab.device, dtype)
    assert found or lab.device.type == "cpu", "not used: see the warning above"
    return "as the path written out, gradients too" if found else "not on a CPU"


def attention_paths(lab: Lab, dtype: torch.dtype | None) -> str:
    """Every path learns as the one written out does, at its own speed."""
    right = lab.train(dtype, attention=AttentionKernel.eager)
    lines = [f"eager {right.tokens_per_second:,.0f} targets/s"]
    asked = [AttentionKernel.sdpa, AttentionKernel.auto]
    if lab.device.type == "cuda":
        asked += [AttentionKernel.flex, *([AttentionKernel.varlen] if dtype is not None else [])]
    for kernel in asked:
        measured = lab.train(dtype, attention=kernel)
        difference = measured.difference(right)
        assert difference < (0.01 if dtype is None else 0.1), f"{kernel.name} is off by {difference}"
        lines.append(f"{kernel.name} {measured.tokens_per_second:,.0f} (losses within {difference:.1g})")
    wanted = preference(AttentionKernel.auto, lab.device, dtype).working
    return ", ".join(lines) + f"; auto may take {', '.join(k.name for k in wanted) or 'PyTorch and written out'}"


def recomputation(lab: Lab) -> str:
    plain = lab.train(None)
    lines = [f"none {plain.peak_mib:,.0f} MiB"]
    for way in (ActivationCheckpointing.full, ActivationCheckpointing.selective):
        measured = lab.train(None, activation_checkpointing=way)
        difference = measured.difference(plain)
        assert difference < (0.01 if lab.device.type == "cuda" else 1e-9), f"{way.name} is off by {difference}"
        share = measured.tokens_per_second / plain.tokens_per_second
        lines.append(f"{way.name} {measured.peak_mib:,.0f} MiB at {share:.0%} of the speed (within {difference:.1g})")
    return ", ".join(lines)


def compilation(lab: Lab, dtype: torch.dtype | None) -> str:
    plain = lab.train(dtype)
    before = num_graphs()
    names = list(lab.trainer(dtype).model.state_dict())
    measured = lab.train(dtype, compile=True)
    assert list(lab.trainer(dtype, compile=True).model.state_dict()) == names
    share = measured.tokens_per_second / plain.tokens_per_second
    return f"{num_graphs() - before} graphs, {share:.2f} times the speed, last loss {measured.losses[-1]:.3f}"


def resuming(lab: Lab, name: str) -> str:
    """check=resume on the device. Bit for bit only where the device adds in a fixed order."""
    tiny = Lab(lab.device, TINY)
    with tempfile.TemporaryDirectory() as folder:
        config = tiny.config(Path(folder) / "data", precision=Precision[name], max_steps=9, max_tokens=90)
        torch.use_deterministic_algorithms(lab.device.type == "cuda", warn_only=True)
        try:
            run.train(replace(config, check=Check.resume), Path(folder) / "run")
        finally:
            torch.use_deterministic_algorithms(False)
    return "4 + 5 = 3 + 3 + 3 = 9 updates, bit for bit"


def waiting(lab: Lab, dtype: torch.dtype | None) -> str:
    """PyTorch raises where the host waits for the device in an update."""
    if lab.device.type == "cpu":
        return "nothing to wait for on a CPU"
    trainer = lab.trainer(dtype)
    for seed in range(3):
        trainer.train_step([lab.batch(seed)])
    batch = lab.batch(3)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        trainer.train_step([batch])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "no wait in an update"


def loss_memory(lab: Lab) -> str:
    """B107: of the loss alone, beside what is given to it."""
    s = lab.sizes
    hidden = torch.randn(16, s.num_targets // 16, s.d_model, device=lab.device, requires_grad=True)
    weight = torch.randn(s.vocab_size, s.d_model, device=lab.device, requires_grad=True)
    target = torch.randint(s.vocab_size, hidden.shape[:2], device=lab.device)
    before = torch.cuda.memory_allocated() if lab.device.type == "cuda" else 0
    if lab.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    loss: Tensor = sequence_loss(hidden, target, weight, label_smoothing=0.1, num_targets=s.num_targets).loss
    loss.backward()
    peak = torch.cuda.max_memory_allocated() - before if lab.device.type == "cuda" else 0
    whole = 4 * s.num_targets * s.vocab_size
    return (
        f"{s.vocab_size:,} words, {s.num_targets:,} targets: {peak / 2**20:,.0f} MiB; logits {whole / 2**20:,.0f} MiB"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every check and print the table; how many failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes on a GPU too")
    parser.add_argument("--compile", action="store_true", help="compile on a CPU too, which takes a minute")
    parser.add_argument("--only", default="", help="checks whose names begin so")
    flags = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    device = torch.device(flags.device)
    lab = Lab(device, TINY if flags.tiny or device.type == "cpu" else LARGE)
    half = autocast_dtype("auto", device)
    checks: list[tuple[str, Callable[[], str]]] = [
        (f"train, {name}", lambda name=name: precision(lab, name))
        for name in DTYPES
        if name != "float16" or device.type == "cuda"
    ]
    checks += [
        ("works, packed", lambda: works(lab, Kernel.packed, half or torch.bfloat16)),
        ("works, flex", lambda: works(lab, Kernel.flex, half or torch.float32) if device.type == "cuda" else "skipped"),
        ("kernels, auto", lambda: kernel_names(lab, half, AttentionKernel.auto)),
        ("kernels, sdpa", lambda: kernel_names(lab, half, AttentionKernel.sdpa)),
        ("attention, float32", lambda: attention_paths(lab, None)),
        ("attention, half", lambda: attention_paths(lab, half)),
        ("recomputation", lambda: recomputation(lab)),
        ("resume, float32", lambda: resuming(lab, "float32")),
        ("resume, bfloat16", lambda: resuming(lab, "bfloat16")),
        ("waiting", lambda: waiting(lab, half)),
        ("loss memory", lambda: loss_memory(lab)),
    ]
    if device.type == "cuda":
        checks.append(("resume, float16", lambda: resuming(lab, "float16")))
    if device.type == "cuda" or flags.compile:
        checks.append(("compile", lambda: compilation(lab, half)))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{name}, PyTorch {torch.__version__}, Python {sys.version.split()[0]}", flush=True)
    checks = [check for check in checks if check[0].startswith(flags.only)]
    num_failed = 0
    for title, check in checks:
        started_at = time.perf_counter()
        try:
            result = f"ok      {check()}"
        except Exception as error:
            num_failed += 1
            result = f"FAILED  {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        print(f"{title:<20} {time.perf_counter() - started_at:6.1f} s  {result}", flush=True)
    print(f"{len(checks) - num_failed} of {len(checks)} ok", flush=True)
    return num_failed


if __name__ == "__main__":
    sys.exit(min(1, main()))
