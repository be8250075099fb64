"""One step after another: grains, sums, update.

In: a collective, a model, an optimizer and a loss; batches of a plan. Out: the model after each
step, and what the step was like. Guaranteed: everything a step computes, its result included, is
the same bits on every worker and for every worker count (with `exact`, the default).
"""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samepath.data import Loaders, Source, as_source, seed_everything
from samepath.data.sources import Data
from samepath.engine.checks.refuse import modules_outside, refuse_outside, refuse_unsupported
from samepath.engine.checks.replicas import LeftAlone, Replicas, is_due
from samepath.engine.checks.start_check import compare_workers, refuse_other_start
from samepath.engine.comm.collective import Collective
from samepath.engine.elastic.recover import resume_own_loop
from samepath.engine.elastic.step_memory import StepMemory
from samepath.engine.run.evaluation import evaluate
from samepath.engine.state.checkpoint import save
from samepath.engine.state.state import digest, state_of
from samepath.engine.step.balance import Speeds, Stopwatch, Told
from samepath.engine.step.buffers import BufferMerge
from samepath.engine.step.grain import compute_grain, weigh
from samepath.engine.step.grain_loader import Feed, Mine
from samepath.engine.step.noise_scale import is_measured, sample
from samepath.engine.step.non_finite import second_opinion
from samepath.engine.step.pending import SumPool, Underway
from samepath.engine.step.record import pack
from samepath.engine.step.settings import Pace, Settings, Share, StepResult
from samepath.engine.step.update import advance_epoch, clip_gradient, update
from samepath.errors import Diverged, UserError
from samepath.keys import key
from samepath.plan import Batch, Division, Plan, divide
from samepath.strategies import Adversarial

SYNCHRONOUS = Pace()


def _unwatched(point: str, grain: int, value: Any) -> None:
    """Nobody looks."""


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)


class Trainer:
    """A model being trained. Made by `Session.prepare`."""

    def __init__(
        self,
        collective: Collective,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Callable[[nn.Module, Any], Tensor],
        settings: Settings,
        schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
    ) -> None:
        refuse_unsupported(model, optimizer)
        self.collective = collective
        self.model = model
        self.optimizer = optimizer
        self.loss = loss
        self.settings = settings
        self.schedule = schedule
        self.step_number = 0
        self.watch: Callable[[str, int, Any], None] = _unwatched
        """Told (point, grain, value) at fixed points of every grain; `verify` looks in here."""
        self.keeps: StepMemory | None = None
        self.underway: deque[Underway] = deque()
        """Batches that have been computed and not been applied: as many as the lag."""
        self.speeds = Speeds()  # which decide who has how many grains
        self.without: int | None = None
        """A worker that gets no grains (see second_opinion)."""
        self.doubt: Callable[[str], None] = _warn
        """Told what a person should look into."""
        self._doubted: set[str] = set()
        self._follows = settings.follow_speed and settings.exact and collective.num_workers > 1
        self._step_seconds = 0.0
        self._sums = SumPool(collective, exact=settings.exact)
        self._buffers = BufferMerge(collective, model, exact=settings.exact)
        self._replicas = Replicas(collective, model)
        self._is_new = True
        """No step has been computed yet, in this process."""
        self._outside = modules_outside(loss, model)
        if settings.compare_workers:
            refuse_other_start(self)

    # ---- data

    def source(self, data: Data) -> Source:
        """Any data as a source with this trainer's seed and loader settings."""
        given, group = self.settings, self.collective
        return as_source(
            data,
            seed=given.seed,
            loaders=Loaders(given.loader_workers, torch.get_num_threads(), group.timeout_seconds),
            collate=given.collate,
            pin_memory=group.device.type == "cuda",
        )

    def plan(self, source: Source, batch_size: int | None = None) -> Plan:
        size, grain = batch_size or self.settings.batch_size, self.settings.grain_size
        return Plan(
            num_examples=len(source),
            batch_size=size,
            grain_size=min(grain, size) if batch_size else grain,
            seed=self.settings.seed,
            drop_last=self.settings.drop_last,
        )

    def batches(self, data: Data, epoch: int) -> Iterator[Share]:
        """The batches of one epoch that have not been trained on yet."""
        source = self.source(data)
        per_epoch = self.plan(source).steps_per_epoch
        return self.stream(
            source, max(epoch * per_epoch, self.step_number), (epoch + 1) * per_epoch
        )

    def stream(
        self,
        source: Source,
        first: int,
        stop: int,
        *,
        batch_size: int | None = None,
        begin: int | None = None,
    ) -> Iterator[Share]:
        """The batches `first` to `stop` of the plan, each with this worker's grains.

        `batch_size` is another than the settings' for a stretch of epochs; the first batch is then
        the run's step `begin`, not `first`."""
        plan = self.plan(source, batch_size)
        ahead = 0 if begin is None else begin - first

        def batch(step: int) -> Batch:
            return replace(plan.batch(step - ahead), step=step)

        feed = Feed(source, batch, stop + ahead, self._mine)
        for step in range(first + ahead, stop + ahead):
            yield Share(batch(step), feed)

    def _divide(self, batch: Batch, costs: tuple[int, ...]) -> Division:
        num_workers, exact = self.collective.num_workers, self.settings.exact
        return divide(batch, num_workers, exact=exact, costs=costs, without=self.without)

    def _mine(self, batch: Batch) -> Mine:
        """This worker's grains as they are assigned now."""
        return self._divide(batch, self.speeds.costs).grains(self.collective.worker)

    # ---- one step

    def step(self, share: Share, *, stop: bool = False) -> StepResult:
        """One update from one batch. Raises Diverged instead where that is not finite."""
        (result,) = self.advance(share, SYNCHRONOUS, stop=stop)
        return result

    def advance(self, share: Share, pace: Pace, *, stop: bool = False) -> list[StepResult]:
        """Compute one batch, and apply what has waited long enough: with a lag, an earlier batch
        (none at first); without, this one."""
        began = time.perf_counter()
        compares = self.settings.compare_workers
        if self._is_new and compares and isinstance(share.grains, Feed):
            compare_workers(self, share.batch, share.grains)
        outside = LeftAlone(self._outside) if self._is_new else None
        computed = self._compute(share, stop=stop, attack=pace.adversarial)
        self._is_new = False
        if outside is not None:
            refuse_outside(outside)
        if computed.division is not None and not all(computed.division.reduction.runs):
            self._compare(computed)  # weights that a worker without grains takes over
        self.underway.append(computed)
        if pace.lag and self._buffers.names:  # the next batch starts from merged buffers
            self._merge_buffers(computed)
        applied = []
        while len(self.underway) > pace.lag:
            oldest = self.underway.popleft()
            try:
                applied.append(self._apply(oldest, pace))
            except Diverged:
                if self.underway:  # as before this step: a resumed run takes it again
                    self.underway.pop()
                    self.underway.appendleft(oldest)
                    raise
                if oldest is not computed or not (
                    self.settings.exact and isinstance(share.grains, Feed)
                ):
                    raise
                result = second_opinion(
                    self,
                    computed,
                    lambda: self._apply(
                        self._compute(share, stop=stop, attack=pace.adversarial), pace
                    ),
                )
                if result is None:
                    raise
                applied.append(result)
        # a loop may leave a batch out; resumed, it goes on after the last it has taken
        self.step_number = max(self.step_number, share.batch.step) + 1
        self.seed_between_steps()
        self._step_seconds = time.perf_counter() - began
        if computed.facts is not None:
            self._learn(computed)
        return applied

    def _learn(self, underway: Underway) -> None:
        """At places that all workers come to between the same steps, so that they assign alike."""
        if self._follows:
            underway.teach(self.speeds)

    def seed_between_steps(self, after: str = "") -> None:
        """Whatever somebody draws between two steps of a loop of their own: the same numbers on
        every worker, whichever grains it had, and in a run that was resumed there."""
        words = (after,) if after else ()
        seed_everything(key("between steps", self.settings.seed, self.step_number, *words))

    def _compare(self, underway: Underway) -> None:
        """Raise if workers' models were not the same around this batch's grains."""
        if not underway.is_compared:
            underway.is_compared = True
            refuses = self.settings.compare_workers
            self._replicas.compare(underway.step, underway.know().replicas, refuses=refuses)

    def compare_replicas(self, when: str) -> None:
        """Raise if workers' models are not the same now (all workers together)."""
        self.settle()
        if self.settings.compare_workers:
            self._replicas.compare_now(when)

    def settle(self) -> None:
        """Wait for all gradients that are under way (on every worker, before anything that all
        workers do together, or that looks at the state)."""
        for underway in self.underway:
            underway.settle()

    def compute(self, share: Share) -> Underway:
        """A batch without its update: its gradient, and the model's buffers as they are after it
        (what a worker of a parameter server does)."""
        computed = self._compute(share)
        self._merge_buffers(computed)
        return computed

    def gradient(self, source: Source, batch: Batch) -> float:
        """The gradient of any batch, in `.grad`, and its loss; nothing else is changed."""
        self.settle()
        feed = Feed(source, lambda _: batch, batch.step + 1, self._mine)
        computed = self._compute(Share(batch, feed), only_look=True)
        computed.assign(list(self.model.parameters()))
        self._replicas.put_back()
        self.seed_between_steps()
        return computed.know().loss

    def _compute(
        self,
        share: Share,
        *,
        stop: bool = False,
        attack: Adversarial | None = None,
        only_look: bool = False,
    ) -> Underway:
        """All grains of this worker; their sums are on their way. `only_look`: neither buffers nor
        weights are to change."""
        batch, feed = share.batch, share.grains
        division = self._divide(batch, self.speeds.costs if isinstance(feed, Feed) else ())
        mine = division.grains(self.collective.worker)
        if isinstance(feed, Feed):
            feed.turn_to(batch.step, mine)
        gradients = self._sums.free(self.model, self.underway)
        gradients.begin(division.reduction)
        self._buffers.begin(division.reduction)
        busy = Stopwatch()
        data, scales, weight = weigh(self, share, division, mine, busy)
        compares = self.settings.compare_workers and (is_due(batch.step) or self._is_new)
        some_idle = not all(division.reduction.runs)
        self._replicas.begin(check=(compares or some_idle) and not only_look)
        losses = []
        with busy:
            for number, examples in mine.items():
                self._replicas.before_grain()
                loss = compute_grain(
                    self,
                    batch,
                    number,
                    examples,
                    next(data),
                    scales[number],
                    gradients,
                    attack,
                    measure=is_measured(number, division.num_grains),
                )
                self._buffers.after_grain(scales[number])
                self._replicas.after_grain()
                losses.append(loss)
        gradients.launch_rest()
        if not only_look:
            self._buffers.launch()
        with busy:  # a GPU is waited for here
            values = torch.stack(losses).tolist() if losses else []
        whole_grains = sum(map(len, mine.values())) / batch.grain_size
        buffers = self._buffers.record()
        record = pack(
            division,
            values,
            list(scales.values()),
            gradients.squared_norms(),
            gradients.used,
            buffers,
            self._replicas.record(),
            Told(busy.seconds / whole_grains if mine else 0.0, self._step_seconds),
            stop=stop,
        )
        if self.underway:
            self.underway[-1].know()
            self._learn(self.underway[-1])
        return Underway(
            step=batch.step,
            epoch=batch.epoch,
            num_examples=len(batch.examples),
            weight=weight,
            gradients=gradients,
            division=division,
            buffers_bytes=len(buffers),
            end_gather=self.collective.gather_begin(record),
        )

    def _apply(self, underway: Underway, pace: Pace) -> StepResult:
        """One update from a batch that has been computed."""
        if underway.gradients is not None:
            underway.gradients.finish()  # hides the wait for the facts
        facts = underway.know()
        if not math.isfinite(facts.loss):
            raise self._diverged(underway, "loss", facts.loss)
        self._compare(underway)
        if underway.weight and not any(facts.used):
            raise UserError(
                "the loss of a whole batch has no gradient; compute it from the model's parameters "
                "(without detach(), no_grad() or item())"
            )
        underway.assign(list(self.model.parameters()))
        gradient_norm = clip_gradient(self.model, self.settings.clip_norm)
        if not math.isfinite(gradient_norm):
            raise self._diverged(underway, "gradient's norm", gradient_norm)
        if not underway.buffers_merged:
            self._merge_buffers(underway)
        kept = None if self.underway else self.keeps  # not while others are talking
        with nullcontext() if kept is None else kept.around_update(self, pace):
            learning_rate = self.update(pace, step=underway.step)
        for waiting in self.underway:
            waiting.behind += 1
        return StepResult(
            step=underway.step,
            epoch=underway.epoch,
            loss=facts.loss,
            grain_losses=facts.grain_losses,
            gradient_norm=gradient_norm,
            noise=sample(facts.grain_norms, gradient_norm, underway.num_examples),
            learning_rate=learning_rate,
            num_examples=underway.num_examples,
            weight=underway.weight,
            stop=facts.stop,
            staleness=underway.behind,
        )

    def update(self, pace: Pace, *, step: int) -> float:
        """New weights from `.grad`; the learning rate that was used."""
        by_step, seed = self.schedule_by_step, self.settings.seed
        return update(self.optimizer, by_step, pace, seed=seed, step=step)

    @property
    def schedule_by_step(self) -> torch.optim.lr_scheduler.LRScheduler | None:
        return self.schedule if self.settings.schedule_every == "step" else None

    def _merge_buffers(self, underway: Underway) -> None:
        facts = underway.know()
        counts = math.isfinite(facts.loss) and underway.weight > 0
        self._buffers.finish(facts.buffers, keep=counts)
        underway.buffers_merged = True

    def _diverged(self, underway: Underway, what: str, value: float) -> Diverged:
        """What is still being added of the batch is ended: somebody may compute it again."""
        if underway.division is not None and not underway.buffers_merged:
            self._buffers.finish(underway.know().buffers, keep=False)
            underway.buffers_merged = True
        self._replicas.put_back()
        return Diverged(underway.step, what, value)

    def end_epoch(self, valid_loss: float | None = None) -> None:
        """Advance a schedule that goes by epochs."""
        if self.schedule is not None and self.settings.schedule_every == "epoch":
            advance_epoch(self.schedule, valid_loss)

    # ---- evaluation

    def evaluate(self, data: Data) -> dict[str, float]:
        """Means over validation data, the same bits at every worker count."""
        self.settle()
        return evaluate(self, self.source(data))

    # ---- state

    def digest(self) -> str:
        """SHA-256 of weights, buffers and optimizer state: equal digests, equal training."""
        self.settle()
        return digest(state_of(self))

    def save(self, folder: str | Path) -> None:
        """Write a checkpoint (call it on every worker; one writes)."""
        self.compare_replicas("when it is saved")
        if self.collective.worker == 0:
            save(Path(folder), state_of(self), {"settings": self.settings.shaping()})
        self.collective.agree(True)  # nobody goes on, or resumes, before it is there

    def resume(self, folder: str | Path) -> bool:
        """Go on from the newest good checkpoint, at any worker count; False if there is none.

        `batches` then skips what has been trained on."""
        frozen = [(n, p) for n, p in self.model.named_parameters() if not p.requires_grad]
        found = resume_own_loop(self, Path(folder))
        for name, parameter in frozen:
            if parameter.requires_grad:
                self.doubt(f"{name!r} is trained, as when it was saved; freeze it after resume")
                break
        self.seed_between_steps()
        return found

    def doubt_once(self, text: str) -> None:
        if text not in self._doubted:
            self._doubted.add(text)
            self.doubt(text)

    def forward_context(self) -> AbstractContextManager[Any]:
        if self.settings.autocast is None:
            return nullcontext()
        return torch.autocast(self.collective.device.type, dtype=self.settings.autocast)
