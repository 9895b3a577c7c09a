import io
import math
import random
from contextlib import redirect_stderr
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from headloom import metrics
from headloom.data.batch import EvaluationBatches
from headloom.data.text import PairList
from headloom.data.token_store import TokenPairs, tokenize_pairs
from headloom.data.tokenizer import ByteTokenizer
from headloom.decoding.ranking import Ranking
from headloom.decoding.requests import Beam, Limits
from headloom.decoding.translator import Translator
from headloom.errors import ConfigError
from headloom.models.seq2seq import Seq2Seq
from headloom.nn.loss import IGNORE
from headloom.tasks.base import Task
from headloom.tasks.translation import Evaluation, TranslationTask

CPU = torch.device("cpu")
VOCAB_SIZE = ByteTokenizer.vocab_size


@pytest.fixture(scope="module")
def corpus() -> PairList:
    draw = random.Random(2)
    lines = ["".join(draw.choice("abcde ") for _ in range(1 + i * 7 % 12)).strip() or "a" for i in range(23)]
    return PairList([*zip(lines, reversed(lines), strict=True), ("", "a"), ("b", "")])


@pytest.fixture(scope="module")
def pairs(corpus: PairList, tmp_path_factory: pytest.TempPathFactory) -> TokenPairs:
    tokenizer, folder = ByteTokenizer(), tmp_path_factory.mktemp("store")
    return tokenize_pairs(
        corpus, tokenizer, tokenizer, folder=folder, max_length=64, truncate=True, description="validation"
    )


@pytest.fixture
def model(make_model) -> Seq2Seq:
    return make_model(VOCAB_SIZE, likely=[ByteTokenizer.eos_id, *ByteTokenizer().encode(["abcde "])[0]])


def batches(pairs: TokenPairs, max_tokens: int = 300) -> EvaluationBatches:
    return EvaluationBatches(pairs, ByteTokenizer(), ByteTokenizer(), max_tokens=max_tokens)


def translator(model: Seq2Seq) -> Translator:
    return Translator(
        model,
        ByteTokenizer(),
        ByteTokenizer(),
        search=Beam(beam_size=2, ranking=Ranking(1.0)),
        limits=Limits(max_length=8, max_ratio=1.0),
        max_tokens=800,
        device=CPU,
        autocast_dtype=None,
    )


def evaluate(
    model: Seq2Seq, batches: EvaluationBatches, translator: Translator | None = None, *, smoothing: float = 0.1
) -> Evaluation:
    task = TranslationTask(label_smoothing=smoothing, headline="loss")
    return task.evaluate(model, batches, translator, device=CPU, autocast_dtype=None)


def test_the_size_of_batches_changes_no_metric(model, pairs):
    """B41: one row a batch, some, all; and batches whose lengths are in no order."""
    expected = evaluate(model, batches(pairs, 10**6)).metrics

    class Shuffled(EvaluationBatches):
        def __init__(self) -> None:
            super().__init__(pairs, ByteTokenizer(), ByteTokenizer(), max_tokens=100)
            self._batches = np.array_split(np.random.default_rng(0).permutation(len(pairs)), 8)

    for others in (batches(pairs, 14), batches(pairs, 40), Shuffled()):
        assert len(others) >= 8
        assert evaluate(model, others).metrics == pytest.approx(expected, rel=1e-6)


def test_metrics_are_sums_over_all_targets_divided_once(model, pairs):
    """B41: against the plain computation, row by row, in float64."""
    nll, correct, targets = 0.0, 0, 0
    model.eval()
    with torch.no_grad():
        for batch in batches(pairs, 1):
            logits_TV = model.logits(model(batch.source_BS, batch.source_allowed_BS, batch.target_input_BT)[0]).double()
            target_T = batch.target_BT[0]
            nll += F.cross_entropy(logits_TV, target_T, reduction="sum").item()
            correct += int((logits_TV.argmax(-1) == target_T).sum())
            targets += len(target_T)
    found = evaluate(model, batches(pairs)).metrics
    assert targets == sum(pairs.target_lengths)
    assert found["loss"] == pytest.approx(nll / targets, rel=1e-6)
    assert found["perplexity"] == pytest.approx(math.exp(nll / targets), rel=1e-5)
    assert found["accuracy"] == correct / targets
    assert 0 < found["accuracy"] < 1


def test_label_smoothing_does_not_show_in_what_is_reported(model, pairs):
    """B40: loss and perplexity of an evaluation are not smoothed."""
    assert evaluate(model, batches(pairs), smoothing=0.1) == evaluate(model, batches(pairs), smoothing=0.0)


def test_a_model_that_knows_nothing_has_the_perplexity_of_its_vocabulary(model, pairs):
    """B40: the base of logarithm and exponential is one, padding does not count."""
    with torch.no_grad():
        model.output.weight.zero_()
    assert evaluate(model, batches(pairs)).metrics["perplexity"] == pytest.approx(VOCAB_SIZE, rel=1e-5)


def test_wider_padding_changes_nothing(model, pairs):
    """B40, B27: ten more columns on both sides."""

    class Wider(EvaluationBatches):
        def __iter__(self):
            for batch in super().__iter__():
                allowed = torch.ones_like(batch.source_BS, dtype=torch.bool)
                yield replace(
                    batch,
                    source_BS=F.pad(batch.source_BS, (0, 10), value=7),
                    source_allowed_BS=F.pad(allowed if (a := batch.source_allowed_BS) is None else a, (0, 10)),
                    target_input_BT=F.pad(batch.target_input_BT, (0, 10), value=9),
                    target_BT=F.pad(batch.target_BT, (0, 10), value=IGNORE),
                )

    wider = Wider(pairs, ByteTokenizer(), ByteTokenizer(), max_tokens=300)
    assert evaluate(model, wider).metrics == pytest.approx(evaluate(model, batches(pairs)).metrics, rel=1e-5)


@pytest.mark.parametrize("with_translator", [False, True])
def test_an_evaluation_leaves_mode_gradients_and_random_states_alone(model, pairs, with_translator):
    """B33, B70, B28: and with dropout in the model, two evaluations agree."""
    model.encoder.eval()
    before = [module.training for module in model.modules()]
    assert True in before
    assert False in before
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    first, second = (evaluate(model, batches(pairs), translator(model) if with_translator else None) for _ in range(2))
    assert first == second
    assert [module.training for module in model.modules()] == before
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_scores_are_those_of_the_translations_in_the_order_of_the_corpus(model, pairs, corpus):
    """B76, B82: what translate.py and sacreBLEU give; blank sources included (B04)."""
    found = evaluate(model, batches(pairs), translator(model))
    assert found.hypotheses == [translator(model).translate([source])[0] for source, _ in corpus]
    references = [target for _, target in corpus]
    for name, metric in {"bleu": metrics.bleu, "chrf": metrics.chrf}.items():
        score = metric(found.hypotheses, references)
        assert found.metrics[name] == score.value
        assert found.signatures[name] == score.signature
    assert set(found.metrics) == {"loss", "perplexity", "accuracy", "bleu", "chrf"}


def test_values_are_plain_numbers(model, pairs):
    """A checkpoint that holds them is read with weights_only, which refuses NumPy scalars."""
    found = evaluate(model, batches(pairs), translator(model))
    assert {type(value) for value in found.metrics.values()} == {float}
    assert set(evaluate(model, batches(pairs)).metrics) == {"loss", "perplexity", "accuracy"}


def test_progress_stays_off_what_is_no_terminal(model, pairs, capsys):
    """B97: and never on stdout."""
    with redirect_stderr(io.StringIO()) as stderr:
        evaluate(model, batches(pairs), translator(model))
    assert stderr.getvalue() == ""
    assert capsys.readouterr() == ("", "")


def test_loss_sum_is_the_smoothed_sum_over_real_targets(model, pairs):
    """B38, B39: (1 - e) times the likelihood and e times the mean over the vocabulary, padding in neither."""
    model.eval()
    batch = max(batches(pairs), key=lambda batch: len(batch.rows))
    assert (batch.target_BT == IGNORE).any()
    sums = TranslationTask(label_smoothing=0.1, headline="bleu").loss_sum(model, batch)
    logits_NV = model.logits(model(batch.source_BS, batch.source_allowed_BS, batch.target_input_BT).flatten(0, 1))
    target_N = batch.target_BT.flatten()
    options = {"ignore_index": IGNORE, "reduction": "sum"}
    torch.testing.assert_close(sums.loss, F.cross_entropy(logits_NV, target_N, label_smoothing=0.1, **options))
    torch.testing.assert_close(sums.nll, F.cross_entropy(logits_NV, target_N, **options).detach())
    assert sums.num_targets == batch.num_targets


def test_gradients_of_batches_add_up_to_those_of_one(model, pairs):
    """B38: rows in one batch, in some, one by one."""
    model.eval()
    task = TranslationTask(label_smoothing=0.1, headline="bleu")
    gradients = []
    for max_tokens in (10**6, 60, 1):
        model.zero_grad()
        for batch in batches(pairs, max_tokens):
            task.loss_sum(model, batch).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], rtol=1e-4, atol=1e-3)


def test_a_batch_without_targets_adds_nothing(model, pairs):
    """B37: zero, not NaN, for loss, gradient and counts."""
    batch = next(iter(batches(pairs)))
    empty = replace(batch, target_BT=torch.full_like(batch.target_BT, IGNORE), num_targets=0)
    sums = TranslationTask(label_smoothing=0.1, headline="bleu").loss_sum(model, empty)
    sums.loss.backward()
    assert sums.loss == sums.nll == sums.num_correct == sums.num_targets == 0
    assert all(p.grad is None or (p.grad == 0).all() for p in model.parameters())


@pytest.mark.parametrize(("headline", "higher"), [("bleu", True), ("chrf", True), ("loss", False)])
def test_the_headline_knows_its_better_side(headline, higher):
    task: Task = TranslationTask(label_smoothing=0.0, headline=headline)
    assert (task.headline, task.higher_is_better) == (headline, higher)


def test_another_headline_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"task.headline \(rouge\) must be one of bleu, chrf, loss"):
        TranslationTask(label_smoothing=0.1, headline="rouge")
