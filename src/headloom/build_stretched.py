"""A trained model whose positions are stretched: the only part of an architecture that may change after training."""

from dataclasses import replace

from torch import nn

from headloom.build_parts import build_rope_scaling
from headloom.config.schema import TrainConfig
from headloom.config.schema_position import LearnedConfig, RopeConfig, Scaling, StretchConfig, stretched_length
from headloom.nn.positional import Learned, Rotary


def stretch_config(config: TrainConfig, stretch: StretchConfig) -> TrainConfig:
    """The configuration of a checkpoint with its positions stretched, and with sequences as much longer allowed.

    Raises:
        ConfigError: the positions of the checkpoint cannot be changed so.
    """
    position = stretch.applied(config.position)
    if position == config.position:
        return config
    match position:
        case RopeConfig(scaling=Scaling.dynamic_ntk | Scaling.yarn, original_length=None):
            position = replace(position, original_length=config.data.max_length)
    max_length = stretched_length(config.position, position, config.data.max_length)
    return replace(config, position=position, data=replace(config.data, max_length=max_length))


def stretch_model(model: nn.Module, config: TrainConfig) -> None:
    """Give a model with its trained weights the positions of `config`, which `stretch_config` made."""
    match config.position:
        case RopeConfig() as position:
            for module in model.modules():
                if isinstance(module, Rotary):
                    module.rescale(build_rope_scaling(position, max_length=config.data.max_length))
        case LearnedConfig(max_length=max_length):
            for module in model.modules():
                if isinstance(module, Learned) and module.max_length != max_length:
                    module.stretch(max_length)
