import pytest

from headloom.config.schema_text import BpeConfig, SampledSide, SamplingDecay, TranslationConfig, UnigramConfig
from headloom.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"r_drop": -1.0}, "task.r_drop=-1.0 is too small"),
        ({"scheduled_sampling": 1.5}, "task.scheduled_sampling=1.5 is out of range"),
        ({"sampling_decay": SamplingDecay.linear}, "task.sampling_decay=linear has no effect with"),
        ({"scheduled_sampling": 0.5, "sampling_decay": SamplingDecay.linear}, "set task.sampling_updates"),
        ({"scheduled_sampling": 0.5, "sampling_updates": 9}, "task.sampling_updates=9 has no effect with"),
        (
            {"scheduled_sampling": 0.5, "sampling_decay": SamplingDecay.linear, "sampling_updates": 0},
            "task.sampling_updates=0 is too small",
        ),
    ],
)
def test_a_wrong_value_is_refused_in_a_line(options, words):
    with pytest.raises(ConfigError, match=words):
        TranslationConfig(**options)


@pytest.mark.parametrize(
    ("tokenizer", "words"),
    [(BpeConfig, "tokenizer.dropout=0"), (UnigramConfig, "tokenizer.sampling_alpha=null")],
)
def test_a_side_without_sampling_is_refused(tokenizer, words):
    with pytest.raises(ConfigError, match=f"tokenizer.sampled_side=target has no effect with {words}"):
        tokenizer(sampled_side=SampledSide.target)


def test_r_drop_without_dropout_is_refused(make_config):
    with pytest.raises(ConfigError, match=r"task.r_drop=5.0 has no effect with model.dropout=0"):
        make_config(model={"dropout": 0.0}, task=TranslationConfig(r_drop=5.0))
    make_config(model={"dropout": 0.0, "attention_dropout": 0.1}, task=TranslationConfig(r_drop=5.0))
