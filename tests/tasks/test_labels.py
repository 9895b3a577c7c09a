"""Classification, regression and tagging: losses are sums, scores do not depend on batches."""

import math

import pytest
import torch
from torch.nn import functional as F

from headloom.data.labelled_batch import LabelledEvaluationBatches
from headloom.data.labelled_store import ClassRows, TagRows, ValueRows, tokenize_rows
from headloom.data.text import PairList
from headloom.data.tokenizer import ByteTokenizer, train_tokenizer
from headloom.models.classifier import Classifier, Pool, Pooling
from headloom.tasks.classification import ClassificationTask, balanced_weights, label_loss
from headloom.tasks.regression import RegressionTask
from headloom.tasks.tagging import TaggingTask

BYTES = ByteTokenizer()
CPU = torch.device("cpu")
TEXTS = ["a b", "", "c d e f g", "h", "i j k", "l m"]
LABELS = {
    "classification": ["x", "y", "x", "z", "z", "y"],
    "regression": ["1", "2.5", "-1", "0", "3", "2"],
    "tagging": ["B O", "O", "O B I O B", "O", "I O O", "B I"],
}


@pytest.fixture
def setup(make_model, tmp_path):
    def build(kind, *, max_tokens=64):
        encoder, task = {
            "classification": (ClassRows(BYTES, ["x", "y", "z"], max_length=32), ClassificationTask(["x", "y", "z"])),
            "regression": (ValueRows(BYTES, max_length=32), RegressionTask(centre=1.25, spread=1.5)),
            "tagging": (TagRows(BYTES, ["B", "I", "O"], max_length=32), TaggingTask(["B", "I", "O"])),
        }[kind]
        num_outputs = 1 if kind == "regression" else 3
        torch.manual_seed(1)
        head = torch.nn.Linear(16, num_outputs)
        pool = None if kind == "tagging" else Pool(Pooling.mean, 16)
        model = Classifier(make_model(BYTES.vocab_size, dropout=0.0).encoder, pool, head, dropout=0.0)
        rows = list(zip(TEXTS, LABELS[kind], strict=True))
        tokens = tokenize_rows(PairList(rows), encoder, folder=tmp_path, description="test")
        return model, task, LabelledEvaluationBatches(tokens, encoder, max_tokens=max_tokens)

    return build


@pytest.mark.parametrize("kind", LABELS)
def test_a_score_does_not_depend_on_the_batches(setup, kind):
    """B41, B33."""
    results = []
    for max_tokens in (1, 20, 4096):
        model, task, batches = setup(kind, max_tokens=max_tokens)
        model.train()
        results.append(task.evaluate(model, batches, device=CPU, autocast_dtype=None).metrics)
        assert model.training
    for other in results[1:]:
        assert other == pytest.approx(results[0], abs=1e-6)


@pytest.mark.parametrize("kind", LABELS)
def test_the_loss_of_an_evaluation_is_the_training_loss_over_its_targets(setup, kind):
    model, task, batches = setup(kind, max_tokens=16)
    model.eval()
    sums = [task.loss_sum(model, batch) for batch in batches]
    expected = sum(s.loss.item() for s in sums) / sum(s.num_targets for s in sums)
    evaluation = task.evaluate(model, batches, device=CPU, autocast_dtype=None)
    assert evaluation.metrics["loss"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", LABELS)
def test_splitting_a_batch_changes_no_gradient(setup, kind):
    """B38."""
    gradients = []
    for max_tokens in (4096, 1):
        model, task, batches = setup(kind, max_tokens=max_tokens)
        for batch in batches:
            task.loss_sum(model, batch).loss.backward()
        gradients.append(model.head.weight.grad)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights", [None, [0.5, 2.0, 1.0, 0.0]])
def test_the_loss_is_that_of_pytorch(smoothing, weights):
    """B39. PyTorch weighs the smoothed part by every class, so its sum is written out where there are weights."""
    logits_NC, target_N = torch.randn(7, 4, requires_grad=True), torch.tensor([0, 1, 2, 3, 1, 1, 0])
    weight_C = None if weights is None else torch.tensor(weights)
    sums = label_loss(logits_NC, target_N, label_smoothing=smoothing, class_weights=weight_C)
    each_N = F.cross_entropy(logits_NC, target_N, label_smoothing=smoothing, reduction="none")
    expected = (each_N if weight_C is None else each_N * weight_C[target_N]).sum()
    torch.testing.assert_close(sums.loss, expected)
    torch.testing.assert_close(sums.nll, F.cross_entropy(logits_NC.detach(), target_N, reduction="sum"))
    assert sums.num_correct == (logits_NC.argmax(-1) == target_N).sum()


def test_a_batch_without_targets_adds_nothing():
    """B37."""
    empty = torch.zeros(0, 3, requires_grad=True)
    sums = label_loss(empty, torch.zeros(0, dtype=torch.long), label_smoothing=0.1, class_weights=None)
    assert (sums.loss.item(), sums.nll.item(), sums.num_targets) == (0.0, 0.0, 0)


def test_balanced_weights_give_classes_equal_sums_and_average_one():
    counts = [90, 9, 1]
    weights = balanced_weights(counts)
    sums = [weight * count for weight, count in zip(weights, counts, strict=True)]
    assert sums == pytest.approx([100 / 3] * 3)


def test_regression_predicts_in_the_unit_of_the_labels(setup):
    """Loss is in deviations of the training values: predicting their mean costs 1."""
    model, task, batches = setup("regression")
    torch.nn.init.zeros_(model.head.weight)
    torch.nn.init.zeros_(model.head.bias)
    evaluation = task.evaluate(model, batches, device=CPU, autocast_dtype=None)
    assert evaluation.predicted.tolist() == [1.25] * 6
    values = torch.tensor([float(label) for label in LABELS["regression"]])
    assert evaluation.metrics["mse"] == pytest.approx((values - 1.25).square().mean().item())
    assert evaluation.metrics["loss"] == pytest.approx(evaluation.metrics["mse"] / 1.5**2)
    assert math.isnan(evaluation.metrics["pearson"])  # nothing varies


def test_predictions_stand_in_the_order_of_the_corpus(setup):
    for kind in ("classification", "tagging"):
        few, many = (setup(kind, max_tokens=size) for size in (4096, 1))
        one, other = (task.evaluate(m, b, device=CPU, autocast_dtype=None) for m, task, b in (few, many))
        assert list(one.predicted) == list(other.predicted)
    assert [len(tags) for tags in one.predicted] == [len(tags.split(" ")) for tags in LABELS["tagging"]]


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_answers_are_the_mean_over_segmentations(make_model, tmp_path, kind):
    """Of labels the mean of the probabilities, as Takase et al. (2022) take it; whatever the batches."""
    texts = ["abab", "ba", "bababab", "abba"]
    tokenizer = train_tokenizer(texts * 9, kind="bpe", vocab_size=20, byte_fallback=False, sampling=0.5)
    labels, encoder, task = {
        "classification": (
            ["x", "y", "y", "x"],
            ClassRows(tokenizer, ["x", "y"], max_length=32),
            ClassificationTask(["x", "y"]),
        ),
        "regression": (
            ["1", "2", "3", "4"],
            ValueRows(tokenizer, max_length=32),
            RegressionTask(centre=1.0, spread=2.0),
        ),
    }[kind]
    torch.manual_seed(1)
    head = torch.nn.Linear(16, 2 if kind == "classification" else 1)
    model = Classifier(make_model(20, dropout=0.0).encoder, Pool(Pooling.mean, 16), head, dropout=0.0).eval()
    tokens = tokenize_rows(
        PairList(list(zip(texts, labels, strict=True))), encoder, folder=tmp_path, description="test"
    )
    with torch.no_grad():
        output_TKC = torch.stack(
            [
                torch.cat([model(torch.from_numpy(encoder.variant([text], k).ids[0])[None], None) for k in range(5)])
                for text in texts
            ]
        )
    for max_tokens in (1, 4096):
        batches = LabelledEvaluationBatches(tokens, encoder, max_tokens=max_tokens, num_segmentations=5)
        evaluation = task.evaluate(model, batches, device=CPU, autocast_dtype=None)
        if kind == "regression":
            expected = 1.0 + 2.0 * output_TKC.mean(1)[:, 0]
            assert evaluation.predicted == pytest.approx(expected.numpy(), abs=1e-5)
            continue
        p_TC = output_TKC.softmax(-1).mean(1)
        assert evaluation.predicted.tolist() == p_TC.argmax(-1).tolist()
        assert evaluation.probability == pytest.approx(p_TC.amax(-1).numpy(), abs=1e-5)
        assert evaluation.metrics["loss"] == pytest.approx(-p_TC.log()[range(4), [0, 1, 1, 0]].mean().item(), abs=1e-5)
    assert (output_TKC[:, 1:] != output_TKC[:, :1]).any()


def test_words_that_were_cut_off_count_as_outside(make_model, tmp_path):
    """Their entities are missed, not left out of the count."""
    encoder = TagRows(BYTES, ["B-x", "O"], max_length=4)
    tokens = tokenize_rows(PairList([("a b c", "O O B-x")]), encoder, folder=tmp_path, description="test")
    model = Classifier(make_model(BYTES.vocab_size).encoder, None, torch.nn.Linear(16, 2), dropout=0.0)
    torch.nn.init.zeros_(model.head.weight)
    model.head.bias.data = torch.tensor([0.0, 9.0])
    batches = LabelledEvaluationBatches(tokens, encoder, max_tokens=64)
    evaluation = TaggingTask(["B-x", "O"]).evaluate(model, batches, device=CPU, autocast_dtype=None)
    assert evaluation.predicted == [["O", "O", "O"]]
    assert (evaluation.metrics["recall"], evaluation.metrics["accuracy"]) == (0.0, pytest.approx(2 / 3))
    assert evaluation.scores[0].num_gold == 1
