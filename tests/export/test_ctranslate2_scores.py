"""What the search of CTranslate2 says of its hypotheses, against the model itself."""

import math
from collections.abc import Sequence

import pytest
import torch

from headloom import build
from headloom.config.schema_decoding import GreedyConfig
from headloom.decoding.ranking import LengthPenalty, Ranking
from headloom.decoding.requests import Beam
from headloom.decoding.searcher import Sentence
from headloom.export.ctranslate2 import CTranslate2, engine_of
from headloom.nn.evaluating import evaluating
from headloom.work.base import Trained
from headloom.work.families import load_trained
from headloom.work.translation_use import translator_of

pytest.importorskip("ctranslate2")


def divided_log_probability(trained: Trained, source: Sequence[int], target: Sequence[int]) -> float:
    """Of the target and the eos behind it, in nats, where pad and bos have no probability."""
    _, tokenizer = build.saved_tokenizers(trained.contents["tokenizers"])
    source_1S, _ = translator_of(trained, GreedyConfig()).searcher.padded_sources([source])
    with evaluating(trained.model):
        hidden_TD = trained.model(source_1S, None, torch.tensor([[tokenizer.bos_id, *target]]))[0]
        logits_TV = trained.model.logits(hidden_TD).double()
    logits_TV[:, [tokenizer.pad_id, tokenizer.bos_id]] = -math.inf
    token_T = torch.tensor([*target, tokenizer.eos_id])
    return float(logits_TV.log_softmax(-1).gather(1, token_T[:, None]).sum())


@pytest.mark.parametrize("form", LengthPenalty)
@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 2.0])
def test_n_best_have_their_log_probabilities_and_scores_by_our_own_length_penalty(
    checkpoint, tmp_path, form, length_penalty
):
    trained = load_trained(checkpoint, device="cpu", precision="float32")
    tokenizers = build.saved_tokenizers(trained.contents["tokenizers"])
    search = Beam(beam_size=4, num_best=3, ranking=Ranking(length_penalty, form))
    CTranslate2().write(trained, tmp_path)
    searching = engine_of(trained.config, tmp_path, device="cpu").searching(
        *tokenizers, search=search, no_repeat_ngram=None
    )
    sources = tokenizers[0].encode(["a b c", "e d c b a", "b"])
    num_ended = 0
    for source, found in zip(sources, searching.search([Sentence(source, 16) for source in sources]), strict=True):
        assert len({tokenizers[1].decode(best.ids) for best in found}) == len(found) > 1
        assert [best.score for best in found] == sorted((best.score for best in found), reverse=True)
        for best in found:
            length = len(best.ids) + 1
            base = (5 + length) / 6 if form is LengthPenalty.gnmt else length
            assert best.score == pytest.approx(best.log_probability / base**length_penalty, abs=1e-6)
            if length < 16:  # ended
                num_ended += 1
                exact = divided_log_probability(trained, source, best.ids)
                assert best.log_probability == pytest.approx(exact, abs=1e-3)
    assert num_ended > 3
