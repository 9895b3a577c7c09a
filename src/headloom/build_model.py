"""From configuration to a model, family by family; their parts: build_parts.py.

With the other build*.py the only place that sees configuration and parts both.
"""

from typing import assert_never

from torch import nn

from headloom.build_parts import Parts
from headloom.config import schema_model as schema
from headloom.config.schema import TrainConfig
from headloom.models.seq2seq import Seq2Seq
from headloom.nn.linear import Linear


def build_model(config: TrainConfig, *, source_vocab_size: int, target_vocab_size: int) -> Seq2Seq:
    """A freshly initialised model; vocabulary sizes come from the tokenizers, never from a file.

    Raises:
        ValueError: `model.tying=all` with two vocabularies.
    """
    model = config.model
    assert isinstance(model, schema.Seq2SeqConfig)
    parts = Parts(config)
    target_table = nn.Embedding(target_vocab_size, model.d_model)
    output = Linear(model.d_model, target_vocab_size, bias=False)
    match model.tying:
        case schema.Tying.all:
            if source_vocab_size != target_vocab_size:
                raise ValueError(
                    f"model.tying=all needs one vocabulary, not {source_vocab_size} and {target_vocab_size}"
                )
            source_table = target_table
        case schema.Tying.decoder | schema.Tying.none:
            source_table = nn.Embedding(source_vocab_size, model.d_model)
        case _:
            assert_never(model.tying)
    built = Seq2Seq(
        parts.encoder(source_table, num_layers=model.encoder_layers),
        parts.decoder(target_table, num_layers=model.decoder_layers),
        output,
    )
    parts.initialise(built, num_residuals=max(2 * model.encoder_layers, 3 * model.decoder_layers))
    if model.tying is not schema.Tying.none:
        output.weight = target_table.weight
    return built
