"""From the options of `decoding` to a translator."""

import torch

from headloom.config import schema_decoding
from headloom.data.tokenizer_base import Tokenizer
from headloom.decoding.translator import Translator
from headloom.models.seq2seq import Seq2Seq


def build_translator(
    config: schema_decoding.DecodingConfig,
    model: Seq2Seq,
    tokenizers: tuple[Tokenizer, Tokenizer],
    *,
    max_source_length: int,
    device: torch.device,
    autocast_dtype: torch.dtype | None,
) -> Translator:
    """`max_source_length` is `data.max_length` of the training: longer sources were never seen."""
    match config:
        case schema_decoding.GreedyConfig():
            beam_size, length_penalty = 1, 0.0
        case schema_decoding.BeamConfig():
            beam_size, length_penalty = config.beam_size, config.length_penalty
        case _:
            raise AssertionError(config)
    return Translator(
        model,
        *tokenizers,
        beam_size=beam_size,
        length_penalty=length_penalty,
        max_length=config.max_length,
        max_ratio=config.max_ratio,
        max_tokens=config.max_tokens,
        device=device,
        autocast_dtype=autocast_dtype,
        max_source_length=max_source_length,
    )
