"""Multi-head attention.

Shapes: B batch, T query length, S key length, D model width,
        H query heads, G key/value heads (G divides H), K head width.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headloom.nn import kernels
from headloom.nn.cache import KeyValues
from headloom.nn.linear import Linear
from headloom.nn.masks import Pattern
from headloom.nn.positional import Positional


class MultiHeadAttention(nn.Module):
    """Attention of H query heads over G shared key/value heads.

    G = H is the multi-head attention of Vaswani et al. (2017), section 3.2.2;
    G = 1 the multi-query attention of Shazeer (2019); any G between, the
    grouped-query attention of Ainslie et al. (2023), section 2.2.

    Keys and values are one matrix, since one product is faster than two.

    `pattern` limits what a position of the same sequence reaches (masks.py).
    `soft_cap` bounds the scores (kernels.attend). `query_norm` and `key_norm`
    normalise each head's queries and keys before positions turn them (Dehghani
    et al. 2023, section 2): scores then stay bounded however large the stream
    grows.

    Raises:
        ValueError: D is not a multiple of H, or H not a multiple of G.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        positional: Positional | None = None,
        pattern: Pattern | None = None,
        soft_cap: float | None = None,
        query_norm: nn.Module | None = None,
        key_norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if d_model % num_heads:
            raise ValueError(f"d_model ({d_model}) must be a multiple of num_heads ({num_heads})")
        if num_heads % num_kv_heads:
            raise ValueError(f"num_heads ({num_heads}) must be a multiple of num_kv_heads ({num_kv_heads})")
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_width = d_model // num_heads
        self.dropout = dropout
        self.positional = positional
        self.is_biased = positional is not None and positional.adds_bias
        self.turns = positional is not None and positional.turns
        self.pattern = pattern
        self.soft_cap = soft_cap
        self.query_norm = query_norm
        self.key_norm = key_norm
        self.query = Linear(d_model, num_heads * self.head_width, bias=bias)
        self.key_value = Linear(d_model, 2 * num_kv_heads * self.head_width, bias=bias)
        self.output = Linear(num_heads * self.head_width, d_model, bias=bias)
        self.preference = kernels.NO_PREFERENCE
        self.recorder: Callable[[Tensor], None] | None = None

    def forward(self, x_BTD: Tensor, memory_BSD: Tensor, allowed: Tensor | None, *, causal: bool) -> Tensor:
        """Attend from `x` to `memory` (pass `x` twice for self-attention).

        `allowed` is True where a key is real (allowed_BS), or where a query may
        attend to a key (allowed_BTS: documents that share a row); None: all are.
        Right padding under a causal mask needs none: a real token never sees
        what is to its right.
        """
        q_BHTK = self.queries(x_BTD)
        k_BGSK, v_BGSK = self.keys_values(memory_BSD)
        return self.attend(q_BHTK, k_BGSK, v_BGSK, allowed, causal=causal)

    def step(self, x_NTD: Tensor, cache: KeyValues, allowed: Tensor | None = None) -> Tensor:
        """Causal self-attention of the next T tokens of every row: equals the last T positions of `forward`.

        `allowed` is over all keys so far, these included.
        """
        first = cache.length
        q_NHTK = self.queries(x_NTD, first=first)
        k_NGSK, v_NGSK = cache.append(*self.keys_values(x_NTD, first=first))
        if self.pattern is not None and x_NTD.size(1) == 1:
            reached = self.pattern.first_key(cache.length)
            k_NGSK, v_NGSK = k_NGSK[:, :, reached:], v_NGSK[:, :, reached:]
            allowed = None if allowed is None else allowed[..., reached:]
        # One query may see every key so far.
        return self.attend(q_NHTK, k_NGSK, v_NGSK, allowed, causal=x_NTD.size(1) > 1)

    def next_step(self, x_ND: Tensor, cache: KeyValues) -> Tensor:
        """`step` for one token of every row, in as few operations as there are.

        With few rows each operation costs more than its arithmetic; so modules are not called but their `forward`.
        """
        if not self._is_plain():
            return self.step(x_ND[:, None], cache)[:, 0]
        num_rows, num_heads, width = x_ND.size(0), self.num_heads, self.head_width
        joined = self.query.joined(self.key_value)
        if joined is None:
            q_NHK = self.query.forward(x_ND).view(num_rows, num_heads, width)
            kv_N2GK = self.key_value.forward(x_ND).view(num_rows, 2, self.num_kv_heads, width)
        else:
            both_NIK = joined(x_ND).view(num_rows, -1, width)
            q_NHK = both_NIK[:, :num_heads]
            kv_N2GK = both_NIK[:, num_heads:].view(num_rows, 2, self.num_kv_heads, width)
        q_NH1K = q_NHK.unsqueeze(2)
        if self.turns:
            assert self.positional is not None
            first = cache.length
            q_NH1K = self.positional.rotate(q_NH1K, first=first)
            k_NG1K = self.positional.rotate(kv_N2GK[:, 0].unsqueeze(2), first=first)
            k_NGSK, v_NGSK = cache.append(k_NG1K, kv_N2GK[:, 1].unsqueeze(2))
        else:
            k_NGSK, v_NGSK = cache.append_one(kv_N2GK)
        out_NH1K = F.scaled_dot_product_attention(q_NH1K, k_NGSK, v_NGSK, enable_gqa=num_heads != self.num_kv_heads)
        return self.output.forward(out_NH1K.reshape(num_rows, -1))

    def next_step_across(self, x_ND: Tensor, memory: KeyValues, allowed_BS: Tensor | None) -> Tensor:
        """Attention of the next token of every row to `memory`, which neighbouring rows of a sentence share."""
        # They are queries of one product: keys are not copied for each.
        k_BGSK, v_BGSK = memory.filled()
        x_BTD = x_ND.view(k_BGSK.size(0), -1, x_ND.size(-1))
        if not self._is_plain():
            return self.attend(self.queries(x_BTD), k_BGSK, v_BGSK, allowed_BS, causal=False).flatten(0, 1)
        q_BTHK = self.query.forward(x_ND).view(*x_BTD.shape[:2], self.num_heads, self.head_width)
        out_BHTK = F.scaled_dot_product_attention(
            q_BTHK.transpose(1, 2),
            k_BGSK,
            v_BGSK,
            None if allowed_BS is None else allowed_BS[:, None, None],
            enable_gqa=self.num_heads != self.num_kv_heads,
        )
        return self.output.forward(out_BHTK.transpose(1, 2).reshape(x_ND.size(0), -1))

    def _is_plain(self) -> bool:
        """Whether PyTorch's fused kernel alone is the whole attention product of a step."""
        return (
            self.recorder is None
            and not self.is_biased
            and self.pattern is None
            and self.soft_cap is None
            and self.query_norm is None
            and self.preference.asked is not kernels.Asked.eager
        )

    def queries(self, x_BTD: Tensor, *, first: int = 0) -> Tensor:
        """q_BHTK, turned by its positions where the scheme does so; `first` is the position of the first token."""
        q_BHTK = self.query(x_BTD).unflatten(-1, (self.num_heads, self.head_width)).transpose(1, 2)
        if self.query_norm is not None:
            q_BHTK = self.query_norm(q_BHTK).to(q_BHTK.dtype)
        return q_BHTK if self.positional is None else self.positional.rotate(q_BHTK, first=first)

    def keys_values(self, memory_BSD: Tensor, *, first: int = 0) -> tuple[Tensor, Tensor]:
        """k_BGSK (turned likewise) and v_BGSK."""
        both_B2GSK = self.key_value(memory_BSD).unflatten(-1, (2 * self.num_kv_heads, self.head_width)).transpose(1, 2)
        k_BGSK, v_BGSK = both_B2GSK.chunk(2, dim=1)
        if self.key_norm is not None:
            k_BGSK = self.key_norm(k_BGSK).to(k_BGSK.dtype)
        return k_BGSK if self.positional is None else self.positional.rotate(k_BGSK, first=first), v_BGSK

    def attend(self, q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, allowed: Tensor | None, *, causal: bool) -> Tensor:
        """The attention product and the output projection. `causal`: within one sequence, the last query at its end."""
        num_queries, num_keys = q_BHTK.size(-2), k_BGSK.size(-2)
        options: dict[str, Any] = {"causal": causal, "dropout_probability": self.dropout if self.training else 0.0}
        if self.pattern is not None:
            options["pattern_TS"] = self.pattern.allowed(num_queries, num_keys, q_BHTK.device)
        if self.is_biased:
            assert self.positional is not None
            options["bias_1HTS"] = self.positional.bias(num_queries, num_keys, like=q_BHTK)
        if self.soft_cap is not None:
            options["soft_cap"] = self.soft_cap
        if self.recorder is None:
            out_BHTK = kernels.attend(
                q_BHTK,
                k_BGSK,
                v_BGSK,
                allowed,
                preference=self.preference,
                **options,
            )
        else:
            with torch.autocast(q_BHTK.device.type, enabled=False):
                out_BHTK, weights_BHTS = kernels.exact(
                    q_BHTK.float(), k_BGSK.float(), v_BGSK.float(), allowed, **options
                )
            self.recorder(weights_BHTS.detach())
        return self.output(out_BHTK.transpose(1, 2).flatten(-2))

    def kernel(
        self, num_keys: int, *, causal: bool, padded: bool, training: bool, device: torch.device, dtype: torch.dtype
    ) -> kernels.Choice:
        """What will compute this attention over `num_keys` tokens, as many queries, and why."""
        meta = torch.device("meta")  # no mask is made, it is only asked whether there is one
        is_patterned = self.pattern is not None and self.pattern.allowed(num_keys, num_keys, meta) is not None
        return kernels.choose(
            device_type=device.type,
            dtype=dtype,
            num_queries=num_keys,
            num_keys=num_keys,
            causal=causal,
            hides=padded or is_patterned,
            is_padding=padded and not is_patterned and not self.is_biased and self.soft_cap is None,
            preference=self.preference,
            biased=self.is_biased,
            learns_bias=self.positional is not None and self.positional.learns_bias,
            capped=self.soft_cap is not None,
            dropout_probability=self.dropout if training else 0.0,
            with_gradient=training,
        )


@contextmanager
def recording_attention(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Attention weights of the forward passes made inside, by the name of the module.

    Names are those of `named_modules` without list words: "encoder.0.self",
    "decoder.2.cross". Weights are weights_BHTS in float32 and come from the
    exact path; outside the block nothing changes, so that training keeps its
    fused kernels. A module that runs twice keeps its last weights.
    """
    recorded: dict[str, Tensor] = {}
    attentions = {n: m for n, m in model.named_modules() if isinstance(m, MultiHeadAttention)}

    def recorder(name: str) -> Callable[[Tensor], None]:
        return lambda weights_BHTS: recorded.__setitem__(name, weights_BHTS.cpu())

    try:
        for name, module in attentions.items():
            module.recorder = recorder(name.replace(".blocks", "").replace("_attention", ""))
        with torch.no_grad():
            yield recorded
    finally:
        for module in attentions.values():
            module.recorder = None


def prefer_kernel(model: nn.Module, preference: kernels.Preference) -> None:
    """Every attention of `model` takes its kernel by `preference`."""
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.preference = preference
