"""From configuration to what moves the weights: optimizer, schedule and engine."""

import logging
from typing import assert_never

import torch
from torch import nn

from headloom.config import schema_optimizer, schema_schedule, schema_training
from headloom.config.schema import TrainConfig
from headloom.errors import ConfigError
from headloom.ranks import Ranks
from headloom.training import optim, schedule
from headloom.training.engine import PROCESS_ALONE, Engine
from headloom.training.muon import Muon
from headloom.training.precision import has_fast_bfloat16

logger = logging.getLogger(__name__)


def build_optimizer(
    config: schema_optimizer.OptimizerConfig, model: nn.Module, *, device: torch.device
) -> torch.optim.Optimizer:
    match config:
        case schema_optimizer.AdamConfig():
            return optim.adam(model, beta1=config.beta1, beta2=config.beta2, epsilon=config.epsilon)
        case schema_optimizer.AdamWConfig():
            return optim.adamw(
                model,
                beta1=config.beta1,
                beta2=config.beta2,
                epsilon=config.epsilon,
                weight_decay=config.weight_decay,
                rule=_decay_rule(config),
            )
        case schema_optimizer.AdafactorConfig():
            return optim.adafactor(
                model,
                beta2_exponent=config.beta2_exponent,
                clip_threshold=config.clip_threshold,
                epsilon=config.epsilon,
                weight_decay=config.weight_decay,
                rule=_decay_rule(config),
            )
        case schema_optimizer.MuonConfig():
            return Muon(
                model,
                momentum=config.momentum,
                adam_share=config.adam_share,
                beta1=config.beta1,
                beta2=config.beta2,
                epsilon=config.epsilon,
                weight_decay=config.weight_decay,
                dtype=torch.bfloat16 if has_fast_bfloat16(device) else torch.float32,
                rule=_decay_rule(config),
            )
        case schema_optimizer.SgdConfig():
            return optim.sgd(
                model,
                momentum=config.momentum,
                nesterov=config.nesterov,
                weight_decay=config.weight_decay,
                rule=_decay_rule(config),
            )
        case _:
            raise AssertionError(config)


def _decay_rule(config: schema_optimizer.WeightDecayConfig) -> optim.DecayRule:
    return optim.DecayRule(
        embeddings=config.decay_embeddings,
        positions=config.decay_positions,
        norms=config.decay_norms,
        biases=config.decay_biases,
    )


def peak_rate(config: TrainConfig) -> float:
    """The highest rate of the schedule, which it reaches with the last update of its warm-up."""
    if isinstance(config.schedule, schema_schedule.NoamConfig):
        return build_learning_rate(config)(_num_warmup_steps(config) - 1)
    return config.optimizer.unset_lr if config.optimizer.lr is None else config.optimizer.lr


def rate_option(config: TrainConfig, rate: float) -> str:
    """The option that makes `rate` the peak of the schedule, as it is written on the command line."""
    match config.schedule:
        case schema_schedule.NoamConfig(factor=factor):
            return f"schedule.factor={factor * rate / peak_rate(config):.2g}"
        case _:
            return f"optimizer.lr={rate:.2g}"


def build_learning_rate(config: TrainConfig) -> schedule.LearningRate | schedule.Plateau:
    warmup_steps, max_steps = _num_warmup_steps(config), config.trainer.max_steps
    match config.schedule:
        case schema_schedule.NoamConfig(factor=factor):
            return schedule.noam(d_model=config.model.d_model, warmup_steps=warmup_steps, factor=factor)
        case schema_schedule.InverseSqrtConfig():
            return schedule.inverse_sqrt(peak=peak_rate(config), warmup_steps=warmup_steps)
        case schema_schedule.CosineConfig(final_share=final_share):
            return schedule.cosine(
                peak=peak_rate(config), warmup_steps=warmup_steps, max_steps=max_steps, final_share=final_share
            )
        case schema_schedule.LinearConfig(final_share=final_share):
            return schedule.linear(
                peak=peak_rate(config), warmup_steps=warmup_steps, max_steps=max_steps, final_share=final_share
            )
        case schema_schedule.WsdConfig():
            return schedule.wsd(
                peak=peak_rate(config),
                warmup_steps=warmup_steps,
                max_steps=max_steps,
                decay_share=config.schedule.decay_share,
                final_share=config.schedule.final_share,
                shape=schedule.Shape[config.schedule.decay_shape.name],
            )
        case schema_schedule.ConstantConfig():
            return schedule.constant(peak=peak_rate(config), warmup_steps=warmup_steps)
        case schema_schedule.PlateauConfig():
            return schedule.Plateau(
                peak=peak_rate(config),
                warmup_steps=warmup_steps,
                factor=config.schedule.factor,
                patience=config.schedule.patience,
                final_share=config.schedule.final_share,
            )
        case _:
            raise AssertionError(config.schedule)


def _num_warmup_steps(config: TrainConfig) -> int:
    """At least 1 for the schedules that are measured from the end of their warm-up."""
    num_steps = config.schedule.num_warmup_steps(config.trainer.max_steps)
    match config.schedule:
        case schema_schedule.NoamConfig() | schema_schedule.InverseSqrtConfig():
            return max(1, num_steps)
        case _:
            return num_steps


def build_engine(
    config: schema_training.TrainerConfig, model: nn.Module, *, device: torch.device, ranks: Ranks
) -> Engine:
    """How `ranks` train `model` together; a process alone needs nothing.

    Raises:
        ConfigError: with trainer.engine=fsdp a rank would have no batch.
    """
    if ranks.world_size == 1:
        return PROCESS_ALONE
    if config.accumulation % ranks.world_size:
        logger.warning(
            "trainer.accumulation=%d batches an update for %d ranks: some wait for others; set it to a multiple of %d",
            *(config.accumulation, ranks.world_size, ranks.world_size),
        )
    # Imported here: they take seconds.
    match config.engine:
        case schema_training.Engine.ddp:
            from headloom.training.replicated import Replicated

            return Replicated(model, device=device, ranks=ranks)
        case schema_training.Engine.fsdp if config.accumulation < ranks.world_size:
            raise ConfigError(
                f"trainer.accumulation={config.accumulation} leaves some of {ranks.world_size} ranks without a batch, "
                f"and each holds a part of the model: set it to {ranks.world_size} or a multiple"
            )
        case schema_training.Engine.fsdp:
            from headloom.training.sharded import Sharded

            return Sharded(model, device=device, ranks=ranks)
        case _:
            assert_never(config.engine)
