"""From configuration to objects: corpus, tokenizers, task.

The model: build_model.py. Optimizer and schedule: build_training.py. The translator: build_decoding.py.

Nothing below this floor knows a configuration.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headloom.config import schema_data, schema_text
from headloom.config.saved import to_plain
from headloom.data import corpora
from headloom.data.files import written_beside
from headloom.data.text import Corpus, TextPairs, evenly_spread
from headloom.data.tokenizer import ByteTokenizer, load_tokenizer, tokenizer_from_state
from headloom.data.tokenizer_base import Tokenizer
from headloom.data.tokenizer_training import train_tokenizer
from headloom.errors import ConfigError
from headloom.tasks.scheduled_sampling import Decay, ScheduledSampling
from headloom.tasks.translation import TranslationTask

MAX_TOKENIZER_PAIRS = 2_000_000
"""Pairs a tokenizer is trained on; of a larger corpus as many at equal distances."""

RUN_OPTIONS = ("dropout", "sampling_alpha", "sampled_side")
"""Options of a tokenizer that say how a run uses it: what it learns of text does not depend on them."""


def build_corpus(config: schema_data.DataConfig) -> Corpus:
    """The splits of the corpus; one that is not there yet is fetched and prepared under `data.folder`.

    Raises:
        DataError: it cannot be had, or a file of it cannot be used.
    """
    folder = config.folder
    match config:
        case schema_data.HomeAssistantConfig():
            return corpora.homeassistant(target_language=config.target_language, folder=folder, path=config.path)
        case schema_data.Multi30kConfig():
            return corpora.multi30k(
                source_language=config.source_language,
                target_language=config.target_language,
                tokenized=config.tokenized,
                folder=folder,
                path=config.path,
            )
        case schema_data.TatoebaConfig():
            return corpora.tatoeba(folder=folder, path=config.path)
        case schema_data.ParallelConfig():
            return corpora.parallel(
                source=config.source,
                target=config.target,
                valid_source=config.valid_source,
                valid_target=config.valid_target,
                test_source=config.test_source,
                test_target=config.test_target,
                valid_share=config.share_split_off,
                folder=folder,
            )
        case schema_data.TsvConfig():
            return corpora.tsv(
                path=config.path,
                valid_path=config.valid_path,
                test_path=config.test_path,
                source_column=config.source_column,
                target_column=config.target_column,
                valid_share=config.share_split_off,
                folder=folder,
            )
        case schema_data.JsonlConfig():
            return corpora.jsonl(
                path=config.path,
                valid_path=config.valid_path,
                test_path=config.test_path,
                source_field=config.source_field,
                target_field=config.target_field,
                valid_share=config.share_split_off,
                folder=folder,
            )
        case schema_data.CopyConfig() | schema_data.ReverseConfig():
            return corpora.synthetic(
                corpora.SyntheticTask[config.kind.name],
                num_train=config.num_train,
                num_valid=config.num_valid,
                num_symbols=config.num_symbols,
                min_length=config.min_length,
                max_symbols=config.max_symbols,
            )
        case _:
            raise AssertionError(config)


def build_tokenizers(
    config: schema_text.TokenizerConfig, train: TextPairs, folder: Path
) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of source and target, one object when they are joint; trained on `train` where none is given.

    A trained one is kept in `folder` under the hash of text and options, so
    that it is made once, and never used for other text or options.
    """
    match config:
        case schema_text.ByteConfig():
            joint: Tokenizer = ByteTokenizer()
            return joint, joint
        case schema_text.CharConfig() if config.joint:
            joint = _trained(config, train, folder, side=None)
            return joint, joint
        case schema_text.CharConfig():
            return _trained(config, train, folder, side=0), _trained(config, train, folder, side=1)
        case schema_text.BpeConfig() | schema_text.UnigramConfig() if config.joint:
            joint = _given_or_trained(config, config.source_model, train, folder, side=None)
            return joint, joint
        case schema_text.BpeConfig() | schema_text.UnigramConfig():
            return (
                _given_or_trained(config, config.source_model, train, folder, side=0),
                _given_or_trained(config, config.target_model, train, folder, side=1),
            )
        case _:
            raise AssertionError(config)


def build_text_tokenizer(config: schema_text.TokenizerConfig, texts: TextPairs, folder: Path) -> Tokenizer:
    """The one tokenizer of a model that has one side; trained on the sources of `texts` where none is given."""
    match config:
        case schema_text.ByteConfig():
            return ByteTokenizer()
        case schema_text.CharConfig():
            return _trained(config, texts, folder, side=0)
        case schema_text.BpeConfig() | schema_text.UnigramConfig():
            return _given_or_trained(config, config.source_model, texts, folder, side=0)
        case _:
            raise AssertionError(config)


def _given_or_trained(
    config: schema_text.SubwordConfig, model: Path | None, train: TextPairs, folder: Path, *, side: int | None
) -> Tokenizer:
    if model is not None:
        _check_sampling(
            config, load_tokenizer(model).kind, f"tokenizer.{'target' if side == 1 else 'source'}_model={model}"
        )
        return load_tokenizer(model, sampling=_sampling(config))
    return _trained(config, train, folder, side=side)


def _trained(config: schema_text.TokenizerConfig, train: TextPairs, folder: Path, *, side: int | None) -> Tokenizer:
    options = {name: value for name, value in to_plain(config).items() if name not in RUN_OPTIONS}
    content = json.dumps([1, train.fingerprint, options, side, MAX_TOKENIZER_PAIRS])
    path = folder / f"tokenizer-{hashlib.sha256(content.encode()).hexdigest()[:32]}.model"
    if not path.exists():
        texts = _texts(train, side)
        if isinstance(config, schema_text.SubwordConfig):
            tokenizer = train_tokenizer(
                texts,
                kind=config.kind.name,
                vocab_size=config.vocab_size,
                normalization=config.normalization.name if config.normalization else "nmt_nfkc",
                character_coverage=config.character_coverage,
                byte_fallback=config.byte_fallback,
            )
        else:
            tokenizer = train_tokenizer(texts, kind=config.kind.name, vocab_size=None, byte_fallback=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_beside(path) as partial:
            partial.write_bytes(tokenizer.state()["model"])
    return load_tokenizer(path, sampling=_sampling(config))


def _texts(train: TextPairs, side: int | None) -> Iterable[str]:
    for pair in evenly_spread(train, max_pairs=MAX_TOKENIZER_PAIRS):
        yield from pair if side is None else (pair[side],)


def _sampling(config: schema_text.TokenizerConfig) -> float:
    """Strength of the sampling of segmentations in training; 0: none."""
    match config:
        case schema_text.BpeConfig():
            return config.dropout
        case schema_text.UnigramConfig():
            return config.sampling_alpha or 0.0
        case _:
            return 0.0


def _check_sampling(config: schema_text.TokenizerConfig, kind: str, tokenizer: str) -> None:
    """A given model may be of another kind than `config`, and its segmentations are drawn by other rules.

    Raises:
        ConfigError: `config` asks for those of its own kind.
    """
    if not _sampling(config) or kind == config.kind.name:
        return
    options = {"bpe": "dropout", "unigram": "sampling_alpha"}
    remedy = (
        f"set tokenizer={kind} tokenizer.{options[kind]}=..., or leave it out" if kind in options else "leave it out"
    )
    raise ConfigError(
        f"tokenizer.{options[config.kind.name]}={_sampling(config):g} is of {config.kind.name} models, and {tokenizer} "
        f"is a {kind} model: {remedy}"
    )


def sampled_sides(config: schema_text.TokenizerConfig) -> tuple[bool, bool]:
    """Whether segmentations of the source, and of the target, are drawn where the tokenizer samples."""
    side = config.sampled_side if isinstance(config, schema_text.SubwordConfig) else schema_text.SampledSide.both
    return side is not schema_text.SampledSide.target, side is not schema_text.SampledSide.source


def taken_tokenizer(state: dict[str, Any], config: schema_text.TokenizerConfig) -> Tokenizer:
    """The tokenizer of another run's checkpoint, which samples as `config` says."""
    _check_sampling(config, state["kind"], "the one of warm_start")
    return tokenizer_from_state({**state, "sampling": _sampling(config)})


def saved_tokenizers(states: dict[str, Any]) -> tuple[Tokenizer, Tokenizer]:
    """Source and target tokenizer of a checkpoint; a joint one is stored once."""
    source = tokenizer_from_state(states["source"])
    return source, source if states["target"] is None else tokenizer_from_state(states["target"])


def build_task(config: schema_text.TaskConfig) -> TranslationTask:
    match config:
        case schema_text.TranslationConfig():
            sampling = None
            if config.scheduled_sampling > 0:
                sampling = ScheduledSampling(
                    probability=config.scheduled_sampling,
                    decay=Decay[config.sampling_decay.name],
                    num_steps=config.sampling_updates,
                )
            return TranslationTask(
                label_smoothing=config.label_smoothing,
                headline=config.headline.name,
                r_drop=config.r_drop,
                sampling=sampling,
            )
        case _:
            raise AssertionError(config)
