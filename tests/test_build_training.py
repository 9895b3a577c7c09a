"""From configuration to what moves the weights: each choice reaches what it names."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from headloom.build_model import build_model
from headloom.build_training import build_learning_rate, build_optimizer, peak_rate
from headloom.config.schema import CHOICES, TrainConfig
from headloom.config.schema_optimizer import AdafactorConfig, AdamConfig, AdamWConfig, MuonConfig, SgdConfig
from headloom.config.schema_parts import SwigluConfig
from headloom.config.schema_position import LearnedConfig
from headloom.config.schema_schedule import (
    ConstantConfig,
    CosineConfig,
    DecayShape,
    InverseSqrtConfig,
    LinearConfig,
    NoamConfig,
    PlateauConfig,
    WsdConfig,
)

V = 19
CPU = torch.device("cpu")


def model_of(config: TrainConfig) -> nn.Module:
    return build_model(config, source_vocab_size=V, target_vocab_size=V)


def test_a_schedule_has_the_peak_and_the_length_of_the_run(make_config):
    """B48: the default peak is 0.001; noam computes its own."""
    for schedule in (InverseSqrtConfig, CosineConfig, LinearConfig, ConstantConfig):
        config = make_config(schedule=schedule(warmup_steps=5), trainer={"max_steps": 20})
        assert build_learning_rate(config)(4) == pytest.approx(1e-3)
        config = replace(config, optimizer=AdamConfig(lr=0.5))
        assert build_learning_rate(config)(4) == pytest.approx(0.5)
    for schedule in (CosineConfig, LinearConfig):
        config = make_config(schedule=schedule(warmup_steps=5, final_share=0.1), trainer={"max_steps": 20})
        assert build_learning_rate(config)(20) == pytest.approx(1e-4)
    noam = build_learning_rate(make_config(schedule=NoamConfig(warmup_steps=5, factor=2.0)))
    assert noam(4) == pytest.approx(2 * 16**-0.5 * 5**-0.5)


def test_an_optimizer_has_the_options_given(make_config):
    model = model_of(make_config())
    adam = build_optimizer(AdamConfig(beta1=0.8, beta2=0.95, epsilon=1e-6), model, device=CPU)
    assert {(g["betas"], g["eps"], g["weight_decay"]) for g in adam.param_groups} == {((0.8, 0.95), 1e-6, 0)}
    adamw = build_optimizer(AdamWConfig(weight_decay=0.3), model, device=CPU)
    assert sorted(group["weight_decay"] for group in adamw.param_groups) == [0.0, 0.3]
    adafactor = build_optimizer(
        AdafactorConfig(weight_decay=0.3, beta2_exponent=0.7, clip_threshold=2.0, epsilon=1e-2), model, device=CPU
    )
    assert sorted(group["weight_decay"] for group in adafactor.param_groups) == [0.0, 0.3]
    assert {(g["beta2_decay"], g["d"], g["eps"]) for g in adafactor.param_groups} == {(-0.7, 2.0, (None, 1e-2))}
    sgd = build_optimizer(SgdConfig(momentum=0.8, nesterov=True, weight_decay=0.3), model, device=CPU)
    assert {(g["momentum"], g["nesterov"]) for g in sgd.param_groups} == {(0.8, True)}
    assert sorted(group["weight_decay"] for group in sgd.param_groups) == [0.0, 0.3]
    bare = build_optimizer(AdamWConfig(decay_embeddings=False, decay_norms=True), model, device=CPU)
    assert model.encoder.embedding.table.weight in set(bare.param_groups[1]["params"])
    assert model.encoder.norm.weight in set(bare.param_groups[0]["params"])
    muon = build_optimizer(MuonConfig(adam_share=0.25, weight_decay=0.3), model, device=CPU)
    assert [(g["rate_share"], g["weight_decay"]) for g in muon.param_groups] == [(1.0, 0.3), (0.25, 0.3), (0.25, 0.0)]


@pytest.mark.parametrize("choice", CHOICES["optimizer"])
def test_every_optimizer_takes_every_parameter_once(make_config, choice):
    """B61."""
    model = model_of(make_config(feed_forward=SwigluConfig(), position=LearnedConfig(max_length=64)))
    built = build_optimizer(CHOICES["optimizer"][choice](), model, device=CPU)
    entries = [parameter for group in built.param_groups for parameter in group["params"]]
    assert len(entries) == len(set(entries))
    assert set(entries) == set(model.parameters())


@pytest.mark.parametrize("choice", CHOICES["optimizer"])
def test_every_optimizer_has_a_peak_of_its_own_until_one_is_given(make_config, choice):
    optimizer = CHOICES["optimizer"][choice]
    peaks = {"adam": 1e-3, "adamw": 1e-3, "adafactor": 1e-2, "muon": 2e-2, "sgd": 1e-1}
    assert peak_rate(make_config(optimizer=optimizer())) == peaks[choice]
    assert peak_rate(make_config(optimizer=optimizer(lr=0.5))) == 0.5


@pytest.mark.parametrize("choice", CHOICES["schedule"])
@pytest.mark.parametrize("max_steps", [1, 2, 20])
@pytest.mark.parametrize(
    "warmup", [{"warmup_share": share} for share in (0.0, 0.01, 0.5, 1.0)] + [{"warmup_steps": 25}]
)
def test_every_schedule_takes_its_warm_up_in_steps_or_as_a_share_of_the_run(make_config, choice, max_steps, warmup):
    """B48: the peak comes with the last update of the warm-up, in any run that is long enough."""
    config = make_config(schedule=CHOICES["schedule"][choice](**warmup), trainer={"max_steps": max_steps})
    learning_rate, peak = build_learning_rate(config), peak_rate(config)
    warmup_steps = warmup.get("warmup_steps", round(warmup.get("warmup_share", 0) * max_steps))
    rates = [learning_rate(step) for step in range(max_steps + 5)]
    assert all(math.isfinite(rate) and 0 <= rate <= peak * (1 + 1e-9) for rate in rates)
    assert all(rate > 0 for rate in rates[:max_steps])
    if warmup_steps <= max_steps:
        assert rates[max(1, warmup_steps) - 1] == pytest.approx(peak)


def test_a_warm_up_is_a_thousand_steps_where_nothing_is_said(make_config):
    for schedule, warmup_steps in ((CosineConfig, 1000), (NoamConfig, 4000)):
        learning_rate = build_learning_rate(make_config(schedule=schedule(), trainer={"max_steps": 10_000}))
        assert max(range(10_000), key=learning_rate) == warmup_steps - 1


def test_wsd_and_plateau_have_the_options_given(make_config):
    wsd = WsdConfig(warmup_steps=0, decay_share=0.5, decay_shape=DecayShape.exponential, final_share=0.01)
    learning_rate = build_learning_rate(make_config(schedule=wsd, trainer={"max_steps": 20}))
    assert learning_rate(10) == 1e-3
    assert learning_rate(15) == pytest.approx(1e-4)
    assert learning_rate(20) == pytest.approx(1e-5)
    plateau = PlateauConfig(warmup_steps=3, factor=0.2, patience=5, final_share=0.1)
    built = build_learning_rate(make_config(schedule=plateau))
    assert (built.warmup_steps, built.factor, built.patience, built.final_share) == (3, 0.2, 5, 0.1)


@pytest.mark.parametrize("optimizer", CHOICES["optimizer"])
@pytest.mark.parametrize("schedule", CHOICES["schedule"])
def test_every_optimizer_goes_with_every_schedule(make_config, optimizer, schedule):
    """The rate that its groups are given is a finite one, from the first update on."""
    config = make_config(optimizer=CHOICES["optimizer"][optimizer](), schedule=CHOICES["schedule"][schedule]())
    module = nn.Linear(2, 2)
    built = build_optimizer(config.optimizer, module, device=CPU)
    before = module.weight.detach().clone()
    for group in built.param_groups:
        group["lr"] = build_learning_rate(config)(0) * group.get("rate_share", 1.0)
    module.weight.grad, module.bias.grad = torch.ones(2, 2), torch.ones(2)
    built.step()
    assert not torch.equal(module.weight, before)
    assert module.weight.isfinite().all()
