"""What a fresh run takes of another run's checkpoint: its tokenizer, and the weights that fit."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from headloom import build
from headloom.config import saved, schema_text
from headloom.config.schema import DISCRIMINATORS, TrainConfig
from headloom.data.tokenizer import load_tokenizer
from headloom.data.tokenizer_base import Tokenizer
from headloom.errors import CheckpointError, ConfigError
from headloom.training.checkpoint import load_checkpoint
from headloom.training.warm_start import in_short, take_fitting

logger = logging.getLogger(__name__)

OWN_OPTIONS = ("kind", "joint", "source_model", "target_model", "normalization", *build.RUN_OPTIONS)
"""Options of a tokenizer that are the new run's, or are compared in another way than by their value."""
PARTS = ("position", "norm", "feed_forward", "attention")


class WarmStart:
    """A checkpoint that a fresh run begins with.

    The run takes its tokenizer, since ids mean nothing without it; options under `tokenizer.` that say otherwise are
    refused. Where the checkpoint has an average of weights, that is taken.

    Raises:
        CheckpointError: `path` is no checkpoint.
    """

    def __init__(self, path: Path) -> None:
        self.path = path / "checkpoints" / "best.pt" if path.is_dir() else path
        self._contents = load_checkpoint(self.path)
        self._config = saved.from_plain(self._contents["config"])

    def tokenizer(self, config: schema_text.TokenizerConfig) -> Tokenizer:
        """The tokenizer of text, or of sources.

        Raises:
            ConfigError: `config` asks for another one.
        """
        return self.tokenizers(config)[0]

    def tokenizers(self, config: schema_text.TokenizerConfig) -> tuple[Tokenizer, Tokenizer | None]:
        """The tokenizers of source and target; None for a target that has one of its own, which is still to be made.

        Raises:
            ConfigError: `config` asks for others.
        """
        states = self._contents["tokenizers"]
        source = states["text"] if "text" in states else states["source"]
        target = states.get("target")
        self._check(config, kind=source["kind"], has_two=target is not None)
        taken = build.taken_tokenizer(source, config)
        self._check_given(getattr(config, "source_model", None), "source", taken)
        if config.shares_one_vocabulary:
            return taken, taken
        if target is None:
            return taken, None
        taken_target = build.taken_tokenizer(target, config)
        self._check_given(getattr(config, "target_model", None), "target", taken_target)
        return taken, taken_target

    def _check(self, config: schema_text.TokenizerConfig, *, kind: str, has_two: bool) -> None:
        """`kind` is what the tokenizer is; tokenizer= of that run may have been another, with a model of the user's."""
        then, now = saved.to_plain(self._config.tokenizer), saved.to_plain(config)
        if now["kind"] not in (then["kind"], kind):
            raise ConfigError(
                f"tokenizer={now['kind']} is not that of warm_start={self.path}, which the run takes: "
                f"set tokenizer={then['kind']}"
            )
        if has_two and config.shares_one_vocabulary:
            raise ConfigError(
                f"warm_start={self.path} has a tokenizer a side, which the run takes: set tokenizer.joint=false"
            )
        differing = [name for name in now if name not in OWN_OPTIONS and now[name] != then[name]]
        if now.get("source_model") is not None:  # a given model is compared by its content
            differing = []
        if now.get("normalization") not in (None, then.get("normalization")):
            differing.append("normalization")
        if differing:
            asked = " ".join(f"tokenizer.{name}={now[name]}" for name in differing)
            wanted = " ".join(
                f"tokenizer.{name}={'null' if then[name] is None else str(then[name]).lower()}" for name in differing
            )
            raise ConfigError(
                f"{asked} is not so in warm_start={self.path}, whose tokenizer the run takes: set {wanted}"
            )

    def _check_given(self, model: Path | None, side: str, taken: Tokenizer) -> None:
        if model is None:
            return
        given = (load_tokenizer(model, running_text=running_text).fingerprint for running_text in (False, True))
        if taken.fingerprint not in given:
            raise ConfigError(
                f"tokenizer.{side}_model={model} is not the tokenizer of warm_start={self.path}, which the run takes: "
                "leave it out"
            )

    def fill(self, model: nn.Module, config: TrainConfig) -> None:
        """Put the weights that fit into `model`, and say in the log which did and which did not.

        Raises:
            CheckpointError: none fits.
        """
        weights: Mapping[str, Any] = self._contents["model"]
        if self._contents.get("average") is not None:
            weights = {**weights, **self._contents["average"]["weights"]}
        names = list(model.state_dict())
        fit = take_fitting(model, weights)
        shapes = [f"{name} {tuple(weights[name].shape)}, here {_shape(model, name)}" for name in fit.other_shape]
        if not fit.taken:
            why = f"{shapes[0]}" if shapes else f"its parts are {', '.join(in_short(fit.unused, fit.unused))}"
            raise CheckpointError(
                f"warm_start={self.path} has no weight that fits model={config.model.kind.name}: {why}"
            )
        logger.info(
            "warm start from %s, step %d: took %d of %d weights, %.1f %% of the parameters: %s",
            self.path,
            self._contents["step"],
            len(fit.taken),
            len(names),
            100 * fit.share,
            ", ".join(in_short(fit.taken, names)),
        )
        for level, what, found in (
            (logging.INFO, "fresh, since the checkpoint lacks them", in_short(fit.fresh, names)),
            (logging.WARNING, "fresh, since their shapes differ", shapes),
            (logging.INFO, "not taken, since this model lacks them", in_short(fit.unused, list(weights))),
        ):
            if found:
                logger.log(level, "warm start: %s: %s", what, ", ".join(found))
        self._warn_of_other_parts(config)

    def _warn_of_other_parts(self, config: TrainConfig) -> None:
        """Weights of one name and shape compute something else in other parts."""
        then, now = saved.to_plain(self._config), saved.to_plain(config)
        differing = []
        for part in PARTS:
            kind = DISCRIMINATORS[part]
            same = now[part][kind] == then[part][kind]
            differing += [
                f"{part}.{name}={now[part][name]} (there {then[part].get(name)})"
                for name in (now[part] if same else (kind,))
                if now[part][name] != then[part].get(name)
            ]
        differing += [
            f"model.{name}={now['model'][name]} (there {then['model'].get(name)})"
            for name in ("num_heads", "num_kv_heads", "scale_embedding", "residual_scale")
            if now["model"][name] != then["model"].get(name)
        ]
        if differing:
            logger.warning("warm start: the weights were trained with other parts: %s", ", ".join(differing))


def _shape(model: nn.Module, name: str) -> tuple[int, ...]:
    return tuple(model.state_dict()[name].shape)
