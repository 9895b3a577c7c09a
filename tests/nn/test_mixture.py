"""Shapes: B batch, T length, D model width, E experts, C experts chosen by a token."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from headloom.nn.feed_forward import FeedForward
from headloom.nn.mixture import MEANS, MixtureOfExperts, router_loss

D, E = 6, 4


def mixture(num_chosen: int = 2, *, capacity_factor: float | None = None, z: float = 0.0) -> MixtureOfExperts:
    experts = [FeedForward(D, 5, activation=F.relu, bias=True, dropout=0.0) for _ in range(E)]
    return MixtureOfExperts(
        D, experts, num_chosen=num_chosen, capacity_factor=capacity_factor, load_balance_weight=1.0, router_z_weight=z
    )


@pytest.mark.parametrize("num_chosen", [1, 2, 4])
def test_a_token_is_computed_by_the_likeliest_experts(num_chosen):
    """Token by token, as Shazeer et al. (2017), section 2, has it; a single one weighs its own probability."""
    moe, x_BTD = mixture(num_chosen).eval(), torch.randn(2, 3, D)
    out_BTD = moe(x_BTD)
    for b in range(2):
        for t in range(3):
            x_D = x_BTD[b, t]
            probability_E = (moe.router.weight @ x_D).softmax(0)
            best_C = probability_E.argsort(descending=True)[:num_chosen]
            weight_C = probability_E[best_C] / (probability_E[best_C].sum() if num_chosen > 1 else 1)
            expected_D = sum(w * moe.experts[int(e)](x_D) for w, e in zip(weight_C, best_C, strict=True))
            torch.testing.assert_close(out_BTD[b, t], expected_D)


def test_padding_is_not_computed_and_changes_nothing():
    """Neither outputs nor losses of the router: B27."""
    moe, x_BTD = mixture(capacity_factor=0.5, z=0.3).train(), torch.randn(2, 3, D)
    alone_BTD = moe(x_BTD)
    alone, _ = router_loss([moe])
    real_BT = torch.tensor([[True] * 3 + [False] * 4] * 2)
    padded_BTD = moe(F.pad(x_BTD, (0, 0, 0, 4), value=9.0), real_BT=real_BT)
    padded, _ = router_loss([moe])
    torch.testing.assert_close(padded_BTD[:, :3], alone_BTD)
    assert padded_BTD[:, 3:].eq(0).all()
    torch.testing.assert_close(padded, alone)


def test_losses_are_sums_that_do_not_depend_on_how_rows_are_batched():
    moe, x_BTD = mixture(z=0.3).train(), torch.randn(3, 5, D)
    moe(x_BTD)
    whole, means = router_loss([moe])
    parts = []
    for x_1TD in x_BTD.split(1):
        moe(x_1TD)
        parts.append(router_loss([moe])[0])
    torch.testing.assert_close(sum(parts), whole)
    assert means["router_z_loss"][1] == 15


def test_the_losses_are_those_of_the_papers():
    """Fedus et al. (2022), equation 4; Zoph et al. (2022), equation 5: of one sequence, times its tokens."""
    moe, x_BTD = mixture(1, z=0.5).train(), torch.randn(1, 7, D)
    moe(x_BTD)
    loss, means = router_loss([moe])
    logits_TE = x_BTD[0] @ moe.router.weight.T
    share_E = F.one_hot(logits_TE.argmax(-1), E).float().mean(0)
    balance = E * (share_E * logits_TE.softmax(-1).mean(0)).sum()
    z = logits_TE.logsumexp(-1).square().mean()
    torch.testing.assert_close(loss, 7 * (balance + 0.5 * z))
    for name, value in zip(MEANS, (balance.detach(), z.detach(), 0.0), strict=True):
        torch.testing.assert_close(means[name][0] / means[name][1], torch.as_tensor(value).double())


def test_equal_use_has_a_balance_of_one():
    moe = mixture(E).train()  # every expert is chosen, and with a router of zeros all are equally likely
    nn.init.zeros_(moe.router.weight)
    moe(torch.randn(2, 5, D))
    _, means = router_loss([moe])
    assert means["load_balance_loss"].tolist() == pytest.approx([10.0, 10.0])


def outputs_of_one_expert(moe: MixtureOfExperts, x_BTD: Tensor) -> list[bool]:
    return moe(x_BTD)[0].abs().sum(-1).gt(0).tolist()


def test_a_full_expert_drops_the_later_tokens_in_training_only():
    """Capacity ceil(1.0 * 8 * 1 / 4) = 2 of a sequence; all eight tokens want the first expert."""
    moe = mixture(1, capacity_factor=1.0)
    with torch.no_grad():
        moe.router.weight.copy_(torch.eye(E, D))
    x_BTD = torch.zeros(1, 8, D)
    x_BTD[..., 0] = 3.0
    assert outputs_of_one_expert(moe.train(), x_BTD) == [True] * 2 + [False] * 6
    _, means = router_loss([moe])
    assert means["dropped_assignments"].tolist() == [6, 8]
    assert outputs_of_one_expert(moe.eval(), x_BTD) == [True] * 8
    assert moe.take() == []


@pytest.mark.parametrize("bfloat16", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_every_expert_has_a_gradient_even_where_no_token_chose_it(training, bfloat16):
    """Ranks that sum gradients need one of each parameter."""
    moe = mixture(1).train(training)
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        out_BTD = moe(torch.randn(1, 1, D))
    out_BTD.sum().backward()
    assert all(parameter.grad is not None for parameter in moe.parameters())


def test_the_router_computes_in_float32_under_autocast():
    moe, x_BTD = mixture().train(), torch.randn(1, 4, D)
    with torch.autocast("cpu", torch.bfloat16):
        out_BTD = moe(x_BTD.bfloat16())
    (sums,) = moe.take()
    assert out_BTD.dtype is torch.bfloat16
    assert sums.router_z.dtype is torch.float32


def test_a_recomputed_mixture_has_the_same_gradients():
    """B34: those of the losses of the router too, which leave the recomputed part by another way."""
    moe, x_BTD = mixture(capacity_factor=1.0, z=0.3).train(), torch.randn(2, 5, D)
    gradients = []
    for recompute in (False, True):
        moe.take()
        out_BTD = checkpoint(moe, x_BTD, use_reentrant=False) if recompute else moe(x_BTD)
        loss = out_BTD.square().sum() + router_loss([moe])[0]
        gradients.append(torch.autograd.grad(loss, list(moe.parameters())))
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)
