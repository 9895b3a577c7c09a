"""Every combination that CTranslate2 holds computes there what it computes here.

Random models: log-probabilities of random targets, which both programs are forced to write.
"""

from pathlib import Path

import pytest
import torch
from every_combination import bases
from random_exports import TOKENIZER, changed, held, random_ids, random_model

from headloom.export.ctranslate2 import CTranslate2
from headloom.export.own import OwnContinuation, OwnTranslation, own_runtime

ctranslate2 = pytest.importorskip("ctranslate2")

PIECES = TOKENIZER.pieces(range(TOKENIZER.vocab_size))


@pytest.mark.parametrize("name", held(CTranslate2(), "seq2seq"))
def test_an_encoder_decoder_gives_the_same_log_probabilities(name: str, tmp_path: Path) -> None:
    trained = random_model(changed("seq2seq", name))
    CTranslate2().write(trained, tmp_path)
    program = ctranslate2.Translator(str(tmp_path), intra_threads=1)
    own = own_runtime(trained)
    assert isinstance(own, OwnTranslation)
    for num in (1, 9, 40):
        source, target = random_ids(num), random_ids(num + 2)
        [found] = program.score_batch([[PIECES[i] for i in source]], [[PIECES[i] for i in target]])
        expected = torch.tensor(own.log_probabilities(source, target))
        torch.testing.assert_close(torch.tensor(found.log_probs), expected, atol=tolerance(name), rtol=0)


@pytest.mark.parametrize("name", held(CTranslate2(), "lm"))
def test_a_language_model_gives_the_same_log_probabilities(name: str, tmp_path: Path) -> None:
    trained = random_model(changed("lm", name))
    CTranslate2().write(trained, tmp_path)
    program = ctranslate2.Generator(str(tmp_path), intra_threads=1)
    own = own_runtime(trained)
    assert isinstance(own, OwnContinuation)
    target = random_ids(40)
    [found] = program.score_batch([["<s>", *(PIECES[i] for i in target)]])
    expected = torch.tensor(own.log_probabilities([], target)[:-1])
    torch.testing.assert_close(torch.tensor(found.log_probs), expected, atol=tolerance(name), rtol=0)
    assert CTranslate2().opened(trained, tmp_path).search([target], beam_size=1, max_length=9) == own.search(
        [target], beam_size=1, max_length=9
    )


def tolerance(name: str) -> float:
    """DeepNorm is post-norm with a smaller epsilon there."""
    return 1e-4 if "deepnorm" in name else 1e-5


OBSTACLES = {
    ("seq2seq", "position=alibi"): "position=alibi in an encoder",
    ("lm", "position=alibi"): None,
    ("lm", "position=rope position.scaling=yarn"): "position.scaling=yarn",
    ("seq2seq", "position=rope position.scaling=dynamic_ntk"): "position.scaling=dynamic_ntk",
    ("seq2seq", "feed_forward=relu2"): "feed_forward=relu2",
    ("lm", "feed_forward=moe"): "feed_forward=moe",
    ("lm", "attention=window"): "attention=window",
    ("seq2seq", "attention=block_sparse"): "attention=block_sparse",
    ("lm", "attention.soft_cap=30"): "attention.soft_cap=30.0",
    ("seq2seq", "norm=pre norm.query_key=true"): "norm.query_key=true between decoder and encoder",
    ("lm", "norm=pre norm.query_key=true"): None,
}


@pytest.mark.parametrize(("family", "name"), OBSTACLES)
def test_what_stands_in_the_way_is_named(family: str, name: str) -> None:
    assert CTranslate2().obstacle(changed(family, name)) == OBSTACLES[family, name]


def test_a_classifier_is_none_of_its_models() -> None:
    assert CTranslate2().obstacle(bases()["classifier"]) == "task=classification"
