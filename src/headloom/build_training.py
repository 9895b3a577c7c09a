"""From configuration to what moves the weights: optimizer and schedule."""

import torch
from torch import nn

from headloom.config import schema_optimizer, schema_schedule
from headloom.config.schema import TrainConfig
from headloom.training import optim, schedule
from headloom.training.muon import Muon
from headloom.training.precision import has_fast_bfloat16

DEFAULT_PEAK, DEFAULT_MUON_PEAK = 1e-3, 2e-2


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
            )
        case _:
            raise AssertionError(config)


def build_learning_rate(config: TrainConfig) -> schedule.LearningRate:
    peak = config.optimizer.lr
    if peak is None:
        peak = DEFAULT_MUON_PEAK if isinstance(config.optimizer, schema_optimizer.MuonConfig) else DEFAULT_PEAK
    warmup_steps, max_steps = config.schedule.warmup_steps, config.trainer.max_steps
    match config.schedule:
        case schema_schedule.NoamConfig(factor=factor):
            return schedule.noam(d_model=config.model.d_model, warmup_steps=warmup_steps, factor=factor)
        case schema_schedule.InverseSqrtConfig():
            return schedule.inverse_sqrt(peak=peak, warmup_steps=warmup_steps)
        case schema_schedule.CosineConfig(final_share=final_share):
            return schedule.cosine(peak=peak, warmup_steps=warmup_steps, max_steps=max_steps, final_share=final_share)
        case schema_schedule.LinearConfig(final_share=final_share):
            return schedule.linear(peak=peak, warmup_steps=warmup_steps, max_steps=max_steps, final_share=final_share)
        case schema_schedule.ConstantConfig():
            return schedule.constant(peak=peak, warmup_steps=warmup_steps)
        case _:
            raise AssertionError(config.schedule)
