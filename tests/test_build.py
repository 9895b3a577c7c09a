"""From configuration to parts: each choice reaches what it names."""

import logging
from dataclasses import replace

import pytest
import torch
from torch import nn

from headloom import build
from headloom.build_decoding import build_translator
from headloom.build_model import build_model
from headloom.config.schema_data import CopyConfig, ReverseConfig
from headloom.config.schema_decoding import BeamConfig, GreedyConfig
from headloom.config.schema_model import Initialization, Tying
from headloom.config.schema_parts import (
    BlockSparseConfig,
    DeepNormConfig,
    Expert,
    FullAttentionConfig,
    GegluConfig,
    GeluConfig,
    GeluTanhConfig,
    MoeConfig,
    NormKind,
    PostNormConfig,
    PreNormConfig,
    Relu2Config,
    ReluConfig,
    SandwichNormConfig,
    SwigluConfig,
    WindowConfig,
)
from headloom.config.schema_position import (
    AlibiConfig,
    LearnedConfig,
    NoPositionConfig,
    RopeConfig,
    Scaling,
    SinusoidalConfig,
    T5Config,
)
from headloom.config.schema_text import BpeConfig, ByteConfig, CharConfig, TranslationConfig, UnigramConfig
from headloom.data.text import PairList
from headloom.data.tokenizer import load_tokenizer
from headloom.decoding.ranking import Ranking
from headloom.decoding.requests import Beam, Greedy
from headloom.errors import ConfigError
from headloom.models.seq2seq import Seq2Seq
from headloom.nn import init, rope_scaling
from headloom.nn.attention import MultiHeadAttention
from headloom.nn.dropout import Dropout
from headloom.nn.feed_forward import FeedForward, GatedFeedForward
from headloom.nn.mixture import MixtureOfExperts
from headloom.nn.norm import LayerNorm, RMSNorm
from headloom.nn.positional import Learned, Positional, Rotary, Sinusoidal
from headloom.nn.relative import Alibi
from headloom.nn.residual import DeepNorm, PostNorm, PreNorm

V = 19


def model_of(config) -> Seq2Seq:
    return build_model(config, source_vocab_size=V, target_vocab_size=V)


def modules(model: nn.Module, *kinds: type) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, kinds)]


@pytest.mark.parametrize(
    ("position", "added", "rotary"),
    [
        (NoPositionConfig(), Positional, None),
        (SinusoidalConfig(), Sinusoidal, None),
        (LearnedConfig(max_length=100), Learned, None),
        (RopeConfig(base=500.0), Positional, Rotary),
    ],
)
def test_a_position_scheme_enters_where_it_should(make_config, position, added, rotary):
    """Queries and keys are turned in self-attention only: source and target positions have no common measure."""
    model = model_of(make_config(position=position))
    assert [type(stack.embedding.positional) for stack in (model.encoder, model.decoder)] == [added, added]
    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            assert (type(module.positional) is rotary) if "self" in name and rotary else module.positional is None
    assert {module.base for module in modules(model, Rotary)} == ({500.0} if rotary else set())


@pytest.mark.parametrize(("placement", "residual"), [(PreNormConfig, PreNorm), (PostNormConfig, PostNorm)])
@pytest.mark.parametrize(("kind", "norm"), [("layer", LayerNorm), ("rms", RMSNorm)])
def test_norms_are_of_the_kind_and_at_the_place_asked_for(make_config, placement, residual, kind, norm):
    """Two for each encoder block, three for each decoder block; pre-norm ends each stack with one more."""
    model = model_of(make_config(norm=placement(kind=NormKind[kind], epsilon=1e-3)))
    assert len(modules(model, residual)) == len(modules(model, PreNorm, PostNorm)) == 10
    assert len(modules(model, norm)) == len(modules(model, LayerNorm, RMSNorm)) == (12 if residual is PreNorm else 10)
    assert {getattr(m, "eps", None) or m.epsilon for m in modules(model, norm)} == {1e-3}


@pytest.mark.parametrize(
    ("feed_forward", "kind", "width"),
    [
        (ReluConfig(), FeedForward, 100),
        (GeluConfig(), FeedForward, 100),
        (SwigluConfig(), GatedFeedForward, 72),  # two thirds of 100, rounded up to a multiple of 8
        (ReluConfig(d_ff=30), FeedForward, 30),
        (SwigluConfig(d_ff=30), GatedFeedForward, 30),  # taken as it stands
    ],
)
def test_a_gated_feed_forward_has_about_as_many_parameters(make_config, feed_forward, kind, width):
    model = model_of(make_config(model={"d_ff": 100}, feed_forward=feed_forward))
    found = modules(model, FeedForward, GatedFeedForward)
    assert {type(module) for module in found} == {kind}
    assert {module.down.in_features for module in found} == {width}


def self_positions(model: Seq2Seq) -> list[list[Positional | None]]:
    return [[block.self_attention.positional for block in stack.blocks] for stack in (model.encoder, model.decoder)]


def test_a_score_bias_is_one_for_the_layers_of_a_stack(make_config):
    """Raffel et al. (2020), section 2.1; an encoder tells both sides apart, a decoder has only what came before."""
    model = model_of(make_config(position=T5Config(num_buckets=6, max_distance=9)))
    encoder, decoder = self_positions(model)
    assert len(set(encoder)) == len(set(decoder)) == 1
    assert encoder[0] is not decoder[0]
    assert [(p.num_buckets, p.max_distance, p.causal) for p in (encoder[0], decoder[0])] == [
        (6, 9, False),
        (6, 9, True),
    ]
    assert all(block.cross_attention.positional is None for block in model.decoder.blocks)
    (alibi,) = {p for stack in self_positions(model_of(make_config(position=AlibiConfig()))) for p in stack}
    assert isinstance(alibi, Alibi)


@pytest.mark.parametrize(
    ("position", "scaling"),
    [
        (RopeConfig(share=0.5), rope_scaling.Unscaled),
        (RopeConfig(scaling=Scaling.linear, factor=2.0), rope_scaling.Linear),
        (RopeConfig(scaling=Scaling.ntk, factor=2.0), rope_scaling.Ntk),
        (RopeConfig(scaling=Scaling.dynamic_ntk), rope_scaling.DynamicNtk),
        (RopeConfig(scaling=Scaling.yarn, factor=2.0, original_length=9), rope_scaling.Yarn),
    ],
)
def test_rope_is_scaled_as_asked(make_config, position, scaling):
    (rotary,) = {p for stack in self_positions(model_of(make_config(position=position))) for p in stack}
    assert type(rotary.scaling) is scaling
    assert rotary.turned_width == (2 if position.share == 0.5 else 4)
    assert getattr(rotary.scaling, "factor", 1.0) == (position.factor or 1.0)
    assert getattr(rotary.scaling, "original_length", 64) == (position.original_length or 64)  # data.max_length


def test_attention_has_the_pattern_the_bound_and_the_norms_asked_for(make_config):
    """Attention from decoder to encoder reaches every token, whatever the pattern; its scores are bounded too."""
    model = model_of(make_config(attention=WindowConfig(width=7, soft_cap=5.0), norm=PreNormConfig(query_key=True)))
    for block in (*model.encoder.blocks, *model.decoder.blocks):
        assert block.self_attention.pattern.width == 7
    assert all(block.cross_attention.pattern is None for block in model.decoder.blocks)
    for attention in modules(model, MultiHeadAttention):
        assert attention.soft_cap == 5.0
        assert isinstance(attention.query_norm, LayerNorm)
        assert attention.key_norm.normalized_shape == (4,)
    sparse = model_of(make_config(attention=BlockSparseConfig(block=3, num_local=2, num_global=0)))
    pattern = sparse.encoder.blocks[0].self_attention.pattern
    assert (pattern.block, pattern.num_local, pattern.num_global) == (3, 2, 0)


def test_biases_of_attention_and_feed_forward_are_chosen_apart(make_config):
    model = model_of(make_config(attention=FullAttentionConfig(bias=False), feed_forward=GeluConfig(bias=True)))
    assert all(attention.query.bias is None for attention in modules(model, MultiHeadAttention))
    assert all(module.up.bias is not None for module in modules(model, FeedForward))


def test_deepnorm_has_the_constants_of_its_depth(make_config):
    """Wang et al. (2022), figure 2; and no last norm, since the stream is normalised already."""
    config = make_config(norm=DeepNormConfig(), model={"num_encoder_layers": 1, "num_decoder_layers": 3})
    model = model_of(config)
    alphas = [{m.alpha for m in modules(stack, DeepNorm)} for stack in (model.encoder, model.decoder)]
    assert alphas == [{init.deepnorm_constants_of_encoder(1, 3)[0]}, {init.deepnorm_constants_of_decoder(3)[0]}]
    assert isinstance(model.encoder.norm, nn.Identity)
    plain = model_of(make_config(norm=PostNormConfig(), model={"num_encoder_layers": 1, "num_decoder_layers": 3}))
    for stack, beta in (
        ("encoder", init.deepnorm_constants_of_encoder(1, 3)[1]),
        ("decoder", init.deepnorm_constants_of_decoder(3)[1]),
    ):
        ours, theirs = (getattr(m, stack).blocks[0].feed_forward.down.weight for m in (model, plain))
        assert (ours.std() / theirs.std()).item() == pytest.approx(beta, rel=0.2)


def test_the_last_layers_are_left_out_most_often(make_config):
    """Huang et al. (2016), equation 4; without it there is nothing to compute."""
    model = model_of(make_config(model={"stochastic_depth": 0.4, "residual_scale": 0.5}, norm=SandwichNormConfig()))
    for stack in (model.encoder, model.decoder):
        branches = [block.feed_forward_residual.branch for block in stack.blocks]
        assert [branch.drop_probability for branch in branches] == [0.2, 0.4]
        assert {branch.scale for branch in branches} == {0.5}
    assert all(module.branch is None for module in modules(model_of(make_config()), PreNorm))


@pytest.mark.parametrize(
    ("feed_forward", "width"),
    [
        (Relu2Config(), 100),
        (GeluTanhConfig(), 100),
        (GegluConfig(), 72),
        (MoeConfig(num_experts=4, expert=Expert.relu), 32),  # a quarter, rounded up to a multiple of 8
        (MoeConfig(num_experts=4, expert=Expert.swiglu), 24),  # a sixth
        (MoeConfig(num_experts=4, d_ff=30), 30),
    ],
    ids=str,
)
def test_each_kind_has_about_as_many_parameters(make_config, feed_forward, width):
    model = model_of(make_config(model={"d_ff": 100}, feed_forward=feed_forward))
    assert {module.down.in_features for module in modules(model, FeedForward, GatedFeedForward)} == {width}
    assert {len(module.experts) for module in modules(model, MixtureOfExperts)} == (
        {4} if isinstance(feed_forward, MoeConfig) else set()
    )


def dropouts(model: Seq2Seq) -> dict[str, set[float]]:
    return {
        "embedding": {stack.embedding.dropout.probability for stack in (model.encoder, model.decoder)},
        "attention": {module.dropout for module in modules(model, MultiHeadAttention)},
        "activation": {
            m.probability for f in modules(model, FeedForward) for m in f.modules() if isinstance(m, Dropout)
        },
        "residual": {module.dropout for module in modules(model, PreNorm)},
    }


def test_dropout_is_the_same_at_every_place_unless_a_place_has_its_own(make_config):
    """Zero is a value of its own, not a missing one."""
    assert dropouts(model_of(make_config(model={"dropout": 0.3}))) == {
        place: {0.3} for place in ("embedding", "attention", "activation", "residual")
    }
    for place in ("embedding", "attention", "activation", "residual"):
        found = dropouts(model_of(make_config(model={"dropout": 0.3, f"{place}_dropout": 0.0})))
        assert found.pop(place) == {0.0}
        assert all(values == {0.3} for values in found.values())


def test_heads_and_biases_are_those_asked_for(make_config):
    model = model_of(make_config(model={"num_heads": 8, "num_kv_heads": 2, "bias": False}))
    attentions = modules(model, MultiHeadAttention)
    assert {(a.num_heads, a.num_kv_heads) for a in attentions} == {(8, 2)}
    assert all(linear.bias is None for linear in modules(model, nn.Linear))
    assert all(
        linear.bias.eq(0).all() for a in modules(model_of(make_config()), MultiHeadAttention) for linear in (a.query,)
    )


def test_the_paper_s_base_model_has_the_paper_s_number_of_parameters(make_config):
    """Vaswani et al. (2017), table 3: 65 million, with one matrix for a vocabulary of 37000."""
    config = make_config(
        model={"d_model": 512, "num_heads": 8, "d_ff": 2048, "num_encoder_layers": 6, "num_decoder_layers": 6},
        norm=PostNormConfig(),
    )
    with torch.device("meta"):
        model = build_model(config, source_vocab_size=37_000, target_vocab_size=37_000)
    assert 62e6 < sum(parameter.numel() for parameter in model.parameters()) < 66e6


@pytest.mark.parametrize("initialization", Initialization)
@pytest.mark.parametrize("tying", Tying)
def test_an_untrained_model_guesses_about_evenly(make_config, initialization, tying):
    """Logits start of order 1 at most, so the first loss is near ln V."""
    config = make_config(model={"initialization": initialization, "tying": tying, "d_model": 64})
    model = build_model(config, source_vocab_size=300, target_vocab_size=300).eval()
    with torch.no_grad():
        hidden = model(torch.randint(300, (4, 9)), None, torch.randint(300, (4, 9)))
        logits = model.logits(hidden)
    assert logits.std() < 2
    assert model.encoder.embedding.table.weight.std().item() * 8 == pytest.approx(1.0, rel=0.05)


def test_initial_weights_are_those_of_the_seed(make_config):
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        states.append(model_of(make_config()).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not all(torch.equal(states[0][name], states[2][name]) for name in states[0])


def test_two_vocabularies_cannot_be_one_matrix(make_config):
    with pytest.raises(ValueError, match=r"model\.tying=all needs one vocabulary, not 19 and 20"):
        build_model(make_config(), source_vocab_size=19, target_vocab_size=20)
    untied = make_config(model={"tying": Tying.decoder})
    model = build_model(untied, source_vocab_size=19, target_vocab_size=20)
    assert model.output_weight is model.decoder.embedding.table.weight
    assert model.encoder.embedding.table.num_embeddings == 19


def test_a_task_and_a_search_have_the_options_given(make_config):
    task = build.build_task(TranslationConfig(label_smoothing=0.2))
    assert (task.label_smoothing, task.headline) == (0.2, "bleu")
    config = make_config()
    for decoding, search, longest in (
        (GreedyConfig(max_length=9), Greedy(), 9),
        (
            BeamConfig(beam_size=3, length_penalty=0.5, max_length=8),
            Beam(beam_size=3, ranking=Ranking(length_penalty=0.5)),
            8,
        ),
    ):
        tokenizer = build.ByteTokenizer()
        translator = build_translator(
            decoding,
            model_of(config),
            (tokenizer, tokenizer),
            max_source_length=64,
            device=torch.device("cpu"),
            autocast_dtype=None,
        )
        assert (translator.method, translator.max_length) == (search, longest)


@pytest.mark.parametrize("kind", [CopyConfig, ReverseConfig])
def test_a_made_up_task_is_the_one_asked_for(kind):
    corpus = build.build_corpus(kind(num_train=50, num_valid=5, num_symbols=4, max_symbols=6))
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (50, 5, 5)
    for source, target in corpus.train:
        words = source.split(" ")
        assert target.split(" ") == (words if kind is CopyConfig else words[::-1])


PAIRS = PairList([(f"the cat {i} sat", f"die Katze {i} saß") for i in range(40)])


def test_a_tokenizer_is_made_once_for_a_text_and_its_options(tmp_path):
    """B22: for another text or another option it is another one; sampling is no part of what is trained."""
    config = BpeConfig(vocab_size=60, byte_fallback=False)
    first, _ = build.build_tokenizers(config, PAIRS, tmp_path)
    (path,) = tmp_path.glob("*.model")
    made_at = path.stat().st_mtime_ns
    for again in (config, replace(config, dropout=0.5)):
        tokenizer, _ = build.build_tokenizers(again, PAIRS, tmp_path)
        assert tokenizer.fingerprint == first.fingerprint
    assert [p.stat().st_mtime_ns for p in tmp_path.glob("*.model")] == [made_at]
    build.build_tokenizers(replace(config, vocab_size=50), PAIRS, tmp_path)
    build.build_tokenizers(config, PairList([*PAIRS, ("dog", "Hund")]), tmp_path)
    assert len(list(tmp_path.glob("*.model"))) == 3


@pytest.mark.parametrize(
    "config",
    [
        ByteConfig(),
        CharConfig(),
        CharConfig(joint=False),
        BpeConfig(vocab_size=60, byte_fallback=False),
        BpeConfig(vocab_size=40, byte_fallback=False, joint=False),
        UnigramConfig(vocab_size=40, byte_fallback=False),
        UnigramConfig(vocab_size=40, byte_fallback=False, joint=False, sampling_alpha=0.2),
    ],
    ids=lambda config: f"{config.kind.name}-{'joint' if getattr(config, 'joint', True) else 'apart'}",
)
def test_tokenizers_read_their_own_side(tmp_path, config):
    """Joint ones are one object; others know the letters of their side only."""
    source, target = build.build_tokenizers(config, PAIRS, tmp_path)
    assert (source is target) is getattr(config, "joint", True)
    assert source.decode(source.encode(["the cat 7 sat"])[0]) == "the cat 7 sat"
    assert target.decode(target.encode(["die Katze 7 saß"])[0]) == "die Katze 7 saß"
    if source is not target:
        assert source.unk_id in source.encode(["saß"])[0]
    assert (source.sampling > 0) is (getattr(config, "sampling_alpha", None) is not None)


def test_a_tokenizer_of_the_user_s_is_taken(tmp_path):
    config = BpeConfig(vocab_size=60, byte_fallback=False)
    made, _ = build.build_tokenizers(config, PAIRS, tmp_path)
    (path,) = tmp_path.glob("*.model")
    given, _ = build.build_tokenizers(replace(config, source_model=path), PairList([("x", "y")]), tmp_path / "other")
    assert given.fingerprint == made.fingerprint
    assert not (tmp_path / "other").exists()


def test_a_tokenizer_of_the_user_s_is_not_sampled_by_the_rules_of_another_kind(tmp_path):
    """BPE-dropout of 0.1 would be a unigram model's smoothing of 0.1, which cuts words at random."""
    build.build_tokenizers(UnigramConfig(vocab_size=40, byte_fallback=False), PAIRS, tmp_path)
    (path,) = tmp_path.glob("*.model")
    wrong = BpeConfig(source_model=path, dropout=0.1)
    with pytest.raises(
        ConfigError, match=r"tokenizer\.dropout=0\.1 is of bpe models, and tokenizer\.source_model=.*"
    ) as caught:
        build.build_tokenizers(wrong, PAIRS, tmp_path)
    assert "is a unigram model: set tokenizer=unigram tokenizer.sampling_alpha=..., or leave it out" in str(
        caught.value
    )
    with pytest.raises(ConfigError, match="is of bpe models, and the one of warm_start is a unigram model"):
        build.taken_tokenizer(load_tokenizer(path).state(), wrong)
    assert build.build_tokenizers(replace(wrong, dropout=0.0), PAIRS, tmp_path)[0].sampling == 0
    right = UnigramConfig(source_model=path, sampling_alpha=2.0)
    assert build.build_tokenizers(right, PAIRS, tmp_path)[0].sampling == 2


def test_a_vocabulary_larger_than_the_text_supports_is_made_smaller_with_a_warning(tmp_path, caplog):
    """B07: the model is built with the real size."""
    with caplog.at_level(logging.WARNING):
        tokenizer, _ = build.build_tokenizers(BpeConfig(vocab_size=30_000), PAIRS, tmp_path)
    assert tokenizer.vocab_size < 1000
    assert any("30" in message and str(tokenizer.vocab_size) in message for message in caplog.messages)
