"""Continuing prompts with a language model: what is written depends on the prompt and on nothing beside it."""

from collections.abc import Callable

import pytest
import torch

from headloom.build_language import build_continuer, build_language_model
from headloom.config.schema_decoding import GreedyConfig
from headloom.config.schema_language import LanguageModelingConfig, LmConfig, TextConfig
from headloom.config.schema_position import LearnedConfig
from headloom.data.tokenizer import ByteTokenizer
from headloom.decoding.continuation import Continuer, Prompt
from headloom.decoding.requests import Beam, Greedy, Sample
from headloom.decoding.sampling import Truncation
from headloom.errors import ConfigError
from headloom.work.language_modeling_filter import ContinuingPredictor

BYTES = ByteTokenizer()
SEARCHES = {
    "greedy": Greedy(),
    "beam": Beam(beam_size=3),
    "sample": Sample(seed=5),
    "likely": Sample(num_samples=2, truncation=Truncation(temperature=0.7, top_k=20, top_p=0.9, min_p=0.01)),
}
PROMPTS = ["", "a", "ab", "xy", "a longer prompt", "another"]


@pytest.fixture
def make_continuer(make_config) -> Callable[..., Continuer]:
    def make(search: object = SEARCHES["greedy"], **options: object) -> Continuer:
        config = make_config(
            model=LmConfig(d_model=16, num_heads=2, d_ff=32, num_layers=2),
            data=TextConfig(path="unused.txt", max_length=64),
            task=LanguageModelingConfig(),
            position=LearnedConfig(max_length=256),
        )
        with torch.random.fork_rng():
            torch.manual_seed(1)
            model = build_language_model(config, vocab_size=BYTES.vocab_size)
        with torch.no_grad():
            model.output.weight *= 4  # so that continuations differ clearly in probability
        return Continuer(
            model,
            BYTES,
            **{
                "search": search,
                "max_length": 8,
                "context_length": 64,
                "max_tokens": 10_000,
                "device": torch.device("cpu"),
                "autocast_dtype": None,
                **options,
            },
        )

    return make


def outputs(continuer: Continuer, prompts: list[str]) -> list[list[list[int]]]:
    found: list[list[list[int]]] = [[] for _ in prompts]
    for place, some in continuer.continued([Prompt(ids) for ids in BYTES.encode(prompts)]):
        found[place] = [one.ids for one in some]
    return found


@pytest.mark.parametrize("name", SEARCHES)
def test_a_continuation_depends_on_its_prompt_alone(make_continuer, name):
    """Whatever stands beside it, in which order, and however small the batches are."""
    whole = outputs(make_continuer(SEARCHES[name]), PROMPTS)
    assert outputs(make_continuer(SEARCHES[name], max_tokens=1), PROMPTS[::-1])[::-1] == whole
    assert [outputs(make_continuer(SEARCHES[name]), [prompt])[0] for prompt in PROMPTS] == whole
    assert all(some and all(len(ids) < 8 for ids in some) for some in whole)


@pytest.mark.parametrize("name", SEARCHES)
def test_a_score_is_what_the_model_gives_the_text(make_continuer, name):
    """Forced through the model at once, bos first, eos last."""
    continuer = make_continuer(SEARCHES[name])
    [ids] = BYTES.encode(["ab"])
    [(_, found)] = continuer.continued([Prompt(ids)])
    for one in found:
        text = [*ids, *one.ids, BYTES.eos_id]
        with torch.no_grad():
            model = continuer.model.eval()
            log_prob_TV = model.logits(model(torch.tensor([[BYTES.bos_id, *text[:-1]]])))[0].log_softmax(-1)
        expected = log_prob_TV[range(len(text)), text][len(ids) :].sum().item()
        assert one.log_probability == pytest.approx(expected, abs=1e-4)


def test_a_text_longer_than_the_context_goes_on_from_its_last_half(make_continuer):
    """The result is that of reading the last half anew whenever the context is full."""
    continuer = make_continuer(max_length=40, context_length=12)
    [found] = outputs(continuer, ["abcdef"])
    model, [prompt] = continuer.model.eval(), BYTES.encode(["abcdef"])
    seen, expected = [BYTES.bos_id, *prompt], []
    for _ in range(39):
        with torch.no_grad():
            logits_V = model.logits(model(torch.tensor([seen])))[0, -1]
        logits_V[[BYTES.pad_id, BYTES.bos_id]] = -torch.inf
        expected.append(int(logits_V.argmax()))
        if expected[-1] == BYTES.eos_id:
            break
        seen = [*(seen if len(seen) < 12 else seen[-6:]), expected[-1]]
    assert found[0] == [i for i in expected if i != BYTES.eos_id]
    assert len(expected) > 12


def test_only_the_end_of_a_long_prompt_is_read(make_continuer):
    continuer = make_continuer(context_length=12)
    one, other = "x" * 50 + "the same end", "y" * 70 + "the same end"
    found = outputs(continuer, [one, other])
    assert found[0] == found[1]


def test_a_seed_of_its_own_decides_the_samples_of_a_prompt(make_continuer):
    continuer = make_continuer(Sample(truncation=Truncation(temperature=9.0)))
    prompts = [Prompt([50, 51], seed) for seed in (None, 1, 1, 2)]
    found = {place: some[0].ids for place, some in continuer.continued(prompts)}
    assert found[1] == found[2]
    assert len({tuple(ids) for ids in found.values()}) == 3


def test_limits_and_constraints_hold(make_continuer):
    forbidden = make_continuer(max_length=12)
    [[ids]] = outputs(forbidden, ["ab"])
    text = BYTES.decode(ids[:1])
    if text:
        [[others]] = outputs(make_continuer(max_length=12, forbidden=[text]), ["ab"])
        assert others != ids
        assert not any(word.startswith(text) for word in BYTES.decode(others).split())
    [[ids]] = outputs(make_continuer(max_length=12, min_length=12), ["ab"])
    assert len(ids) == 11
    [[ids]] = outputs(make_continuer(max_length=40, min_length=40, no_repeat_ngram=1), ["ab"])
    assert len(set(ids)) == len(ids)
    [[ids]] = outputs(make_continuer(Greedy(repetition_penalty=1e9), max_length=20, min_length=20), ["ab"])
    assert len(set(ids)) == len(ids)


def test_the_model_keeps_its_mode(make_continuer):
    """B33."""
    continuer = make_continuer()
    continuer.model.train()
    outputs(continuer, ["ab"])
    assert all(module.training for module in continuer.model.modules())


@pytest.mark.parametrize("diverged", [False, True])
def test_a_wish_that_no_continuation_meets_is_not_laid_to_the_training(make_continuer, caplog, diverged):
    continuer = make_continuer(Beam(beam_size=3), max_length=3, required=["too long for it"])
    if diverged:
        with torch.no_grad():
            continuer.model.output.weight.fill_(torch.nan)
    predictor = ContinuingPredictor(continuer)
    [(_, reply)] = predictor.answer([predictor.read("a")])
    assert (reply.text, reply.fields["log_probability"]) == ("", None)
    predictor.finish()
    assert ("loosen decoding.required" in caplog.text) is not diverged
    assert ("Has its training diverged?" in caplog.text) is diverged


@pytest.mark.parametrize(("option", "value"), [("max_ratio", 2.0), ("min_ratio", 0.5)])
def test_a_length_in_tokens_of_a_source_is_refused_where_there_is_no_source(make_continuer, option, value):
    with pytest.raises(ConfigError, match=rf"decoding\.{option} has no effect with a language model, which has no sou"):
        build_continuer(
            GreedyConfig(**{option: value}),
            make_continuer().model,
            BYTES,
            context_length=64,
            device=torch.device("cpu"),
            autocast_dtype=None,
        )
