"""Models for transformers of Hugging Face: a folder that `from_pretrained` reads."""

from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from headloom.config import schema_text
from headloom.config.schema import TrainConfig
from headloom.export.base import Runtime
from headloom.export.huggingface import encoder, lm, seq2seq
from headloom.export.huggingface.runtime import Reading, Writing, quiet
from headloom.export.huggingface.target import Target
from headloom.export.huggingface.tokenizer import tokenizers_of, write_tokenizers
from headloom.work.base import Trained


class HuggingFace:
    """See `base.Format`."""

    name = "huggingface"
    is_exact = True

    def obstacle(self, config: TrainConfig) -> str | None:
        """Of several classes, what stands in the way of all; else of the nearest, with its name."""
        classes = targets(config)
        found = [target.limits.obstacles(config) for target in classes]
        if not all(found):
            return None
        nearest = min(classes, key=lambda one: (len(one.limits.parts(config)), len(one.limits.details(config))))
        options = nearest.limits.obstacles(config)
        shared = [option for option in options if all(option in others for others in found)]
        return shared[0] if shared else f"{options[0]} in {nearest.name}"

    def write(self, trained: Trained, folder: Path) -> None:
        target = next(one for one in targets(trained.config) if not one.limits.obstacles(trained.config))
        with quiet() as transformers:
            model = _model(trained, target, transformers)
            model.save_pretrained(folder)
            write_tokenizers(trained, folder)

    def opened(self, trained: Trained, folder: Path) -> Runtime:
        return Writing(trained, folder) if _writes(trained.config) else Reading(trained, folder)


def targets(config: TrainConfig) -> list[Target]:
    """Classes for the task, the first of which that holds a model is taken."""
    if isinstance(config.task, schema_text.TranslationConfig):
        return seq2seq.TARGETS
    return lm.TARGETS if config.model.kind.name == "lm" else encoder.targets(config)


def _writes(config: TrainConfig) -> bool:
    return isinstance(config.task, schema_text.TranslationConfig) or config.model.kind.name == "lm"


@torch.no_grad()
def _model(trained: Trained, target: Target, transformers: ModuleType) -> Any:
    kind = getattr(transformers, target.name)
    _, tokenizer = tokenizers_of(trained)
    specials = {f"{name}_token_id": getattr(tokenizer, f"{name}_id") for name in ("bos", "eos", "pad")}
    start = {"decoder_start_token_id": tokenizer.bos_id} if target in seq2seq.TARGETS else {}
    default = kind.config_class()
    options = {name: value for name, value in target.options(trained).items() if hasattr(default, name)}
    model = kind(kind.config_class(**options, **specials, **start))
    weights = {name: weight.detach().float().contiguous() for name, weight in target.weights(trained).items()}
    state = model.state_dict()
    missing = [name for name in state if name not in weights]
    zeros = {name: torch.zeros_like(state[name]) for name in missing if name.endswith(".bias")}
    result = model.load_state_dict(weights | zeros, strict=False)
    assert not result.unexpected_keys, result
    if _writes(trained.config):
        model.generation_config = transformers.GenerationConfig(
            **specials,
            **start,
            suppress_tokens=[tokenizer.pad_id, tokenizer.bos_id],
            max_length=trained.config.data.max_length,
        )
    return model
