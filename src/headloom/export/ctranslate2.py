"""Models for CTranslate2: encoder-decoders and language models.

Vocabularies are the pieces of our tokenizers, so that CTranslate2 takes and
gives what SentencePiece calls pieces; the eos behind a source is added by CTranslate2.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from headloom import build
from headloom.config import schema_parts, schema_position, schema_text
from headloom.config.schema import TrainConfig
from headloom.config.schema_model import Seq2SeqConfig
from headloom.data.tokenizer_base import Tokenizer
from headloom.decoding.ctranslate2_engine import CTranslate2Engine
from headloom.decoding.requests import Beam, Greedy
from headloom.decoding.searcher import Sentence
from headloom.export import ctranslate2_spec as specs
from headloom.export.base import Runtime
from headloom.models.lm import LanguageModel
from headloom.models.seq2seq import Seq2Seq
from headloom.work.base import Trained
from headloom.work.running_text import saved_tokenizer

UNKNOWN_FEED_FORWARDS = (schema_parts.FeedForwardKind.relu2, schema_parts.FeedForwardKind.moe)
UNKNOWN_SCALINGS = (schema_position.Scaling.dynamic_ntk, schema_position.Scaling.yarn)


class CTranslate2:
    """See `base.Format`. `quantization`: as CTranslate2 calls it, such as int8; None: float32."""

    name = "ctranslate2"

    def __init__(self, quantization: str | None = None) -> None:
        self.quantization = quantization
        self.is_exact = quantization is None

    def obstacle(self, config: TrainConfig) -> str | None:
        return next((option for is_there, option in _obstacles(config) if is_there), None)

    def write(self, trained: Trained, folder: Path) -> None:
        match trained.model:
            case Seq2Seq():
                spec = specs.translation_spec(trained.config, trained.model)
                source, target = build.saved_tokenizers(trained.contents["tokenizers"])
                spec.register_source_vocabulary(_pieces(source))
                spec.register_target_vocabulary(_pieces(target))
                spec.config.add_source_eos = True
                spec.config.decoder_start_token = _name(target, target.bos_id)
            case LanguageModel():
                spec = specs.language_model_spec(trained.config, trained.model)
                target = saved_tokenizer(trained.contents)
                spec.register_vocabulary(_pieces(target))
            case _:
                raise AssertionError(type(trained.model))
        spec.config.unk_token = _name(target, target.unk_id)
        spec.config.bos_token = _name(target, target.bos_id)
        spec.config.eos_token = _name(target, target.eos_id)
        spec.config.layer_norm_epsilon = trained.config.norm.epsilon
        spec.validate()
        spec.optimize(quantization=self.quantization)
        spec.save(str(folder))

    def opened(self, trained: Trained, folder: Path) -> Runtime:
        if isinstance(trained.config.model, Seq2SeqConfig):
            return Translation(trained, folder)
        return Continuation(trained, folder)


def _obstacles(config: TrainConfig) -> list[tuple[bool, str]]:
    """Whether each option that CTranslate2 cannot express is there, and the option."""
    translates = isinstance(config.task, schema_text.TranslationConfig)
    position, attention = config.position, config.attention
    scaling = position.scaling if isinstance(position, schema_position.RopeConfig) else None
    return [
        (not translates and config.model.kind.name != "lm", f"task={config.task.kind.name}"),
        (translates and isinstance(position, schema_position.AlibiConfig), "position=alibi in an encoder"),
        (scaling in UNKNOWN_SCALINGS, f"position.scaling={scaling.name if scaling else None}"),
        (config.feed_forward.kind in UNKNOWN_FEED_FORWARDS, f"feed_forward={config.feed_forward.kind.name}"),
        (attention.kind is not schema_parts.AttentionKind.full, f"attention={attention.kind.name}"),
        (attention.soft_cap is not None, f"attention.soft_cap={attention.soft_cap}"),
        (translates and config.norm.query_key, "norm.query_key=true between decoder and encoder"),
    ]


def _pieces(tokenizer: Tokenizer) -> list[str]:
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    assert len(set(pieces)) == len(pieces)
    return pieces


def _name(tokenizer: Tokenizer, special: int) -> str:
    [piece] = tokenizer.pieces([special])
    return piece


class Translation:
    """See `base.Writer`."""

    def __init__(self, trained: Trained, folder: Path) -> None:
        self.engine = engine_of(trained.config, folder, device="cpu")
        self.tokenizers = build.saved_tokenizers(trained.contents["tokenizers"])

    def search(self, sources: Sequence[Sequence[int]], *, beam_size: int, max_length: int) -> list[list[int]]:
        method = Greedy() if beam_size == 1 else Beam(beam_size=beam_size)
        searching = self.engine.searching(*self.tokenizers, search=method, no_repeat_ngram=None)
        found = searching.search([Sentence(source, max_length) for source in sources])
        return [best.ids for [best, *_] in found]


class Continuation:
    """See `base.Writer`."""

    def __init__(self, trained: Trained, folder: Path) -> None:
        import ctranslate2

        self.tokenizer = saved_tokenizer(trained.contents)
        self.program = ctranslate2.Generator(str(folder), intra_threads=torch.get_num_threads())

    def search(self, sources: Sequence[Sequence[int]], *, beam_size: int, max_length: int) -> list[list[int]]:
        tokenizer = self.tokenizer
        pieces = _pieces(tokenizer)
        results = self.program.generate_batch(
            [[pieces[tokenizer.bos_id], *(pieces[i] for i in source)] for source in sources],
            beam_size=beam_size,
            max_length=max_length - 1,
            length_penalty=0,
            include_prompt_in_result=False,
            suppress_sequences=[[pieces[tokenizer.pad_id]], [pieces[tokenizer.bos_id]]],
        )
        return [[int(i) for i in result.sequences_ids[0]] for result in results]


def engine_of(config: TrainConfig, folder: Path, *, device: str) -> CTranslate2Engine:
    """What searches an exported encoder-decoder.

    Raises:
        CheckpointError: CTranslate2 cannot read the folder.
    """
    return CTranslate2Engine(
        folder, max_length=specs.max_length(config), device=device, num_threads=torch.get_num_threads()
    )
