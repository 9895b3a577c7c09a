"""Options of how a model is trained: optimizer, schedule, trainer."""

from dataclasses import dataclass
from enum import Enum

from omegaconf import MISSING

from headloom.config import rules
from headloom.errors import ConfigError


class OptimizerKind(Enum):
    adam = "adam"
    adamw = "adamw"
    muon = "muon"


@dataclass(kw_only=True)
class OptimizerConfig:
    """What turns gradients into steps."""

    kind: OptimizerKind = MISSING
    """The optimizer; set by optimizer=."""
    lr: float | None = None
    """Peak learning rate. null: 0.001, or what schedule=noam computes."""
    beta1: float = 0.9
    """Decay of the running mean of gradients, in [0, 1)."""
    beta2: float = 0.98
    """Decay of the running mean of squared gradients, in [0, 1)."""
    epsilon: float = 1e-9
    """Added to the root of the second mean."""

    def __post_init__(self) -> None:
        rules.follows_group("optimizer", "kind", self)
        rules.above_zero("optimizer.lr", self.lr)
        rules.share("optimizer.beta1", self.beta1)
        rules.share("optimizer.beta2", self.beta2)
        rules.above_zero("optimizer.epsilon", self.epsilon)


@dataclass(kw_only=True)
class AdamConfig(OptimizerConfig):
    """Adam: Kingma and Ba (2015), without weight decay."""

    kind: OptimizerKind = OptimizerKind.adam
    """The optimizer; set by optimizer=."""


@dataclass(kw_only=True)
class AdamWConfig(OptimizerConfig):
    """Adam with decoupled weight decay: Loshchilov and Hutter (2019)."""

    kind: OptimizerKind = OptimizerKind.adamw
    """The optimizer; set by optimizer=."""
    weight_decay: float = 0.01
    """Share of a weight that decays each step, times the learning rate; matrices only, not biases or norms."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.at_least("optimizer.weight_decay", self.weight_decay, 0)


@dataclass(kw_only=True)
class MuonConfig(OptimizerConfig):
    """Orthogonalised momentum for the matrices inside the blocks, AdamW for the rest: Jordan et al. (2024). Learns more
    from each update than Adam; the update costs more."""

    kind: OptimizerKind = OptimizerKind.muon
    """The optimizer; set by optimizer=."""
    lr: float | None = None
    """Peak learning rate of the matrices inside the blocks. null: 0.02, or what schedule=noam computes."""
    momentum: float = 0.95
    """Decay of the running mean of gradients of those matrices, in [0, 1)."""
    adam_share: float = 0.1
    """Rate of everything else (embeddings, biases, norms), as a share of the matrices' rate."""
    weight_decay: float = 0.0
    """Share of a weight that decays each step, times its learning rate; matrices only, not biases or norms."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.share("optimizer.momentum", self.momentum)
        rules.above_zero("optimizer.adam_share", self.adam_share)
        rules.at_least("optimizer.weight_decay", self.weight_decay, 0)


class ScheduleKind(Enum):
    noam = "noam"
    inverse_sqrt = "inverse_sqrt"
    cosine = "cosine"
    linear = "linear"
    constant = "constant"


@dataclass(kw_only=True)
class ScheduleConfig:
    """How the learning rate moves; every schedule rises in a straight line through its warm-up."""

    kind: ScheduleKind = MISSING
    """The schedule; set by schedule=."""
    warmup_steps: int = 1000
    """Steps until the peak."""

    def __post_init__(self) -> None:
        rules.follows_group("schedule", "kind", self)
        rules.at_least("schedule.warmup_steps", self.warmup_steps, 0)


@dataclass(kw_only=True)
class NoamConfig(ScheduleConfig):
    """factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5): Vaswani et al. (2017), equation 3."""

    kind: ScheduleKind = ScheduleKind.noam
    """The schedule; set by schedule=."""
    warmup_steps: int = 4000
    """Steps until the peak."""
    factor: float = 1.0
    """Multiplies the whole schedule."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.at_least("schedule.warmup_steps", self.warmup_steps, 1)
        rules.above_zero("schedule.factor", self.factor)


@dataclass(kw_only=True)
class InverseSqrtConfig(ScheduleConfig):
    """Warm-up to optimizer.lr, then decay as 1 / sqrt(step)."""

    kind: ScheduleKind = ScheduleKind.inverse_sqrt
    """The schedule; set by schedule=."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.at_least("schedule.warmup_steps", self.warmup_steps, 1)


@dataclass(kw_only=True)
class DecayConfig(ScheduleConfig):
    """What cosine and linear have in common: they end with trainer.max_steps."""

    final_share: float = 0.0
    """Share of the peak that is left at trainer.max_steps, in [0, 1]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules.share("schedule.final_share", self.final_share, with_one=True)


@dataclass(kw_only=True)
class CosineConfig(DecayConfig):
    """Warm-up to optimizer.lr, then half a cosine down: Loshchilov and Hutter (2017), without restarts."""

    kind: ScheduleKind = ScheduleKind.cosine
    """The schedule; set by schedule=."""


@dataclass(kw_only=True)
class LinearConfig(DecayConfig):
    """Warm-up to optimizer.lr, then a straight line down."""

    kind: ScheduleKind = ScheduleKind.linear
    """The schedule; set by schedule=."""


@dataclass(kw_only=True)
class ConstantConfig(ScheduleConfig):
    """Warm-up to optimizer.lr, which then stays."""

    kind: ScheduleKind = ScheduleKind.constant
    """The schedule; set by schedule=."""


class Device(Enum):
    auto = "auto"  # a GPU when there is one
    cpu = "cpu"
    cuda = "cuda"


class Precision(Enum):
    auto = "auto"  # bfloat16 where the device computes it fast, else float32
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"  # with a loss scaler; GPU only


@dataclass(kw_only=True)
class TrainerConfig:
    """The loop: how long, how much at once, how often it looks up."""

    device: Device = Device.auto
    """Where it computes: auto (a GPU when there is one), cpu or cuda."""
    max_steps: int = 10000
    """Updates of the weights in the whole run."""
    max_tokens: int = 4096
    """Most tokens of a batch: rows times the longest padded side."""
    accumulation: int = 1
    """Batches an update; the update is the one of a single batch of all their pairs."""
    evaluate_every: int | None = 500
    """Steps between validations; there is one at the end too. null: only that one."""
    save_every: int | None = 500
    """Steps between numbered checkpoints; last.pt is written at the end too. null: only that one."""
    log_every: int = 50
    """Steps between lines of the log."""
    precision: Precision = Precision.auto
    """Type of the matrix products; weights and loss stay float32: auto, float32, bfloat16 or float16 (GPU only)."""
    max_grad_norm: float | None = 1.0
    """Longer gradients are scaled down to this norm. null: never."""
    patience: int | None = None
    """Validations in a row without a better headline metric before training ends. null: no early end."""
    keep_checkpoints: int = 3
    """Numbered checkpoints kept; last.pt and best.pt are kept besides."""
    average_decay: float | None = None
    """Decay a step of an exponential moving average of the weights, in (0, 1), used in validation and translation.
    null: none."""
    pad_to_multiple: int = 1
    """Padded lengths are rounded up to a multiple of this, so that fewer shapes occur."""
    num_threads: int | None = None
    """CPU threads. null: what PyTorch takes."""

    def __post_init__(self) -> None:
        for option in ("max_steps", "max_tokens", "accumulation", "evaluate_every", "save_every", "log_every"):
            rules.at_least(f"trainer.{option}", getattr(self, option), 1)
        for option in ("patience", "pad_to_multiple", "num_threads"):
            rules.at_least(f"trainer.{option}", getattr(self, option), 1)
        rules.at_least("trainer.keep_checkpoints", self.keep_checkpoints, 0)
        rules.above_zero("trainer.max_grad_norm", self.max_grad_norm)
        rules.share("trainer.average_decay", self.average_decay, with_zero=False)
        if self.patience is not None and self.evaluate_every is None:
            raise rules.no_effect("trainer.patience", "trainer.evaluate_every=null")
        check_precision("trainer.", self.device, self.precision)


def check_precision(section: str, device: Device, precision: Precision) -> None:
    """float16 underflows without a loss scaler, which only the GPU path has."""
    if precision is Precision.float16 and device is Device.cpu:
        raise ConfigError(
            f"{section}precision=float16 cannot be used with {section}device=cpu: use {section}precision=bfloat16"
        )
