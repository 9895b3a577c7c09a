"""A mixture of experts in place of the feed-forward: each token is computed by a few of many.

Everything is counted by sequences (rows of a batch) and over real tokens: the
capacity of an expert, and the losses that keep the router balanced. So neither
depends on how an update is split into batches, or on padding.

Shapes: B batch, T length, D model width, E experts, C experts chosen by a token,
        N real tokens, A assignments of a token to an expert (A <= N C).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass
class RouterSums:
    """What one forward pass of one mixture found, as sums over its real tokens.

    `load_balance` and `router_z` carry the gradient. `num_dropped` of the
    `num_assignments` found their expert full.
    """

    load_balance: Tensor
    router_z: Tensor
    num_tokens: Tensor
    num_dropped: Tensor
    num_assignments: Tensor


class MixtureOfExperts(nn.Module):
    """The `num_chosen` experts with the highest router probability, weighted by it: Shazeer et al. (2017), section 2.

    With one expert a token its weight is the probability itself (Fedus et al.
    2022, section 2.1), so that the router has a gradient; with several they sum
    to 1 (Lepikhin et al. 2021, algorithm 1). The router computes in float32.

    `capacity_factor` c bounds what an expert takes of one sequence of n tokens in
    training to ceil(c n C / E), first come, first served; an assignment above it
    is dropped: its term is missing, and only the residual stream carries the
    token past. None: nothing is ever dropped. In evaluation nothing is, so that
    a cached step equals a full pass.

    In training the losses of the router are noted; `take` hands them over.
    """

    def __init__(
        self,
        d_model: int,
        experts: Sequence[nn.Module],
        *,
        num_chosen: int,
        capacity_factor: float | None,
        load_balance_weight: float,
        router_z_weight: float,
    ) -> None:
        super().__init__()
        self.router = nn.Linear(d_model, len(experts), bias=False)
        self.experts = nn.ModuleList(experts)
        self.num_chosen = num_chosen
        self.capacity_factor = capacity_factor
        self.load_balance_weight = load_balance_weight
        self.router_z_weight = router_z_weight
        self._noted: list[RouterSums] = []

    def forward(self, x_BTD: Tensor, *, real_BT: Tensor | None = None) -> Tensor:
        """`real` is True on tokens that count; None: all do. The others get zeros."""
        if x_BTD.dim() == 2:  # a token of each row
            return self.forward(x_BTD[:, None])[:, 0]
        with torch.autocast(x_BTD.device.type, enabled=False):
            wide = torch.promote_types(x_BTD.dtype, torch.float32)
            logits_BTE = F.linear(x_BTD.to(wide), self.router.weight.to(wide))
        probability_BTE = logits_BTE.softmax(-1)
        weight_BTC, expert_BTC = probability_BTE.topk(self.num_chosen, dim=-1)
        if self.num_chosen > 1:
            weight_BTC = weight_BTC / weight_BTC.sum(-1, keepdim=True)
        taken_BTC = torch.ones_like(expert_BTC, dtype=torch.bool)
        if real_BT is not None:
            taken_BTC &= real_BT[:, :, None]
        if self.training:
            taken_BTC = self._note(logits_BTE, probability_BTE, expert_BTC, taken_BTC)
        return self._compute(x_BTD, weight_BTC, expert_BTC, taken_BTC)

    def take(self) -> list[RouterSums]:
        """What the training passes since the last call found."""
        noted, self._noted = self._noted, []
        return noted

    def _compute(self, x_BTD: Tensor, weight_BTC: Tensor, expert_BTC: Tensor, taken_BTC: Tensor) -> Tensor:
        """The weighted outputs of the experts: each runs once, on all its tokens."""
        x_ND = x_BTD.flatten(0, 1)
        place_A = taken_BTC.flatten().nonzero().squeeze(-1)
        place_A = place_A[expert_BTC.flatten()[place_A].argsort(stable=True)]
        num_by_expert = expert_BTC.flatten()[place_A].bincount(minlength=len(self.experts)).tolist()
        token_A = place_A // self.num_chosen
        pieces = torch.split(x_ND[token_A], num_by_expert)
        out_AD = torch.cat([expert(piece) for expert, piece in zip(self.experts, pieces, strict=True)])
        out_AD = out_AD * weight_BTC.flatten()[place_A, None].to(out_AD.dtype)
        return torch.zeros_like(x_ND, dtype=out_AD.dtype).index_add(0, token_A, out_AD).view_as(x_BTD)

    def _note(self, logits_BTE: Tensor, probability_BTE: Tensor, expert_BTC: Tensor, real_BTC: Tensor) -> Tensor:
        """Note the losses of the router; returns taken_BTC, without what passes the capacity."""
        E, C = len(self.experts), self.num_chosen
        real_BT1 = real_BTC[:, :, :1].float()
        num_real_B1 = real_BT1.sum(1)
        # Row by row: the share of assignments and of probability that each expert has.
        assigned_BTCE = F.one_hot(expert_BTC, E) * real_BTC[..., None]
        share_BE = assigned_BTCE.sum((1, 2)) / (num_real_B1 * C).clamp(min=1)
        mean_BE = (probability_BTE * real_BT1).sum(1) / num_real_B1.clamp(min=1)
        load_balance_B = E * (share_BE * mean_BE).sum(-1)
        taken_BTC = real_BTC
        if self.capacity_factor is not None:
            capacity_B1 = (self.capacity_factor * num_real_B1 * C / E).ceil()
            # How many have come to the same expert, in the order of tokens and of their choices.
            queue_BSE = assigned_BTCE.flatten(1, 2).cumsum(1).view(-1, *assigned_BTCE.shape[1:])
            turn_BTC = (queue_BSE * assigned_BTCE).sum(-1)
            taken_BTC = real_BTC & (turn_BTC <= capacity_B1[:, :, None])
        self._noted.append(
            RouterSums(
                load_balance=(load_balance_B * num_real_B1[:, 0]).sum(),
                router_z=(logits_BTE.logsumexp(-1, keepdim=True).square() * real_BT1).sum(),
                num_tokens=num_real_B1.sum(),
                num_dropped=(real_BTC & ~taken_BTC).sum(),
                num_assignments=real_BTC.sum(),
            )
        )
        return taken_BTC


MEANS = ("load_balance_loss", "router_z_loss", "dropped_assignments")
"""What a log shows of the mixtures of a model; see `router_loss`."""


def router_loss(mixtures: Iterable[MixtureOfExperts]) -> tuple[Tensor, dict[str, Tensor]]:
    """What the last training pass adds to its loss, a sum as that is one; and sum and count of each of `MEANS`.

    Load balance is Fedus et al. (2022), equation 4: E times the sum over experts
    of the share of assignments and the mean probability, 1 when all are equal;
    here of each sequence by itself (as the sequence-wise loss of DeepSeek-AI
    2024, section 2.1.2), times its tokens. Router z is Zoph et al. (2022),
    equation 5: the squared log-sum-exp of the logits, summed over tokens. Both
    are averaged over the mixtures of the model. They are sums over tokens, so
    that a trainer which divides once by the targets of the whole update weighs
    them the same however it is split. Dropped assignments are a share of all.
    """
    noted = [(mixture, sums) for mixture in mixtures for sums in mixture.take()]
    assert noted, "a mixture notes its losses in every training pass"
    loss = torch.stack(
        [m.load_balance_weight * s.load_balance + m.router_z_weight * s.router_z for m, s in noted]
    ).sum() / len({id(mixture) for mixture, _ in noted})
    num_tokens = torch.stack([s.num_tokens for _, s in noted]).sum()
    sums = (
        (torch.stack([s.load_balance.detach() for _, s in noted]).sum(), num_tokens),
        (torch.stack([s.router_z.detach() for _, s in noted]).sum(), num_tokens),
        (
            torch.stack([s.num_dropped for _, s in noted]).sum(),
            torch.stack([s.num_assignments for _, s in noted]).sum(),
        ),
    )
    return loss, {name: torch.stack([one.double() for one in pair]) for name, pair in zip(MEANS, sums, strict=True)}
