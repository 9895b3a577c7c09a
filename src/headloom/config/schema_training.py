"""Options of the loop that trains. Optimizer and schedule: schema_optimizer.py, schema_schedule.py."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from headloom.config import rules
from headloom.errors import ConfigError

AUTO = "auto"
MOST_THREADS = 1024
DEFAULT_MAX_TOKENS = 4096


class Device(Enum):
    auto = "auto"  # a GPU when there is one
    cpu = "cpu"
    cuda = "cuda"


class Precision(Enum):
    auto = "auto"  # bfloat16 where the device computes it fast, else float32
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"  # training with a loss scaler, on a GPU only; else on a CPU of weights alone


class Engine(Enum):
    ddp = "ddp"  # a copy of the model on every process
    fsdp = "fsdp"  # a part of it on every process


class OnDivergence(Enum):
    stop = "stop"
    skip = "skip"  # leave the update out
    rollback = "rollback"  # to the last checkpoint, and past the data that did it


class OnScaleCollapse(Enum):
    stop = "stop"
    bfloat16 = "bfloat16"
    float32 = "float32"


class ActivationCheckpointing(Enum):
    none = "none"
    full = "full"
    selective = "selective"


class AttentionKernel(Enum):
    auto = "auto"  # what is fastest, as measured
    eager = "eager"  # written out, step by step
    sdpa = "sdpa"  # torch.nn.functional.scaled_dot_product_attention
    flex = "flex"  # torch.nn.attention.flex_attention
    varlen = "varlen"  # torch.nn.attention.varlen: Flash over the real tokens alone


@dataclass(kw_only=True)
class TrainerConfig:
    """The loop: how long, how much at once, how often it looks up."""

    device: Device = Device.auto
    """Where it computes: auto (a GPU when there is one), cpu or cuda."""
    max_steps: int = 10000
    """Updates of the weights in the whole run. A resumed run may raise it: a schedule that ends with it (cosine,
    linear, wsd) is computed anew for the later end, and the rate goes over to the new curve where the run goes on."""
    max_tokens: Any = 4096
    """Most tokens of a batch: rows times the longest padded side. auto: as many as fit on the GPU, measured on the
    longest rows before the first update; 4096 on a CPU."""
    accumulation: int = 1
    """Batches an update, of all processes together; the update is the one of a single batch of all their pairs."""
    engine: Engine = Engine.ddp
    """With several processes, started by torchrun: ddp, a copy of the model on each; fsdp, a part of it on each."""
    rank_timeout: float = 1800
    """Seconds that one of several processes waits for another before it ends; preparing data may take any time."""
    evaluate_every: int | None = 500
    """Steps between validations; there is one at the end too. null: only that one."""
    save_every: int | None = 500
    """Steps between numbered checkpoints; last.pt is written at the end too. null: only that one."""
    log_every: int = 50
    """Steps between lines of the log."""
    precision: Precision = Precision.auto
    """Type of the matrix products; weights and loss stay float32: auto, float32, bfloat16 or float16 (GPU only)."""
    attention: AttentionKernel = AttentionKernel.auto
    """Kernels of attention: auto (the fastest, as measured), eager (written out), sdpa (PyTorch's own choice), flex
    (FlexAttention; a GPU) or varlen (Flash over real keys alone, where padding alone hides some; a GPU in bfloat16 or
    float16). Neither of the last two drops weights; one that does not work here is left with a warning."""
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing.none
    """Activations that are computed again in the backward pass instead of kept: none, full (of every block) or
    selective (of every attention, or as checkpoint_every says). Gradients stay the same."""
    checkpoint_every: int | None = None
    """With activation_checkpointing=selective: every such block is computed again. null: the attention of every
    block."""
    compile: bool | str = "auto"
    """true: blocks are compiled, each kind once for all lengths, for training; validations run as they are written, as
    evaluate.py does. auto: on a GPU. Without a compiler there is a warning, and nothing is compiled.
    trainer.pad_to_multiple keeps the shapes few."""
    on_scale_collapse: OnScaleCollapse = OnScaleCollapse.float32
    """With precision=float16, when gradients overflow at every loss scale: go on in bfloat16 or float32, or stop."""
    on_divergence: OnDivergence = OnDivergence.stop
    """When a loss or gradient is not finite, or losses leave their course: stop; skip the update; or rollback to the
    last checkpoint and go on with the data that follows. Each says in the log where and in which sentences. Weights
    that give no finite loss are never saved."""
    spike_deviations: float | None = 10.0
    """Robust standard deviations above the median of the last 128 updates, and half a nat, from which 8 losses in a row
    (with on_divergence=skip: one) have left their course. null: never."""
    max_grad_norm: float | None = 1.0
    """Longer gradients are scaled down to this norm. null: never."""
    patience: int | None = None
    """Validations in a row without a better headline metric before training ends. null: no early end."""
    min_steps: int = 0
    """Steps before which patience ends nothing; the first validation from there on may."""
    keep_checkpoints: int = 3
    """Numbered checkpoints kept; last.pt and best.pt are kept besides."""
    keep_best_checkpoints: int = 0
    """Checkpoints kept of the best validations, as best_STEP.pt besides best.pt."""
    average_last: int | None = None
    """Newest checkpoints whose mean becomes average.pt and is validated at the end of training. null: none."""
    average_best: int | None = None
    """Best checkpoints whose mean becomes average.pt and is validated at the end of training. null: none."""
    average_decay: float | None = None
    """Decay a step of an exponential moving average of the weights, in (0, 1), used in validation and translation.
    null: none."""
    pad_to_multiple: int = 1
    """Padded lengths are rounded up to a multiple of this, and above 1 rows down to a multiple of 8, so that fewer
    shapes occur: each new one takes time to prepare, on a GPU and in bfloat16 on a CPU."""
    num_threads: int | None = None
    """CPU threads. null: what PyTorch takes."""

    def __post_init__(self) -> None:
        if self.max_tokens != AUTO and type(self.max_tokens) is not int:
            raise ConfigError(f"trainer.max_tokens={self.max_tokens} is not known: set it to a whole number or auto")
        if self.max_tokens != AUTO:
            rules.at_least("trainer.max_tokens", self.max_tokens, 1)
        for option in ("max_steps", "accumulation", "evaluate_every", "save_every", "log_every"):
            rules.at_least(f"trainer.{option}", getattr(self, option), 1)
        for option in ("patience", "pad_to_multiple", "num_threads"):
            rules.at_least(f"trainer.{option}", getattr(self, option), 1)
        if self.num_threads is not None and self.num_threads > MOST_THREADS:
            raise ConfigError(
                f"trainer.num_threads={self.num_threads} is more than {MOST_THREADS}, with which PyTorch may not even "
                "start: at most as many as the machine has cores are of use"
            )
        rules.at_least("trainer.keep_checkpoints", self.keep_checkpoints, 0)
        rules.at_least("trainer.keep_best_checkpoints", self.keep_best_checkpoints, 0)
        self._check_averages()
        rules.above_zero("trainer.max_grad_norm", self.max_grad_norm)
        rules.at_least("trainer.checkpoint_every", self.checkpoint_every, 2)
        if self.checkpoint_every is not None and self.activation_checkpointing is not ActivationCheckpointing.selective:
            raise rules.no_effect(
                "trainer.checkpoint_every", f"trainer.activation_checkpointing={self.activation_checkpointing.name}"
            )
        if isinstance(self.compile, str) and self.compile != "auto":
            raise ConfigError(f"trainer.compile={self.compile} is not known: set it to true, false or auto")
        if self.attention in (AttentionKernel.flex, AttentionKernel.varlen) and self.device is Device.cpu:
            raise ConfigError(
                f"trainer.attention={self.attention.name} needs a GPU: use trainer.attention=auto on a CPU"
            )
        rules.above_zero("trainer.rank_timeout", self.rank_timeout)
        rules.above_zero("trainer.spike_deviations", self.spike_deviations)
        rules.share("trainer.average_decay", self.average_decay, with_zero=False)
        rules.at_least("trainer.min_steps", self.min_steps, 0)
        if self.min_steps and self.patience is None:
            raise rules.no_effect(f"trainer.min_steps={self.min_steps}", "trainer.patience=null")
        if self.patience is not None and self.evaluate_every is None:
            raise rules.no_effect("trainer.patience", "trainer.evaluate_every=null")
        if self.precision is Precision.float16 and self.device is Device.cpu:  # without a loss scaler it underflows
            raise ConfigError(
                "trainer.precision=float16 cannot be used with trainer.device=cpu: use trainer.precision=auto"
            )
        if self.engine is Engine.fsdp and self.precision is Precision.float16:
            raise ConfigError(
                "trainer.engine=fsdp cannot be used with trainer.precision=float16, whose overflow a rank would see "
                "in its part alone: use trainer.precision=bfloat16"
            )

    def _check_averages(self) -> None:
        if self.average_last is not None and self.average_best is not None:
            raise ConfigError(
                "trainer.average_last and trainer.average_best both say what average.pt is: remove one of them"
            )
        for option, kept in (("average_last", "keep_checkpoints"), ("average_best", "keep_best_checkpoints")):
            count, num_kept = getattr(self, option), getattr(self, kept)
            rules.at_least(f"trainer.{option}", count, 2)
            if count is not None and count > num_kept:
                raise ConfigError(
                    f"trainer.{option}={count} asks for more checkpoints than are kept: raise trainer.{kept}={num_kept}"
                )
