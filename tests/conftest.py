"""A model and a configuration small enough that a test with them takes milliseconds, and one thread for them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headloom.config.schema import TrainConfig
from headloom.config.schema_data import CopyConfig, DataConfig
from headloom.config.schema_decoding import GreedyConfig
from headloom.config.schema_model import ModelConfig, Seq2SeqConfig
from headloom.config.schema_optimizer import AdamConfig
from headloom.config.schema_parts import PreNormConfig, ReluConfig
from headloom.config.schema_position import SinusoidalConfig
from headloom.config.schema_schedule import ConstantConfig
from headloom.config.schema_text import CharConfig, TranslationConfig
from headloom.config.schema_training import TrainerConfig
from headloom.models.seq2seq import Decoder, Seq2Seq
from headloom.models.stack import Embedding, Stack
from headloom.nn.attention import MultiHeadAttention
from headloom.nn.blocks import DecoderBlock, EncoderBlock
from headloom.nn.feed_forward import FeedForward
from headloom.nn.norm import LayerNorm
from headloom.nn.positional import Learned, Positional, Rotary, Sinusoidal
from headloom.nn.residual import PreNorm


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Handing a tiny tensor to a second thread costs more than the thread saves."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """What fails once fails again."""
    torch.manual_seed(0)


def tiny_model(
    vocab_size: int,
    *,
    position: str = "sinusoidal",
    max_length: int = 64,
    dropout: float = 0.3,
    sharpness: float = 4.0,
    likely: Sequence[int] = (),
) -> Seq2Seq:
    """A random encoder-decoder.

    `sharpness` multiplies its logits, so that hypotheses differ clearly in
    score; `likely` tokens are what it writes, mostly.
    """
    d_model, num_heads = 16, 2
    rotary = Rotary(d_model // num_heads, base=100.0) if position == "rope" else None

    def attention(positional: Positional | None) -> MultiHeadAttention:
        return MultiHeadAttention(d_model, num_heads, dropout=dropout, positional=positional)

    def feed_forward() -> FeedForward:
        return FeedForward(d_model, 32, activation=F.relu, bias=True, dropout=dropout)

    def residual() -> PreNorm:
        return PreNorm(LayerNorm(d_model, epsilon=1e-5), dropout)

    def embedding() -> Embedding:
        added = {
            "sinusoidal": lambda: Sinusoidal(d_model),
            "learned": lambda: Learned(d_model, max_length=max_length),
            "rope": Positional,
        }[position]()
        return Embedding(nn.Embedding(vocab_size, d_model), added, scaled=False, dropout=dropout)

    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = Seq2Seq(
            Stack(
                embedding(),
                [EncoderBlock(attention(rotary), feed_forward(), residual) for _ in range(2)],
                residual().norm,
            ),
            Decoder(
                embedding(),
                [DecoderBlock(attention(rotary), attention(None), feed_forward(), residual) for _ in range(2)],
                residual().norm,
            ),
            nn.Linear(d_model, vocab_size, bias=False),
        )
    with torch.no_grad():
        model.output.weight *= sharpness
        for block in model.decoder.blocks:
            block.cross_attention.output.weight *= 20  # the source matters
        if likely:
            model.decoder.norm.bias[0] = 6.0
            model.output.weight[:, 0] = 0.0
            model.output.weight[list(likely), 0] = 1.0
    return model


@pytest.fixture
def make_model() -> Callable[..., Seq2Seq]:
    return tiny_model


def tiny_config(folder: Path = Path("unused"), **sections: Any) -> TrainConfig:
    """A configuration of the smallest sizes: every section has a default.

    `model` (of an encoder-decoder), `data` (of the copy task) and `trainer` are options to set, or a dataclass;
    another section is its dataclass.
    `folder` keeps what is prepared.
    """
    model = {"d_model": 16, "num_heads": 4, "d_ff": 32, "num_encoder_layers": 2, "num_decoder_layers": 2}
    copy = {"folder": folder, "num_train": 60, "num_valid": 4, "num_symbols": 5, "max_symbols": 6, "max_length": 64}
    trainer = {"max_steps": 12, "max_tokens": 160, "log_every": 1, "evaluate_every": 4, "save_every": 4}
    defaults = {
        "position": SinusoidalConfig(),
        "norm": PreNormConfig(),
        "feed_forward": ReluConfig(),
        "tokenizer": CharConfig(),
        "task": TranslationConfig(),
        "optimizer": AdamConfig(),
        "schedule": ConstantConfig(warmup_steps=4),
        "decoding": GreedyConfig(max_length=16),
    }
    data, chosen = sections.pop("data", {}), sections.pop("model", {})
    return TrainConfig(
        model=chosen if isinstance(chosen, ModelConfig) else Seq2SeqConfig(**model | chosen),
        data=data if isinstance(data, DataConfig) else CopyConfig(**copy | data),
        trainer=TrainerConfig(**trainer | sections.pop("trainer", {})),
        **defaults | sections,
    )


@pytest.fixture(scope="session")
def make_config() -> Callable[..., TrainConfig]:
    return tiny_config
