"""Rules between the parts of a model: which combinations are refused, and with which words.

docs/combinations.md shows them.
"""

from headloom.config import rules
from headloom.config.schema_model import Initialization, ModelConfig
from headloom.config.schema_parts import DeepNormConfig, NormConfig
from headloom.config.schema_position import PositionConfig, RopeConfig, Scaling, SinusoidalConfig
from headloom.config.schema_training import AttentionKernel
from headloom.errors import ConfigError


def check_parts(model: ModelConfig, position: PositionConfig, norm: NormConfig) -> None:
    """Raises:
    ConfigError: two parts do not go together.
    """
    _check_position(model, position)
    if isinstance(norm, DeepNormConfig):
        if model.initialization is not Initialization.xavier:
            raise ConfigError(
                f"norm=deepnorm scales xavier's initial weights: set model.initialization=xavier, "
                f"not {model.initialization.name}"
            )
        if model.residual_scale != 1:
            raise rules.no_effect(
                f"model.residual_scale={model.residual_scale}", "norm=deepnorm, which sets the scale by the depth"
            )


def _check_position(model: ModelConfig, position: PositionConfig) -> None:
    head_width = model.d_model // model.num_heads
    heads = f"model.d_model={model.d_model} over model.num_heads={model.num_heads} is {head_width}"
    match position:
        case RopeConfig() if head_width % 2:
            raise ConfigError(f"position=rope needs an even head width: {heads}; change one of them")
        case RopeConfig(scaling=Scaling.ntk | Scaling.dynamic_ntk) if round(position.share * head_width / 2) < 2:
            raise ConfigError(
                f"position.scaling={position.scaling.name} needs at least 4 channels of a head that turn: {heads}, and "
                f"position.share={position.share}; change one of them"
            )
        case SinusoidalConfig() if model.d_model % 2:
            raise ConfigError(f"position=sinusoidal needs an even model.d_model, not {model.d_model}")


def check_attention_kernel(kernel: AttentionKernel, model: ModelConfig) -> None:
    """Raises:
    ConfigError: `trainer.attention` names a kernel that drops no weights, and the model's are dropped.
    """
    dropout = model.dropout if model.attention_dropout is None else model.attention_dropout
    if kernel in (AttentionKernel.flex, AttentionKernel.varlen) and dropout > 0:
        raise ConfigError(
            f"trainer.attention={kernel.name} drops no attention weights, and model.attention_dropout is {dropout}: "
            "set model.attention_dropout=0 or trainer.attention=auto"
        )
