"""From the options of `decoding` to a translator."""

from collections.abc import Sequence
from typing import assert_never

import torch

from headloom.config import schema_decoding as schema
from headloom.data.tokenizer_base import Tokenizer
from headloom.decoding.engine import Engine
from headloom.decoding.ranking import LengthPenalty, Ranking
from headloom.decoding.requests import Beam, Greedy, Limits, MinimumBayesRisk, Sample, Search, Utility
from headloom.decoding.sampling import Truncation
from headloom.decoding.translator import Translator
from headloom.models.seq2seq import Seq2Seq


def build_translator(
    config: schema.DecodingConfig,
    models: Seq2Seq | Sequence[Seq2Seq],
    tokenizers: tuple[Tokenizer, Tokenizer],
    *,
    max_source_length: int,
    device: torch.device,
    autocast_dtype: torch.dtype | None,
    with_alignments: bool = False,
    engine: Engine | None = None,
) -> Translator:
    """`max_source_length` is `data.max_length` of the training: longer sources were never seen.

    A translator that is to score only (`decoding=score`) searches nothing.
    """
    limits = Limits(max_length=1, max_ratio=1.0)
    no_repeat_ngram, forbidden = None, []
    if isinstance(config, schema.SearchConfig):
        limits = Limits(
            max_length=config.max_length,
            max_ratio=config.max_ratio,
            min_length=config.min_length,
            min_ratio=config.min_ratio,
        )
        no_repeat_ngram, forbidden = config.no_repeat_ngram, config.forbidden
    return Translator(
        models,
        *tokenizers,
        search=build_search(config),
        limits=limits,
        max_tokens=config.max_tokens,
        device=device,
        autocast_dtype=autocast_dtype,
        max_source_length=max_source_length,
        no_repeat_ngram=no_repeat_ngram,
        forbidden=forbidden,
        required=config.required if isinstance(config, schema.BeamConfig) else (),
        with_alignments=with_alignments,
        engine=engine,
    )


def build_search(config: schema.DecodingConfig) -> Search:
    """What to search with; a language model takes it too."""
    match config:
        case schema.GreedyConfig():
            return Greedy(repetition_penalty=config.repetition_penalty)
        case schema.BeamConfig():
            return Beam(
                beam_size=config.beam_size,
                ranking=Ranking(
                    length_penalty=config.length_penalty,
                    form=LengthPenalty[config.length_penalty_form.name],
                    coverage_penalty=config.coverage_penalty,
                ),
                num_best=config.num_best,
            )
        case schema.SampleConfig():
            return Sample(
                num_samples=config.num_best,
                truncation=_truncation(config),
                seed=config.seed,
                repetition_penalty=config.repetition_penalty,
            )
        case schema.MbrConfig():
            return MinimumBayesRisk(
                candidates=_candidates(config), utility=Utility[config.utility.name], num_best=config.num_best
            )
        case schema.ScoreConfig():
            return Greedy()
        case _:
            raise AssertionError(config)


def _candidates(config: schema.MbrConfig) -> Sample | Beam:
    match config.candidates:
        case schema.CandidateKind.sample:
            return Sample(num_samples=config.num_candidates, truncation=_truncation(config), seed=config.seed)
        case schema.CandidateKind.beam:
            return Beam(beam_size=config.num_candidates)
        case _:
            assert_never(config.candidates)


def _truncation(config: schema.SamplingOptions) -> Truncation:
    return Truncation(temperature=config.temperature, top_k=config.top_k, top_p=config.top_p, min_p=config.min_p)
