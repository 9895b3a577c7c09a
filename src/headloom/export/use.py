"""Exports in use: what evaluate.py and translate.py run in place of a checkpoint."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import torch

from headloom import build
from headloom.config.rules import no_effect
from headloom.config.schema_decoding import DecodingEngine
from headloom.config.schema_text import TranslationConfig
from headloom.config.schema_use import EvaluateConfig, TranslateConfig, check_ctranslate2
from headloom.data.tokenizer_base import Tokenizer
from headloom.decoding.ctranslate2_engine import CTranslate2Engine
from headloom.errors import CheckpointError, ConfigError
from headloom.export.command import refuse_obstacle, write_checked
from headloom.export.ctranslate2 import CTranslate2, engine_of
from headloom.export.folder import Description, read_description, sha256_of
from headloom.export.formats import require_ctranslate2
from headloom.export.sample import Sample
from headloom.training.precision import choose_device
from headloom.work.base import Trained

logger = logging.getLogger(__name__)

SUFFIX = ".ctranslate2"
NUM_RANDOM, MAX_RANDOM = 50, 20
"""Sources, and their longest, that a checkpoint's own export is compared on."""


def load_exported(folder: Path, config: EvaluateConfig | TranslateConfig) -> Trained:
    """An export in place of a checkpoint.

    Raises:
        CheckpointError: the folder is no export, or one that nothing here runs.
        ConfigError: the program that runs it is not installed, or has not the search.
    """
    description = check_exported(folder, config)
    target = choose_device(config.device.name)
    engine = engine_of(description.config, folder, device=target.type)
    return Trained(description.config, None, description.contents, description.step, target, None, engine)


def check_exported(folder: Path, config: EvaluateConfig | TranslateConfig) -> Description:
    """What an export says of itself, once it can be run as `config` says; raises as `load_exported`."""
    description = read_description(folder)
    if description.format != CTranslate2.name or not isinstance(description.config.task, TranslationConfig):
        raise CheckpointError(
            f"{folder} is an export of format={description.format} and task={description.config.task.kind.name}, which "
            "runs elsewhere: name the checkpoint's file, or export a translation model with format=ctranslate2"
        )
    if config.decoding.engine is DecodingEngine.headloom:
        raise ConfigError(f"decoding.engine=headloom needs a checkpoint's file, and {folder} is an export: remove it")
    check_ctranslate2(config)
    require_ctranslate2(f"checkpoint={folder}")
    return description


def with_engine(trained: Trained, checkpoint: Path) -> Trained:
    """`trained`, the model of the file `checkpoint`, with CTranslate2 to search; exported beside it where that is not
    done yet.

    The folder's name has the hash of the file, so that a checkpoint that was
    trained further is exported anew; older exports of it are removed. So is a
    damaged one, and it is made anew.

    Raises:
        ConfigError: CTranslate2 is not installed, or cannot express the model.
        CheckpointError: the folder cannot be written, or what CTranslate2 answers differs.
    """
    require_ctranslate2("decoding.engine=ctranslate2")
    if not isinstance(trained.config.task, TranslationConfig):
        raise no_effect("decoding.engine=ctranslate2", f"a checkpoint of task={trained.config.task.kind.name}")
    format = CTranslate2()
    refuse_obstacle(format, trained, checkpoint)
    folder = checkpoint.with_name(f"{checkpoint.stem}-{sha256_of(checkpoint)[:16]}{SUFFIX}")
    engine = _kept_engine(trained, folder)
    if engine is None:
        logger.info("exporting %s for CTranslate2, once", checkpoint)
        try:
            if folder.exists():
                shutil.rmtree(folder)
            write_checked(format, replace(trained, dtype=None), _random_sample(trained), checkpoint, folder)
        except OSError as error:
            raise CheckpointError(
                f"{folder} cannot be written ({error.strerror}): export to another folder with python -m "
                "headloom.export format=ctranslate2, and name that as checkpoint"
            ) from error
        for older in folder.parent.glob(f"{checkpoint.stem}-{'?' * 16}{SUFFIX}"):
            if older != folder:
                shutil.rmtree(older, ignore_errors=True)
        engine = engine_of(trained.config, folder, device=trained.device.type)
    return replace(trained, engine=engine)


def _kept_engine(trained: Trained, folder: Path) -> CTranslate2Engine | None:
    """Of an earlier export; None where there is none, or a damaged one."""
    if not folder.exists():
        return None
    try:
        read_description(folder)
        return engine_of(trained.config, folder, device=trained.device.type)
    except CheckpointError as error:
        logger.warning("%s is damaged and made anew: %s", folder, error)
        return None


def _random_sample(trained: Trained) -> Sample:
    """Tokens at random, so that no corpus is needed: what two programs compute does not depend on what is said."""
    source, _ = build.saved_tokenizers(trained.contents["tokenizers"])
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, min(MAX_RANDOM, trained.config.data.max_length - 1), (NUM_RANDOM,), generator=generator)
    ids = _plain_ids(source)
    rows = [torch.randint(len(ids), (int(length),), generator=generator) for length in lengths]
    return Sample("random tokens", [[ids[i] for i in row.tolist()] for row in rows])


def _plain_ids(tokenizer: Tokenizer) -> list[int]:
    specials = {tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id}
    return [i for i in range(tokenizer.vocab_size) if i not in specials]
