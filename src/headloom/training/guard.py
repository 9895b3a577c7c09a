"""When training goes wrong: noticed without waiting for the device, explained, and met as the run was told.

Three things are noticed. A gradient that is not finite; the trainer has then
changed no weight. A loss that has left its course: more than `spike_deviations`
robust standard deviations above the median of the updates before (median and
median absolute deviation: Iglewicz and Hoaglin 1993, "How to Detect and Handle
Outliers", section 3.2), and by no less than SPIKE_RISE_NATS. And a perplexity
above the number of words to choose from, which guessing would beat.
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from headloom.nn.evaluating import evaluating_in
from headloom.training.engine import CountedBatch
from headloom.training.trainer import StepReport, Trainer

WINDOW = 128
"""Updates whose losses are remembered."""
FEWEST = 64
"""Fewer remembered losses show no course."""
SPIKE_RISE_NATS = 0.5
SPIKE_UPDATES = 8
"""A single hard batch is no spike: so many updates in a row are."""
MAX_SKIPPED = 10
"""Updates in a row that may be skipped; more are no accident."""
MAX_ROLLBACKS = 10
"""In a whole run."""
GRACE_STEPS = 1000
"""Updates until the perplexity has to be below the number of words."""
GUESSING_MARGIN = 1.05


class OnDivergence(Enum):
    """What is done about an update that went wrong."""

    stop = "stop"
    skip = "skip"
    rollback = "rollback"


@dataclass(frozen=True)
class Watched:
    """An update, with what it takes to look at it again."""

    step: int
    """Updates made before it."""
    report: StepReport
    batches: Sequence[CountedBatch]
    random: tuple[Tensor, Tensor | None]
    is_finite: "_Later"


@dataclass(frozen=True)
class Trouble:
    """What went wrong, in which update."""

    what: str
    watched: Watched
    can_go_on: bool
    """Whether leaving the update out, or going back, can help."""


class Guard:
    """Watches the updates of one trainer.

    `spike_deviations` None: losses may go where they like.
    """

    def __init__(self, trainer: Trainer, policy: OnDivergence, *, spike_deviations: float | None) -> None:
        self.policy = policy
        self.num_rollbacks = 0
        self._trainer = trainer
        self._spike_deviations = spike_deviations
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._num_spiking = 0
        self._num_skipped = 0
        self._unknown: deque[Watched] = deque()
        self._unread: list[Watched] = []
        self._last: Watched | None = None
        # Of the updates that were read since a perplexity was last looked at.
        self._newest: Watched | None = None
        self._nll = 0.0
        self._num_targets = 0

    def before_update(self) -> tuple[Tensor, Tensor | None]:
        """What `watch` wants to know: the state of the generators that the model draws from."""
        if self.policy is OnDivergence.skip:
            self._trainer.max_loss = self._limit()
        device = self._trainer.device
        return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def watch(
        self, step: int, report: StepReport, batches: Sequence[CountedBatch], random: tuple[Tensor, Tensor | None]
    ) -> None:
        """Take note of an update."""
        if report.skipped and not report.diverged:
            return
        watched = Watched(step, report, batches, random, _Later(report.grad_norm.isfinite()))
        self._unknown.append(watched)
        if not report.diverged:
            self._num_skipped = 0
            self._last = watched

    def trouble(self, *, wait: bool) -> Trouble | None:
        """The first thing that went wrong, as far as is known. With `wait` all is known, and losses are looked at.

        Of several ranks one may know earlier than another, and they must act alike: those learn it with `wait`.

        A trainer that waits has its losses looked at in every update: the limit for the next one, and the update at
        which a spike is met, are then the same however often the run is recorded, validated, saved or stopped.
        """
        ranks = self._trainer.engine.ranks
        reads = wait or self._trainer.waits
        if ranks.world_size > 1 and not reads:
            return None
        while self._unknown and (reads or self._unknown[0].is_finite.is_known()):
            watched = self._unknown.popleft()
            if watched.report.diverged or not watched.is_finite.value():
                self._unread.clear()
                return Trouble(_numbers(watched.report), watched, can_go_on=True)
            # The batches are not needed any more; the loss is, and read with those of others at once.
            self._unread.append(watched)
        if not reads:
            return None
        unread, self._unread = self._unread, []
        sums = torch.stack([torch.stack((w.report.loss, w.report.nll)) for w in unread]).tolist() if unread else []
        for watched, (loss, nll) in zip(unread, sums, strict=True):
            self._nll += nll
            self._num_targets += watched.report.num_targets
            self._newest = watched
            if self._is_spike(loss / watched.report.num_targets):
                return Trouble(f"{SPIKE_UPDATES} losses in a row far above the others", watched, can_go_on=True)
        return self._worse_than_guessing() if wait else None

    def unfit_weights(self) -> Trouble | None:
        """That the newest update left weights which give its batches no finite loss; all ranks ask together.

        Its own loss, and its gradient, were from before it: a rate that is far too high shows in the next one only. A
        checkpoint of such weights would take the place of a good one.
        """
        last, trainer = self._last, self._trainer
        if last is None:
            return None
        loss = torch.zeros((), dtype=torch.float64, device=trainer.device)
        with trainer.engine.evaluating(), evaluating_in(trainer.model, trainer.device, trainer.autocast_dtype):
            for batch in last.batches:
                if batch.num_targets:
                    loss += trainer.task.loss_sum(trainer.model, batch.to(trainer.device)).loss
        trainer.engine.ranks.add_up(loss)
        if loss.isfinite():
            return None
        return Trouble(f"the weights that it left give its batch a loss of {loss.item():.4g}", last, can_go_on=True)

    def _worse_than_guessing(self) -> Trouble | None:
        """Looked at for all updates since the last look together: a single one may be hard."""
        newest, self._newest = self._newest, None
        if newest is None:
            return None
        nll, self._nll = self._nll / self._num_targets, 0.0
        self._num_targets = 0
        num_choices = self._trainer.engine.ranks.all_max(newest.report.num_choices)  # a rank without a batch knows none
        if newest.step < GRACE_STEPS or not num_choices or nll <= math.log(GUESSING_MARGIN * num_choices):
            return None
        what = f"perplexity {math.exp(min(nll, 700.0)):.4g}, where guessing has {num_choices}"
        return Trouble(what, newest, can_go_on=False)

    def may_skip(self) -> bool:
        """Count an update that is left out; False where there were too many in a row."""
        self._num_skipped += 1
        return self._num_skipped <= MAX_SKIPPED

    def rolled_back(self, state: Mapping[str, Any]) -> None:
        """The run goes on from a checkpoint whose `state()` was this."""
        num_rollbacks = self.num_rollbacks + 1
        self.load_state(state)
        self.num_rollbacks = num_rollbacks
        self._unknown.clear()
        self._unread.clear()
        self._last = None
        self._newest, self._nll, self._num_targets = None, 0.0, 0

    def state(self) -> dict[str, Any]:
        """What the guard knows, when everything has been read."""
        return {
            "losses": list(self._losses),
            "num_spiking": self._num_spiking,
            "num_skipped": self._num_skipped,
            "num_rollbacks": self.num_rollbacks,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._losses = deque(state["losses"], maxlen=WINDOW)
        self._num_spiking, self._num_skipped = state["num_spiking"], state["num_skipped"]
        self.num_rollbacks = state["num_rollbacks"]

    def _limit(self) -> float:
        """The loss above which an update is out of its course."""
        if self._spike_deviations is None or len(self._losses) < FEWEST:
            return math.inf
        median = statistics.median(self._losses)
        deviation = 1.4826 * statistics.median(abs(loss - median) for loss in self._losses)  # of a normal distribution
        return median + max(SPIKE_RISE_NATS, self._spike_deviations * deviation)

    def _is_spike(self, loss: float) -> bool:
        if loss > self._limit():
            self._num_spiking += 1
            return self._num_spiking >= SPIKE_UPDATES
        self._num_spiking = 0
        self._losses.append(loss)
        return False


class _Later:
    """A truth on a device, known without waiting for it."""

    def __init__(self, truth: Tensor) -> None:
        self._truth = truth.to("cpu", non_blocking=True)
        self._copied: torch.cuda.Event | None = None
        if truth.device.type == "cuda":
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def is_known(self) -> bool:
        return self._copied is None or bool(self._copied.query())  # type: ignore[no-untyped-call]

    def value(self) -> bool:
        """Waits where it is not known yet."""
        if self._copied is not None:
            self._copied.synchronize()
        return bool(self._truth)


def _numbers(report: StepReport) -> str:
    return f"loss {report.loss.item() / report.num_targets:.4g}, gradient norm {report.grad_norm.item():.4g}"
