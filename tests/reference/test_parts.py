"""Each hand-written derivative against finite differences, and the values that the papers give."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headloom.reference import parts
from headloom.reference.layers import Settings
from headloom.reference.model import Transformer
from headloom.reference.parts import IGNORE

STEP = 1e-5


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def slope(function: Callable[[], float], array: np.ndarray, place: tuple[int, ...]) -> float:
    """Central difference of `function` for one number of `array`, which it reads."""
    kept = array[place]
    array[place] = kept + STEP
    above = function()
    array[place] = kept - STEP
    below = function()
    array[place] = kept
    return (above - below) / (2 * STEP)


def assert_derivatives(part: Callable[..., Any], *arrays: np.ndarray, given: tuple[Any, ...] = (), **options: Any):
    """The backward of `part` for all numbers of `arrays`; `given` are arguments after them, without a gradient."""
    value, *_, backward = part(*arrays, *given, **options)
    weight = np.random.default_rng(1).normal(size=np.shape(value))
    gradients = backward(weight)
    assert len(gradients) == len(arrays)
    for array, gradient in zip(arrays, gradients, strict=True):
        assert gradient.shape == array.shape
        expected = np.empty_like(array)
        for place in np.ndindex(array.shape):
            expected[place] = slope(lambda: (part(*arrays, *given, **options)[0] * weight).sum(), array, place)
        np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-8)


def test_the_derivative_of_a_linear_map_is_that_of_differences(rng):
    assert_derivatives(parts.linear, rng.normal(size=(2, 3, 4)), rng.normal(size=(4, 5)), rng.normal(size=5))


def test_the_derivative_of_layer_norm_is_that_of_differences(rng):
    arrays = rng.normal(size=(2, 3, 5)), rng.normal(size=5), rng.normal(size=5)
    assert_derivatives(parts.layer_norm, *arrays, epsilon=1e-2)


def test_the_derivative_of_rms_norm_is_that_of_differences(rng):
    assert_derivatives(parts.rms_norm, rng.normal(size=(2, 3, 5)), rng.normal(size=5), epsilon=1e-2)


@pytest.mark.parametrize("activation", [parts.relu, parts.gelu, parts.swiglu])
def test_the_derivative_of_an_activation_is_that_of_differences(rng, activation):
    assert_derivatives(activation, rng.normal(size=(2, 3, 4)))


def test_the_derivative_of_a_rotation_is_that_of_differences(rng):
    position_BT = np.array([[0, 1, 2], [5, 0, 1]])
    assert_derivatives(parts.rotate, rng.normal(size=(2, 2, 3, 4)), given=(position_BT,), base=100.0)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_the_derivative_of_attention_is_that_of_differences(rng, num_kv_heads):
    """Also where a query may attend to nothing, and with a bias."""
    q_BHTK = rng.normal(size=(2, 4, 3, 2))
    k_BGSK, v_BGSK = rng.normal(size=(2, 2, num_kv_heads, 5, 2))
    allowed_B1TS = rng.random((2, 1, 3, 5)) < 0.6
    allowed_B1TS[1, 0, 2] = False
    assert_derivatives(parts.attention, q_BHTK, k_BGSK, v_BGSK, given=(allowed_B1TS, parts.alibi(4, 3, 5)))


@pytest.mark.parametrize("label_smoothing", [0.0, 0.3])
def test_the_derivative_of_the_loss_is_that_of_differences(rng, label_smoothing):
    target_BT = np.array([[1, IGNORE, 0], [5, 5, IGNORE]])
    assert_derivatives(
        parts.cross_entropy, rng.normal(size=(2, 3, 6)), given=(target_BT,), label_smoothing=label_smoothing
    )


def test_the_derivative_of_an_embedding_is_that_of_differences(rng):
    """A token that comes twice adds twice."""
    token_BT = np.array([[0, 2, 2], [3, 0, 2]])
    assert_derivatives(lambda table_VD: parts.embed(token_BT, table_VD, scale=3.0), rng.normal(size=(5, 2)))


@pytest.mark.parametrize(("placement", "pooling"), [("pre", "cls"), ("post", "mean")])
@pytest.mark.parametrize("family", ["seq2seq", "language_model", "classifier"])
def test_the_derivative_of_a_whole_model_is_that_of_differences(rng, family, placement, pooling):
    """At one number of every weight; the weights start from an empty dictionary."""
    settings = Settings(
        d_model=8, num_heads=2, num_kv_heads=1, d_ff=6, num_layers={"encoder": 2, "decoder": 2},
        vocab_size={"encoder": 5, "decoder": 6}, num_classes=3, position="learned", max_length=7,
        placement=placement, activation="swiglu",
        tying="decoder", pooling=pooling,
    )  # fmt: skip
    source_BS, target_BT = rng.integers(0, 5, (2, 4)), rng.integers(0, 6, (2, 6))
    allowed_BS = np.arange(4) < np.array([[4], [2]])
    wanted = np.array([2, 0]) if family == "classifier" else target_BT[:, 1:]
    model = Transformer(settings, {}, rng)

    def run() -> tuple[Any, Callable[..., Any]]:
        match family:
            case "seq2seq":
                logits, backward = model.seq2seq(source_BS, allowed_BS, target_BT[:, :-1])
            case "language_model":
                logits, backward = model.language_model(target_BT[:, :-1])
            case _:
                logits, backward = model.classifier(source_BS, allowed_BS)
        loss, loss_backward = parts.cross_entropy(logits, wanted, label_smoothing=0.1)
        return loss, lambda: backward(*loss_backward(1.0))

    run()  # draws the weights
    for name, weight in model.weights.items():
        model.weights[name] = weight + 0.1 * rng.normal(size=weight.shape)
    gradients = run()[1]()
    assert gradients.keys() == model.weights.keys()
    for name, gradient in gradients.items():
        place = tuple(int(rng.integers(size)) for size in gradient.shape)
        expected = slope(lambda: run()[0], model.weights[name], place)
        np.testing.assert_allclose(gradient[place], expected, rtol=1e-5, atol=1e-7, err_msg=name)


def test_a_query_that_may_attend_to_nothing_gets_zeros(rng):
    q_BHTK, k_BGSK = rng.normal(size=(2, 1, 1, 3, 2))
    out_BHTK, weights_BHTS, _ = parts.attention(q_BHTK, k_BGSK, k_BGSK, np.tri(3, k=-1, dtype=bool), None)
    assert (out_BHTK[0, 0, 0] == 0).all()
    np.testing.assert_allclose(weights_BHTS[0, 0].sum(-1), [0, 1, 1])


def test_sinusoids_are_the_papers():
    """Vaswani et al. (2017), section 3.5, at position 3 of a width of 4."""
    np.testing.assert_allclose(parts.sinusoids(np.array([3]), 4)[0], [np.sin(3), np.cos(3), np.sin(0.03), np.cos(0.03)])


def test_alibi_slopes_are_the_papers():
    """Press et al. (2022), section 3: 1/2, 1/4 ... 1/256 for 8 heads; 12 heads: those, then every other one of 16."""
    assert (-parts.alibi(8, 2, 1)[:, 1, 0]).tolist() == [2.0**-n for n in range(1, 9)]
    np.testing.assert_allclose(-parts.alibi(12, 2, 1)[8:, 1, 0], [2.0**-n for n in (0.5, 1.5, 2.5, 3.5)])


def test_a_score_of_turned_vectors_depends_on_their_distance_only(rng):
    """Su et al. (2021), equation 16."""
    x_BHTK = np.broadcast_to(rng.normal(size=4), (1, 1, 9, 4))
    turned_BHTK, _ = parts.rotate(x_BHTK, np.arange(9)[None], base=10.0)
    scores_TT = turned_BHTK[0, 0] @ turned_BHTK[0, 0].T
    np.testing.assert_allclose(np.diagonal(scores_TT, 3), scores_TT[0, 3])
