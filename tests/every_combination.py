"""What every combination of parts must keep, for one model of each family; tests choose the combinations.

Shapes: B batch, S source length, T length, D model width, V vocabulary.
"""

import functools
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headloom.build_labelled import build_classifier
from headloom.build_language import build_language_model
from headloom.build_model import build_model
from headloom.combinations import ATTENTIONS, FEED_FORWARDS, NORMS, POSITIONS, families
from headloom.config import saved
from headloom.config.schema import TrainConfig
from headloom.config.schema_parts import BlockSparseConfig, MoeConfig, WindowConfig
from headloom.config.schema_position import LearnedConfig, RopeConfig, Scaling, T5Config
from headloom.data.tokenizer import ByteTokenizer
from headloom.models.classifier import Classifier
from headloom.models.lm import LanguageModel
from headloom.models.seq2seq import Seq2Seq
from headloom.nn.loss import sequence_loss
from headloom.nn.mixture import MixtureOfExperts, router_loss

V, D, PAD = 11, 16, 0
LENGTH, NUM_REAL = 8, 5
"""Tokens of a row, and how many of them are real where a row is padded; more than the patterns below reach."""

FACTORS: dict[str, Sequence[Any]] = {
    "position": list(POSITIONS),
    "norm": list(NORMS),
    "feed_forward": list(FEED_FORWARDS),
    "attention": list(ATTENTIONS),
    "num_kv_heads": [4, 2, 1],
    "stochastic_depth": [0.0, 0.3],
}


bases = functools.cache(families)


def pairwise(factors: dict[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Combinations that hold every pair of values of two factors, by greed: few, and always the same."""
    names = sorted(factors, key=lambda name: -len(factors[name]))
    missing = {
        ((one, a), (other, b))
        for one, other in itertools.combinations(names, 2)
        for a in factors[one]
        for b in factors[other]
    }
    while missing:
        (one, a), (other, b) = min(missing, key=repr)
        row = {one: a, other: b}
        for name in names:
            if name not in row:
                row[name] = max(factors[name], key=lambda value, name=name: _num_new(row, name, value, names, missing))
        missing -= set(itertools.combinations([(name, row[name]) for name in names], 2))
        yield {name: row[name] for name in factors}


def _num_new(row: dict[str, Any], name: str, value: Any, names: list[str], missing: set[Any]) -> int:
    placed = {**row, name: value}
    pairs = itertools.combinations([(n, placed[n]) for n in names if n in placed], 2)
    return sum(pair in missing for pair in pairs)


def config_of(family: str, choices: dict[str, Any]) -> TrainConfig:
    """The configuration of a combination at the smallest sizes: patterns and buckets that a few tokens pass."""
    base = bases()[family]
    position, feed_forward = POSITIONS[choices["position"]](), FEED_FORWARDS[choices["feed_forward"]]()
    attention = ATTENTIONS[choices["attention"]]()
    match position:
        case LearnedConfig():
            position = LearnedConfig(max_length=max(base.data.max_length, base.decoding.max_length))
        case T5Config():
            position = T5Config(num_buckets=6, max_distance=5)
        case RopeConfig(scaling=Scaling.dynamic_ntk | Scaling.yarn):
            position = replace(position, original_length=4)
    match attention:
        case WindowConfig():
            attention = WindowConfig(width=3)
        case BlockSparseConfig():
            attention = BlockSparseConfig(block=2, num_local=1, num_global=1)
    if isinstance(feed_forward, MoeConfig):
        feed_forward = MoeConfig(num_experts=3, num_chosen=2, capacity_factor=1.0)
    sizes = {"d_model": D, "num_heads": 4, "d_ff": 16, "dropout": 0.0}
    chosen = {name: choices[name] for name in ("num_kv_heads", "stochastic_depth")}
    return replace(
        base,
        model=replace(base.model, **sizes, **chosen, num_layers=2),
        position=position,
        norm=NORMS[choices["norm"]](),
        feed_forward=feed_forward,
        attention=attention,
    )


def build(family: str, config: TrainConfig) -> nn.Module:
    match family:
        case "seq2seq":
            return build_model(config, source_vocab_size=V, target_vocab_size=V)
        case "lm":
            return build_language_model(config, vocab_size=V)
        case "classifier":
            return build_classifier(config, ByteTokenizer(), {"names": ["a", "b", "c"]})
        case _:
            raise AssertionError(f"write here how a tiny model={family} is built and run")


def hidden(model: nn.Module, token_BT: Tensor, allowed_BS: Tensor | None = None) -> Tensor:
    """hidden_BTD of `token`; an encoder-decoder reads the rows backwards as its source, padded where `allowed` says."""
    match model:
        case Seq2Seq():
            source_BS = token_BT if allowed_BS is not None else token_BT.flip(1)
            return model(source_BS, allowed_BS, token_BT, allowed_BS)
        case LanguageModel():
            return model(token_BT, real_BT=allowed_BS)
        case Classifier():
            return model.encoder(token_BT, allowed_BS)
        case _:
            raise AssertionError(type(model))


def loss_of(model: nn.Module, token_BT: Tensor) -> Tensor:
    if isinstance(model, Classifier):
        return F.cross_entropy(model(token_BT, None), torch.tensor([0, 2]), reduction="sum")
    return sequence_loss(hidden(model, token_BT), token_BT.roll(1, 1), model.output_weight, label_smoothing=0.1).loss


@torch.no_grad()
def shaken(model: nn.Module) -> nn.Module:
    """`model` with weights away from zero biases, equal gains and tables of zeros, in evaluation."""
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model.eval()


def check_everything(family: str, choices: dict[str, Any]) -> None:
    """Causality by gradient, padding changes nothing, cached = full, saved = loaded, one update trains."""
    config = config_of(family, choices)
    assert saved.from_plain(saved.to_plain(config)) == config
    torch.manual_seed(1)
    model = shaken(build(family, config).double())
    check_causality(model)
    check_padding(model)
    check_cache(model)
    check_saving(model, lambda: build(family, config).double().eval())
    check_training(model)


def check_causality(model: nn.Module) -> None:
    """B29: the gradient of output t is exactly 0 for every later token, and not for its own."""
    seen: list[Tensor] = []

    def keep_gradient(module: nn.Module, arguments: tuple[Tensor, ...], out: Tensor) -> None:
        out.retain_grad()
        seen.append(out)

    name = {Seq2Seq: "decoder", LanguageModel: "stack", Classifier: "encoder"}[type(model)]
    stack = getattr(model, name)
    handle = stack.embedding.register_forward_hook(keep_gradient)
    hidden(model, torch.randint(1, V, (1, LENGTH)))[0, 3].square().sum().backward()
    handle.remove()
    size_T = seen[-1].grad[0].abs().amax(-1)
    assert size_T[3] > 0
    if not isinstance(model, Classifier):
        assert size_T[4:].max() == 0


@torch.no_grad()
def check_padding(model: nn.Module) -> None:
    """B27: neither padding nor the neighbour in the batch changes a row, in evaluation as in training."""
    token_BT = torch.randint(1, V, (2, LENGTH))
    token_BT[0, NUM_REAL:] = PAD
    real_BT = torch.arange(LENGTH) < torch.tensor([[NUM_REAL], [LENGTH]])
    alone_1TD = hidden(model, token_BT[:1, :NUM_REAL], torch.ones(1, NUM_REAL, dtype=torch.bool))
    torch.testing.assert_close(hidden(model, token_BT, real_BT)[:1, :NUM_REAL], alone_1TD)
    if isinstance(model, Classifier):  # B32
        torch.testing.assert_close(model(token_BT, real_BT)[:1], model(token_BT[:1, :NUM_REAL], None))


@torch.no_grad()
def check_cache(model: nn.Module) -> None:
    """B30: token by token is one full pass."""
    token_BT = torch.randint(1, V, (2, LENGTH))
    match model:
        case Seq2Seq():
            state = model.start(model.encode(token_BT.flip(1), None), None, beam_size=1, max_length=LENGTH)
            steps = [state.step(token_B) for token_B in token_BT.T]
        case LanguageModel():
            prompt = model.start(token_BT[:, :3], max_length=LENGTH)
            steps = [prompt.step(token_B) for token_B in token_BT[:, 3:].T]
        case _:
            return
    logits_BTV = model.logits(hidden(model, token_BT))[:, -len(steps) :]
    torch.testing.assert_close(torch.stack(steps, dim=1), logits_BTV, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def check_saving(model: nn.Module, rebuild: Callable[[], nn.Module]) -> None:
    """B60: what is saved and loaded into a model built anew computes the same numbers."""
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = rebuild()
    other.load_state_dict(torch.load(file, weights_only=True))
    token_BT = torch.randint(1, V, (2, LENGTH))
    assert torch.equal(hidden(other, token_BT), hidden(model, token_BT))


def check_training(model: nn.Module) -> None:
    """Every parameter has a finite gradient, and a short step along it lowers the loss."""
    token_BT = torch.randint(1, V, (2, LENGTH))
    model.zero_grad()
    losses = []
    mixtures = [module for module in model.modules() if isinstance(module, MixtureOfExperts)]
    for _ in range(2):
        torch.manual_seed(2)  # the same rows leave the same layers out
        model.train()
        loss = loss_of(model, token_BT)
        if mixtures:
            loss = loss + router_loss(mixtures)[0]
        losses.append(loss.item())
        if len(losses) == 1:
            loss.backward()
            assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
            norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
            assert norm > 0
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(parameter.grad, alpha=-1e-4 / float(norm))
    assert losses[1] < losses[0]
