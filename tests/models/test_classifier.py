"""The encoder with a head: pooling sees real tokens only, and no row sees its neighbours."""

import pytest
import torch
from torch.nn import functional as F

from headloom.models.classifier import Classifier, Pool, Pooling, SegmentEmbedding

PAD, BOS, EOS = 0, 2, 3
VOCABULARY, D_MODEL, NUM_OUTPUTS = 12, 16, 3


@pytest.fixture
def build(make_model):
    def build_classifier(pooling=Pooling.mean, *, segments=False, dropout=0.3, **options):
        encoder = make_model(VOCABULARY, dropout=dropout, **options).encoder
        if segments:
            plain = encoder.embedding
            encoder.embedding = SegmentEmbedding(
                plain.table, plain.positional, scaled=False, dropout=dropout, separator=EOS
            )
            torch.nn.init.normal_(encoder.embedding.second_D)
        pool = None if pooling is None else Pool(pooling, D_MODEL)
        return Classifier(encoder, pool, torch.nn.Linear(D_MODEL, NUM_OUTPUTS), dropout=dropout).eval()

    return build_classifier


def row(length):
    return torch.tensor([[BOS, *torch.randint(4, VOCABULARY, (length - 2,)).tolist(), EOS]])


HEADS = [*Pooling, None]


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("position", ["sinusoidal", "learned", "rope"])
@pytest.mark.parametrize("pooling", HEADS, ids=str)
@pytest.mark.parametrize("length", [2, 5])
def test_a_row_alone_equals_the_row_beside_a_long_one(build, pooling, position, segments, length):
    """B32, B27: whatever lies in the padding; a row of bos and eos, an empty text, is one such row."""
    model = build(pooling, position=position, segments=segments)
    token_BS, long_BS = row(length), row(40)
    alone = model(token_BS, None)
    for filling in (PAD, 7):
        both_BS = torch.cat([F.pad(token_BS, (0, 40 - length), value=filling), long_BS])
        allowed_BS = torch.arange(40) < torch.tensor([[length], [40]])
        together = model(both_BS, allowed_BS)
        torch.testing.assert_close(together[:1] if pooling is not None else together[:1, :length], alone)
        torch.testing.assert_close(together[1:], model(long_BS, None))
    assert alone.isfinite().all()


@pytest.mark.parametrize("pooling", HEADS, ids=str)
def test_no_gradient_reaches_the_padding(build, pooling):
    """B27: exactly zero, so that nothing which is there can matter."""
    model = build(pooling)
    seen = []
    model.encoder.embedding.register_forward_hook(lambda *call: seen.append(call[2]) or call[2].retain_grad())
    allowed_BS = torch.arange(9) < torch.tensor([[4], [9]])
    logits = model(torch.cat([F.pad(row(4), (0, 5)), row(9)]), allowed_BS)
    (logits if pooling is not None else logits[allowed_BS]).sum().backward()
    assert seen[0].grad[0, 4:].abs().max() == 0
    assert seen[0].grad[0, :4].abs().max() > 0


@pytest.mark.parametrize(("pooling", "expected"), [(Pooling.cls, [1.0, 5.0]), (Pooling.max, [3.0, 5.0])])
def test_pooling_takes_what_it_says(pooling, expected):
    x_BSD = torch.tensor([[[1.0, 5.0], [3.0, 2.0], [9.0, 9.0]]])
    allowed_BS = torch.tensor([[True, True, False]])
    assert Pool(pooling, 2)(x_BSD, allowed_BS)[0].tolist() == expected
    assert Pool(Pooling.mean, 2)(x_BSD, allowed_BS)[0].tolist() == [2.0, 3.5]


@pytest.mark.parametrize("pooling", Pooling)
def test_a_garbage_value_in_the_padding_is_not_pooled(pooling):
    """B27: NaN there is as good as any other value."""
    pool = Pool(pooling, 4)
    x_BSD = torch.randn(1, 3, 4)
    padded_BSD = torch.cat([x_BSD, torch.full((1, 2, 4), torch.nan)], dim=1)
    allowed_BS = torch.tensor([[True, True, True, False, False]])
    torch.testing.assert_close(pool(padded_BSD, allowed_BS), pool(x_BSD, None))


def test_the_second_text_is_told_from_the_first(build):
    """The first separator belongs to the first text, and a text alone has no second one."""
    model = build(segments=True)
    plain = model.encoder.embedding
    token_BS = torch.tensor([[BOS, 5, EOS, 6, EOS], [BOS, 5, 6, EOS, PAD]])
    given = plain(token_BS)
    plain.second_D.data += 1.0
    moved = (plain(token_BS) - given).mean(-1)
    torch.testing.assert_close(moved, torch.tensor([[0.0, 0, 0, 1, 1], [0, 0, 0, 0, 1]]))


@pytest.mark.parametrize("pooling", HEADS, ids=str)
def test_evaluation_is_repeatable_and_training_is_not(build, pooling):
    """B28."""
    model = build(pooling, dropout=0.5)
    token_BS = row(8)
    assert torch.equal(model(token_BS, None), model(token_BS, None))
    model.train()
    assert not torch.equal(model(token_BS, None), model(token_BS, None))


@pytest.mark.parametrize("pooling", HEADS, ids=str)
def test_logits_are_float32_in_lower_precision(build, pooling):
    model = build(pooling)
    allowed_BS = torch.arange(8) < torch.tensor([[8], [5]])
    token_BS = torch.cat([row(8), row(8)])
    exact = model(token_BS, allowed_BS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = model(token_BS, allowed_BS)
    assert rounded.dtype is torch.float32
    if pooling is None:  # nobody asks what stands in the padding
        rounded, exact = rounded[allowed_BS], exact[allowed_BS]
    torch.testing.assert_close(rounded, exact, atol=0.1, rtol=0.1)
