"""Where a loss or gradient stopped being finite: the update is computed once more, and looked at."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from headloom.training.compilation import nothing_compiled
from headloom.training.engine import CountedBatch
from headloom.training.guard import Trouble, Watched
from headloom.training.trainer import Trainer

logger = logging.getLogger(__name__)

NOTHING = "computed again, everything is finite"
NOTHING_FORWARD = "computed again, every output and the loss are finite; gradients of a rank alone are not looked at"
MAX_TEXTS = 32
"""Texts of a batch that the log shows."""


def explain(trainer: Trainer, trouble: Trouble, describe: Callable[[CountedBatch], Sequence[str]]) -> str:
    """What went wrong and where, in a line. The texts it was met in go to the log."""
    cause, batches = find_cause(trainer, trouble.watched)
    own = [text for batch in batches for text in describe(batch)]
    findings = trainer.engine.ranks.gathered((cause, own))
    cause = next((found for found, _ in findings if found not in (NOTHING, NOTHING_FORWARD)), cause)
    texts = [text for found, texts in findings for text in texts if found == cause]
    for text in texts[:MAX_TEXTS]:
        logger.warning("in the batch: %s", text)
    if len(texts) > MAX_TEXTS:
        logger.warning("in the batch: %d more", len(texts) - MAX_TEXTS)
    return f"step {trouble.watched.step}: {trouble.what}; {cause}"


def find_cause(trainer: Trainer, watched: Watched) -> tuple[str, list[CountedBatch]]:
    """The first thing that is not finite, in words, and the batches it is met in.

    The batches of the update are computed with the random numbers it had, those of this rank. Weights, gradients and
    generators are afterwards as they were before. Of several ranks all call it together.
    """
    with nothing_compiled(), nullcontext() if trainer.engine.can_look_again else trainer.engine.evaluating():
        return _found(trainer, watched)


def _found(trainer: Trainer, watched: Watched) -> tuple[str, list[CountedBatch]]:
    for name, parameter in trainer.model.named_parameters():
        if not parameter.isfinite().all():
            return f"the weight {name} is not finite", list(watched.batches)
    found: dict[str, list[CountedBatch]] = {}
    with _same_random_numbers(trainer.device, watched):
        for batch in watched.batches:
            if batch.num_targets:
                cause = _cause(trainer, batch)
                if cause is not None:
                    found.setdefault(cause, []).append(batch)
    trainer.optimizer.zero_grad(set_to_none=True)
    for cause, batches in found.items():
        return cause, batches
    return NOTHING if trainer.engine.can_look_again else NOTHING_FORWARD, list(watched.batches)


def _cause(trainer: Trainer, batch: CountedBatch) -> str | None:
    trainer.optimizer.zero_grad(set_to_none=True)
    dtype = trainer.autocast_dtype
    can_differentiate = trainer.engine.can_look_again
    with (
        torch.set_grad_enabled(can_differentiate),
        _first_output(trainer.model, lambda out: not out.isfinite().all()) as module,
        torch.autocast(trainer.device.type, dtype, enabled=dtype is not None),
    ):
        loss = trainer.task.loss_sum(trainer.model, batch.to(trainer.device)).loss
    if module:
        return f"the first output that is not finite is that of {module[0]}"
    if not loss.isfinite():
        return "every output of the model is finite, the loss is not"
    if not can_differentiate:
        return None
    loss.backward()  # type: ignore[no-untyped-call]
    # The backward pass goes from the last to the first.
    for name, parameter in reversed(list(trainer.model.named_parameters())):
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            return f"the loss is finite, the gradient of {name} is not"
    return None


@contextmanager
def _first_output(model: nn.Module, is_wrong: Callable[[Tensor], Tensor | bool]) -> Iterator[list[str]]:
    """Names of modules, in the order they end, whose output holds a tensor that `is_wrong`; children before parents."""
    names: list[str] = []

    def watch(name: str) -> Callable[[nn.Module, object, object], None]:
        def look(module: nn.Module, inputs: object, output: object) -> None:
            floats = (leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point())
            if any(is_wrong(leaf) for leaf in floats):
                names.append(name)

        return look

    handles = [
        module.register_forward_hook(watch(name or type(model).__name__)) for name, module in model.named_modules()
    ]
    try:
        yield names
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _same_random_numbers(device: torch.device, watched: Watched) -> Iterator[None]:
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        host, accelerator = watched.random
        torch.set_rng_state(host)
        if accelerator is not None:
            torch.cuda.set_rng_state(accelerator, device)
        yield
