"""Random segmentations against their definitions and against SentencePiece."""

import io
import itertools
import math
from collections import Counter
from random import Random

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from headloom.data.sentencepiece_model import Piece, PieceType, read_pieces
from headloom.data.subword_sampling import BpeDropout, UnigramSampling

LINES = ["the cat sat on the mat", "and the dogs sat on 日本 mats", "a catapult hit the matador"] * 3
NORMAL, UNKNOWN = PieceType.normal, PieceType.unknown


def processor(kind: str, **options) -> sentencepiece.SentencePieceProcessor:
    model = io.BytesIO()
    settings = {
        "model_type": kind,
        "vocab_size": 330,
        "byte_fallback": True,
        "hard_vocab_limit": False,
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(LINES), model_writer=model, **(settings | options))
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def pieces_of(model: sentencepiece.SentencePieceProcessor) -> list[Piece]:
    return read_pieces(model.serialized_model_proto())


MODELS = {
    (kind, name): processor(kind, **options)
    for kind in ("bpe", "unigram")
    for name, options in {
        "plain": {},
        "identity": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
        "no bytes": {"byte_fallback": False, "vocab_size": 60},
        "across words": {"split_by_whitespace": False},
        "user symbols": {"user_defined_symbols": ["at", "<x>"], "vocab_size": 340},
    }.items()
}


@pytest.mark.parametrize("name", ["plain", "identity", "no bytes", "across words", "user symbols"])
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_pieces_are_read_as_sentencepiece_reads_them(kind, name):
    model = MODELS[kind, name]
    assert [piece.text for piece in pieces_of(model)] == [model.id_to_piece(i) for i in range(len(model))]
    assert [piece.score for piece in pieces_of(model)] == [model.get_score(i) for i in range(len(model))]
    assert [piece.type is PieceType.byte for piece in pieces_of(model)] == [model.is_byte(i) for i in range(len(model))]


TEXTS = st.text(st.sampled_from("thecaondsm 日本x<>é\u2581"), max_size=24) | st.sampled_from(LINES)


@pytest.mark.parametrize("name", ["plain", "identity", "no bytes", "across words", "user symbols"])
@settings(max_examples=40, deadline=None)
@given(text=TEXTS)
def test_dropping_no_merge_gives_the_encoding_of_sentencepiece(name, text):
    model = MODELS["bpe", name]
    sampler = BpeDropout(pieces_of(model), probability=0.0)
    assert sampler.sample(model.normalize(text), Random(1)) == model.encode(text)


@pytest.mark.parametrize("name", ["plain", "identity", "no bytes", "across words", "user symbols"])
@settings(max_examples=40, deadline=None)
@given(text=TEXTS)
def test_every_draw_decodes_to_the_same_text(name, text):
    for kind, make in SAMPLERS.items():
        model = MODELS[kind, name]
        ids = make(pieces_of(model)).sample(model.normalize(text), Random(text))
        assert model.decode(ids) == model.decode(model.encode(text))


SAMPLERS = {
    "bpe": lambda pieces: BpeDropout(pieces, probability=0.4),
    "unigram": lambda pieces: UnigramSampling(pieces, alpha=0.3),
}


def test_dropping_every_merge_gives_characters():
    model = MODELS["bpe", "plain"]
    ids = BpeDropout(pieces_of(model), probability=1.0).sample(model.normalize("the cat"), Random(1))
    assert [model.id_to_piece(i) for i in ids] == list("▁the▁cat")


def test_dropout_has_the_probabilities_of_the_paper():
    """Algorithm 1 of Provilkov et al. (2020), run as it is printed, gives the same frequencies."""
    ranks = {"ab": 0, "bc": 1, "abc": 2, "cd": 3, "abcd": 4, "bcd": 5}
    pieces = [Piece("<unk>", 0.0, UNKNOWN), *(Piece(text, -float(rank), NORMAL) for text, rank in ranks.items())]
    pieces += [Piece(letter, -100.0, NORMAL) for letter in "abcd"]

    def printed(random: Random) -> tuple[str, ...]:
        symbols = list("abcd")
        while True:
            merges = [i for i in range(len(symbols) - 1) if symbols[i] + symbols[i + 1] in ranks]
            merges = [i for i in merges if random.random() >= 0.3]
            if not merges:
                return tuple(symbols)
            best = min(merges, key=lambda i: ranks[symbols[i] + symbols[i + 1]])
            symbols[best : best + 2] = [symbols[best] + symbols[best + 1]]

    num_draws = 20_000
    sampler, random = BpeDropout(pieces, probability=0.3), Random(1)
    ours = Counter(tuple(pieces[i].text for i in sampler.sample("abcd", random)) for _ in range(num_draws))
    theirs = Counter(printed(random) for _ in range(num_draws))
    assert ours.keys() == theirs.keys()
    for segmentation, count in theirs.items():
        assert ours[segmentation] == pytest.approx(count, abs=5 * math.sqrt(2 * count))  # 5 standard deviations


def test_unigram_draws_in_proportion_to_the_power_of_the_probability():
    """Kudo (2018), equation 8, against all segmentations written out."""
    scores = {"a": -1.0, "b": -2.0, "c": -1.5, "ab": -2.2, "bc": -4.0, "abc": -3.0}
    pieces = [Piece("<unk>", 0.0, UNKNOWN), *(Piece(text, score, NORMAL) for text, score in scores.items())]
    alpha, num_draws = 0.5, 20_000
    sampler, random = UnigramSampling(pieces, alpha=alpha), Random(1)
    counts = Counter(tuple(pieces[i].text for i in sampler.sample("abc", random)) for _ in range(num_draws))
    weights = {}
    for cuts in itertools.product([False, True], repeat=2):
        text = "a" + "|" * cuts[0] + "b" + "|" * cuts[1] + "c"
        weights[tuple(text.split("|"))] = math.exp(alpha * sum(scores[piece] for piece in text.split("|")))
    assert counts.keys() == weights.keys()
    for segmentation, weight in weights.items():
        expected = num_draws * weight / sum(weights.values())
        assert counts[segmentation] == pytest.approx(expected, abs=5 * math.sqrt(expected))


def test_a_high_inverse_temperature_gives_the_encoding_of_sentencepiece():
    for name in ("plain", "identity", "no bytes", "across words", "user symbols"):
        model = MODELS["unigram", name]
        sampler = UnigramSampling(pieces_of(model), alpha=1e4)
        for text in LINES:
            assert sampler.sample(model.normalize(text), Random(1)) == model.encode(text)


def test_long_words_and_texts_are_drawn_too():
    text = "cat" * 300
    for kind, make in SAMPLERS.items():
        model = MODELS[kind, "plain"]
        assert model.decode(make(pieces_of(model)).sample(model.normalize(text), Random(1))) == text
