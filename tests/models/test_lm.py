"""The decoder-only model: causal, exact when cached and when packed, tied or not.

Shapes: B batch, T length, N rows of a search, D model width, V vocabulary.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headloom.build_language import build_language_model
from headloom.config.schema import TrainConfig
from headloom.config.schema_language import LanguageModelingConfig, LmConfig, TextConfig
from headloom.config.schema_parts import PostNormConfig, SwigluConfig
from headloom.config.schema_position import LearnedConfig, NoPositionConfig, RopeConfig, SinusoidalConfig
from headloom.data.text_batch import TextBatch
from headloom.models.lm import LanguageModel
from headloom.nn.loss import IGNORE
from headloom.tasks.language_modeling import LanguageModelingTask

V = 19
POSITIONS = {
    "none": NoPositionConfig(),
    "sinusoidal": SinusoidalConfig(),
    "learned": LearnedConfig(max_length=64),
    "rope": RopeConfig(),
}


@pytest.fixture
def make_lm(make_config) -> Callable[..., LanguageModel]:
    def make(position: str = "sinusoidal", *, model: dict | None = None, **sections: object) -> LanguageModel:
        config: TrainConfig = make_config(
            model=LmConfig(**{"d_model": 16, "num_heads": 4, "d_ff": 32, "num_layers": 2, **(model or {})}),
            data=TextConfig(path="unused.txt", max_length=32),
            task=LanguageModelingConfig(),
            position=POSITIONS[position],
            **sections,
        )
        return build_language_model(config, vocab_size=V).eval()

    return make


def tokens(*shape: int) -> Tensor:
    return torch.randint(V, shape)


@pytest.mark.parametrize("position", POSITIONS)
def test_a_token_does_not_see_the_future(make_lm, position):
    """B29: changing token t changes no hidden state before it, and some from it on."""
    model = make_lm(position)
    token_BT = tokens(2, 9)
    changed_BT = token_BT.clone()
    changed_BT[:, 4] = (changed_BT[:, 4] + 1) % V
    with torch.no_grad():
        before_BTD, after_BTD = model(token_BT), model(changed_BT)
    assert torch.equal(before_BTD[:, :4], after_BTD[:, :4])
    assert (before_BTD[:, 4:] != after_BTD[:, 4:]).any(-1).all()


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("prompt", [0, 1, 5])
@torch.no_grad()
def test_cached_steps_are_one_forward_pass(make_lm, position, prompt):
    """B30, also when rows change places, or leave, between steps."""
    model = make_lm(position)
    token_NT = tokens(3, 8)
    whole_NTV = model.logits(model(token_NT))
    state = model.start(token_NT[:, :prompt], max_length=8)
    for t in range(prompt, 8):
        torch.testing.assert_close(state.step(token_NT[:, t]), whole_NTV[:, t], atol=1e-5, rtol=1e-5)
        order_N = torch.tensor([2, 0, 1] if t < 6 else list(range(len(token_NT) - 1)))
        state.reorder(order_N)
        token_NT, whole_NTV = token_NT[order_N], whole_NTV[order_N]


@pytest.mark.parametrize("position", POSITIONS)
@torch.no_grad()
def test_documents_packed_in_a_row_are_what_they_are_alone(make_lm, position):
    model = make_lm(position)
    one, two, three = tokens(1, 4), tokens(1, 3), tokens(1, 1)
    packed_BT = torch.cat([one, two, three, torch.zeros(1, 2, dtype=torch.int64)], dim=1)
    stretch_BT = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 2, -1, -1]])
    position_BT = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 0, 0]])
    hidden_BTD = model(packed_BT, stretch_BT, position_BT)
    for document_1T, place in ((one, slice(0, 4)), (two, slice(4, 7)), (three, slice(7, 8))):
        torch.testing.assert_close(hidden_BTD[:, place], model(document_1T), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_padding_on_the_right_changes_nothing(make_lm):
    """B27: no mask is needed for it."""
    model = make_lm()
    token_BT = tokens(2, 5)
    torch.testing.assert_close(model(torch.cat([token_BT, tokens(2, 30)], dim=1))[:, :5], model(token_BT))


def test_a_tied_output_is_the_embedding_and_has_one_entry(make_lm):
    """B61."""
    tied, untied = make_lm(), make_lm(model={"tie_output": False})
    assert tied.output.weight is tied.stack.embedding.table.weight
    assert untied.output.weight is not untied.stack.embedding.table.weight
    num_tied, num_untied = (sum(p.numel() for p in model.parameters()) for model in (tied, untied))
    assert num_untied == num_tied + V * 16


@pytest.mark.parametrize("sections", [{"norm": PostNormConfig()}, {"feed_forward": SwigluConfig()}])
def test_every_part_trains(make_lm, sections):
    model = make_lm("rope", model={"num_kv_heads": 2, "bias": False}, **sections).train()
    target_BT = tokens(2, 6)
    batch = TextBatch(tokens(2, 6), target_BT, None, None, 12)
    LanguageModelingTask(label_smoothing=0.1, headline="loss").loss_sum(model, batch).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in model.parameters())


def test_attention_dropout_is_off_outside_training(make_lm):
    """B28: two forward passes are equal, cached steps too."""
    model = make_lm(model={"attention_dropout": 0.5})
    token_BT = tokens(2, 6)
    with torch.no_grad():
        assert torch.equal(model(token_BT), model(token_BT))
        steps = [model.start(token_BT[:, :-1], max_length=6).step(token_BT[:, -1]) for _ in range(2)]
    assert torch.equal(*steps)


def test_the_loss_is_that_of_the_next_token(make_lm):
    """B44: the sum of -log p of each target at its own place, padding aside."""
    model = make_lm()
    input_BT, target_BT = tokens(2, 6), tokens(2, 6)
    target_BT[1, 4:] = IGNORE
    sums = LanguageModelingTask(label_smoothing=0.0, headline="loss").loss_sum(
        model, TextBatch(input_BT, target_BT, None, None, 10)
    )
    log_prob_BTV = model.logits(model(input_BT)).log_softmax(-1)
    kept_BT = target_BT != IGNORE
    expected = -log_prob_BTV[kept_BT].gather(-1, target_BT[kept_BT][:, None]).sum()
    torch.testing.assert_close(sums.loss, expected)
    assert sums.num_targets == 10
