"""One step: this worker's grains, their sum, the update.

In: a collective, a model, an optimizer and a loss; batches of a plan. Out: the model after each
step, and the step's result. Guaranteed: everything a step computes, its result included, is the
same bits on every worker and for every worker count (with `exact`, the default).

`Stepper.advance` is one step. It calls, in this order: `_compute` (for each grain of this worker:
load, augment, forward, backward; the sums are then on their way), and `_apply` (reduce, clip,
update) for the batch whose turn it is.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from samepath.data import Draws, GrainRequest, seed_everything
from samepath.engine.checks.mean_loss import GRAINS, refuse_not_a_mean
from samepath.engine.checks.refuse import (
    modules_outside,
    refuse_outside,
    refuse_own_backward,
    refuse_unsupported,
)
from samepath.engine.checks.replicas import (
    LeftAlone,
    Replicas,
    compare_first_grain,
    is_due,
    refuse_other_start,
    refuse_other_values,
)
from samepath.engine.comm.collective import Collective
from samepath.engine.comm.rows import tensors_in
from samepath.engine.comm.tensors import to_device
from samepath.engine.noise_scale import is_measured, sample
from samepath.engine.step.adversarial import moved
from samepath.engine.step.balance import Balance, Stopwatch, WorkerTimes
from samepath.engine.step.buffers import BufferMerge
from samepath.engine.step.compiled import compiled, settle_compiler
from samepath.engine.step.extra import OwnAttributes, make_extra
from samepath.engine.step.grain_loader import GrainLoader, Grains
from samepath.engine.step.loss_metrics import (
    GrainMetrics,
    MetricNames,
    loss_alone,
    numbers_of,
    split_loss,
)
from samepath.engine.step.pending import GradientSums, PendingBatch
from samepath.engine.step.record import pack
from samepath.engine.step.scaling import LossScaling
from samepath.engine.step.settings import Settings, StepResult, WorkerBatch
from samepath.engine.step.update import advance_epoch, clip_gradient, update
from samepath.engine.step.whole_batch import ReadyGrain, WholeBatch, refuse_other_loss
from samepath.errors import Diverged, UserError
from samepath.keys import Words, key
from samepath.plan import Batch, Division, divide
from samepath.recipe import Loss, WholeBatchLoss
from samepath.strategies import Adversarial, Choice


def _unwatched(point: str, grain: int, value: Any) -> None:
    """Stands for `Stepper.watch` where nothing looks."""


def _unobserved(event: str, value: Any) -> None:
    """Stands for `Stepper.observe` where nothing looks."""


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)


def _of_some_grains(losses: Sequence[float]) -> str:
    """What to say of a batch in which some grains have no loss (0 / 0) and others have one."""
    none = sum(map(math.isnan, losses))
    if not 0 < none < len(losses) or any(map(math.isinf, losses)):
        return ""
    return (
        f". {none} of its {len(losses)} grains, which are computed one at a time, have a loss of "
        "nan, the others have not: where a grain has no label that counts (ignore_index), give "
        "weight= (docs/bring/class-weights.md); where examples must meet (AUC, ranking), give "
        "encode= and batch_loss= (docs/bring/contrastive.md)"
    )


class Stepper:
    """A model in training, and how one step of it is taken."""

    def __init__(
        self,
        collective: Collective,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss,
        settings: Settings,
        schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
        words: Sequence[Words] = (),
    ) -> None:
        refuse_unsupported(model, optimizer)
        self.collective = collective
        self.model = model
        self.optimizer = optimizer
        self.loss = loss
        whole = isinstance(loss, WholeBatchLoss)  # of which encode() is compiled
        self.grain_loss = compiled(loss) if settings.compile and not whole else loss
        """The loss of a grain that is trained on."""
        self.settings = settings
        self.schedule = schedule
        self.words = tuple(words)
        """Beside seed and step, these key the random numbers of steps: trainers of one session meet
        other ones."""
        self.attributes = OwnAttributes(optimizer)
        self.num_groups = len(optimizer.param_groups)
        """The number of groups of parameters at the beginning: people unfreeze some and add a
        group."""
        self.scaling = (
            LossScaling(collective.device) if settings.autocast is torch.float16 else None
        )
        """Scales the loss, with float16."""
        self.extra = make_extra(settings.extra, model)
        """Extra state, by name."""
        self.step_number = 0
        self.pending: deque[PendingBatch] = deque()
        """Batches that are computed and not applied: as many as the lag."""
        self.balance = Balance()
        """Decides how many grains each worker gets."""
        self.watch: Callable[[str, int, Any], None] = _unwatched
        """Told (point, grain, value) at fixed points of every grain; `verify` looks in here."""
        self.observe: Callable[[str, Any], None] = _unobserved
        """Told (event, value) of what a person's own loop does: begin, step, evaluate, resume."""
        self.around_update: Callable[[Choice], AbstractContextManager[None]] | None = None
        """Surrounds every update: an elastic run keeps the gradient in memory there."""
        self.warn: Callable[[str], None] = _warn
        """Told what a person should look into."""
        self._warned: set[str] = set()
        self._balances = settings.follow_speed and settings.exact and collective.num_workers > 1
        self._step_seconds = 0.0
        self._sums = GradientSums(collective, settings)
        self._buffers = BufferMerge(collective, model, exact=settings.exact)
        self._replicas = Replicas(collective, model)
        self._metric_names = MetricNames(collective)
        self.outside = modules_outside(loss, model)
        """Modules that the loss has beside the model."""
        self._whole: WholeBatch | None = None
        if isinstance(loss, WholeBatchLoss):
            self._whole = WholeBatch(
                *(collective, model, loss, settings, self._buffers, self._replicas),
                self.forward_context,
            )
        settle_compiler()  # the model may be compiled too
        self._is_first = True
        """This process has computed no step yet."""
        self.loss_repeats = False
        """The loss was seen to be the same when it is called again, on a copy of the model."""
        if settings.compare_workers:
            refuse_other_start(collective, model, optimizer, settings.shaping(), self._may_differ)
        self.compare_extra("before the first step")

    # ---- one step

    def step(self, given: WorkerBatch, *, stop: bool = False) -> StepResult:
        """Update once from one batch. Raises Diverged instead where that is not finite."""
        self.observe("begin", None)
        (result,) = self.advance(given, Choice(), stop=stop)
        self.observe("step", result)
        return result

    def advance(
        self, given: WorkerBatch, choice: Choice, *, stop: bool = False
    ) -> list[StepResult]:
        """Take one step: compute a batch, and update from the one whose turn it is. Without a lag
        that is the same batch; with one it is an earlier batch, at first none. `stop` is this
        worker's wish to stop, which all workers learn of."""
        began = time.perf_counter()
        if self.scaling is not None:
            self.scaling.refuse(given.batch.step, choice)
        outside = self._before_first_step(given) if self._is_first else None
        computed = self._compute(given, choice.adversarial, stop=stop)
        self._is_first = False
        if outside is not None:
            refuse_outside(outside)
        if computed.some_are_idle:
            self._compare(computed)  # weights that a worker without grains takes over
        self.pending.append(computed)
        changes_buffers = self._buffers.names or self.settings.after_batch is not None
        if choice.lag and changes_buffers:  # the next batch starts from merged ones
            self._merge_buffers(computed)
        results = []
        while len(self.pending) > choice.lag:
            oldest = self.pending.popleft()
            try:
                results.append(self._apply(oldest, choice))
            except Diverged:
                if self.pending:  # as before this step: a resumed run takes it again
                    self.pending.pop()
                    self.pending.appendleft(oldest)
                    raise
                if oldest is not computed:
                    raise
                result = self._second_opinion(given, oldest, choice, stop=stop)
                if result is None:
                    raise
                results.append(result)
        # a loop may leave a batch out; resumed, it goes on after the last it has taken
        self.step_number = max(self.step_number, given.batch.step) + 1
        self.seed_between_steps()
        self._step_seconds = time.perf_counter() - began
        if computed.facts is not None:
            self._learn_times(computed)
        return results

    def _compute(
        self,
        given: WorkerBatch,
        attack: Adversarial | None = None,
        *,
        stop: bool = False,
        only_look: bool = False,
        without: int | None = None,
    ) -> PendingBatch:
        """Forward and backward of this worker's grains; their sums are then on their way.
        `only_look`: neither buffers nor weights change. `without`: a worker that gets no
        grains."""
        batch, collective = given.batch, self.collective
        loads = isinstance(given.grains, GrainLoader)
        division = self._divide(batch, self.balance.costs if loads else (), without)
        mine = division.grains(collective.worker)
        if isinstance(given.grains, GrainLoader):
            given.grains.turn_to(batch.step, mine)
        gradients = self._sums.free(self.model, self.pending)
        gradients.begin(division)
        self._buffers.begin(division.reduction)
        busy = Stopwatch()
        grains, scales, weight = self._weigh(given, division, mine, busy)
        compares = self.settings.compare_workers and (is_due(batch.step) or self._is_first)
        checks = compares or not all(division.reduction.runs)
        self._replicas.begin(check=checks and not only_look)
        factor = 1.0 if self.scaling is None else self.scaling.value
        ready = self._ready(batch, mine, grains, scales, attack)
        num_examples = len(batch.examples)
        losses, told, rows = [], [], None
        if self._whole is not None:  # encodes, gathers, computes one loss, goes back
            if self.pending:
                self.pending[-1].know()  # one gather travels at a time
            loss, rows = self._whole.compute(
                *(batch.step, num_examples, ready, gradients),
                counts=weight > 0,
                busy=busy,
                watch=self.watch,
            )
            losses = [loss.reshape(())] * len(mine)
            ready = iter(())
        with busy:
            for number, examples, data, scale in ready:
                gradients.before_forward()
                measure = is_measured(number, division.num_grains)
                with gradients.factors.of_grain(examples, num_examples):
                    loss, metrics = self._forward(number, data)
                    gradients.backward(loss, scale * factor, measure=measure)
                gradients.after_backward()
                self.watch("factors", number, gradients.rows)
                self.watch("done", number, None)
                self._buffers.after_grain(scale)
                self._replicas.after_grain()
                losses.append(loss.detach().reshape(()))
                told.append(metrics)
        gradients.launch_rest()
        if not only_look:
            self._buffers.launch()
        with busy:  # a GPU is waited for here
            values = torch.stack(losses).tolist() if losses else []
            found = [numbers_of(metrics) for metrics in told]
        whole_grains = sum(map(len, mine.values())) / batch.grain_size
        buffers = self._buffers.record()
        if self.pending:
            self.pending[-1].know()
            self._learn_times(self.pending[-1])
        names = self._metric_names.learn(found)
        record = pack(
            division,
            values,
            list(scales.values()),
            [squared / factor**2 for squared in gradients.squared_norms()],
            gradients.used,
            buffers,
            self._replicas.record(),
            WorkerTimes(busy.seconds / whole_grains if mine else 0.0, self._step_seconds),
            stop=stop,
            metrics=found,
            names=names,
        )
        return PendingBatch(
            step=batch.step,
            epoch=batch.epoch,
            num_examples=num_examples,
            weight=weight,
            is_whole=self._whole is not None,
            rows=rows,
            gradients=gradients,
            division=division,
            buffers_bytes=len(buffers),
            metric_names=names,
            end_gather=collective.gather_begin(record),
        )

    def _ready(
        self,
        batch: Batch,
        mine: Grains,
        grains: Iterator[Any],
        scales: Mapping[int, float],
        attack: Adversarial | None,
    ) -> Iterator[ReadyGrain]:
        """This worker's grains, loaded and augmented, each as it is needed."""
        for number, examples in mine.items():
            self._replicas.before_grain()
            self.watch("examples", number, (batch, examples))
            data, scale = to_device(next(grains), self.collective.device), scales[number]
            self.watch("loaded", number, data)
            self.watch("weight", number, scale)
            data = self._augment(batch, number, examples, data)
            if self.settings.augment is not None:
                self.watch("augmented", number, data)
            if attack is not None:
                data = self._attack(attack, batch, number, data)
            yield ReadyGrain(number, len(examples), data, scale)

    def _augment(self, batch: Batch, number: int, examples: NDArray[np.int64], data: Any) -> Any:
        """Augment a grain. Random numbers are keyed by (seed, step, grain) from here on, so that
        nothing depends on which worker computes it, or after which other grain."""
        settings = self.settings
        self._seed_grain(batch, number)
        if settings.augment is None:
            return data
        draws = Draws(seed=settings.seed, epoch=batch.epoch, examples=examples)
        return settings.augment(data, draws)

    def _attack(self, attack: Adversarial, batch: Batch, number: int, data: Any) -> Any:
        """Make adversarial examples of the first of a grain's examples."""
        if self._whole is not None:
            raise UserError(
                "adversarial training moves examples by their own loss, and this is one of the "
                "whole batch; use a strategy without it"
            )
        with self.forward_context():
            data = moved(attack, data, self.model, lambda *given: loss_alone(self.loss(*given)))
        self._seed_grain(batch, number)
        return data

    def _seed_grain(self, batch: Batch, number: int) -> None:
        seed_everything(key("grain", self.settings.seed, batch.step, number, *self.words))

    def _forward(self, number: int, data: Any) -> tuple[Tensor, GrainMetrics]:
        """Compute a grain's loss, and the metrics that come with it."""
        with self.forward_context():
            loss, metrics = split_loss(self.grain_loss(self.model, data))
        self.watch("loss", number, loss)
        refuse_other_loss(loss, "the loss of a grain")
        return loss, metrics

    def _apply(self, pending: PendingBatch, choice: Choice) -> StepResult:
        """Reduce, clip and update: from a computed batch to new weights."""
        if pending.gradients is not None:
            pending.gradients.wait()  # hides the wait for the facts
        facts = pending.know()
        if not math.isfinite(facts.loss):
            raise self._diverged(pending, "loss", facts.loss, _of_some_grains(facts.grain_losses))
        self._compare(pending)
        if pending.weight and not any(facts.used):
            raise UserError(
                "the loss of a whole batch has no gradient; compute it from the model's parameters "
                "(without detach(), no_grad() or item())"
            )
        pending.assign(list(self.model.parameters()))
        loss_scale = None if self.scaling is None else self.scaling.unscale(self.optimizer)
        gradient_norm = clip_gradient(self.model, self.settings.clip_norm)
        if not math.isfinite(gradient_norm) and self.scaling is None:
            raise self._diverged(pending, "gradient's norm", gradient_norm)
        if not pending.buffers_merged:
            self._merge_buffers(pending)
        around = None if self.pending else self.around_update  # not while batches are travelling
        with nullcontext() if around is None else around(choice):
            learning_rate = self.update(choice, step=pending.step)
        for waiting in self.pending:
            waiting.behind += 1
        return StepResult(
            step=pending.step,
            epoch=pending.epoch,
            loss=facts.loss,
            grain_losses=facts.grain_losses,
            gradient_norm=gradient_norm,
            noise=sample(facts.grain_norms, gradient_norm, pending.num_examples),
            learning_rate=learning_rate,
            num_examples=pending.num_examples,
            weight=pending.weight,
            stop=facts.stop,
            staleness=pending.behind,
            metrics=facts.metrics,
            loss_scale=loss_scale,
            skipped=self.scaling is not None and self.scaling.skipped,
        )

    def update(self, choice: Choice, *, step: int) -> float:
        """Update the weights from `.grad`; returns the learning rate that was used. Random numbers
        (Langevin dynamics) are those of this step."""
        by_step = self.schedule if self.settings.schedule_every == "step" else None
        seed_everything(key("update", self.settings.seed, step, *self.words))
        return update(self.optimizer, by_step, choice, scaling=self.scaling)

    # ---- parts of a step

    def _divide(self, batch: Batch, costs: tuple[int, ...], without: int | None = None) -> Division:
        num_workers, exact = self.collective.num_workers, self.settings.exact
        return divide(batch, num_workers, exact=exact, costs=costs, without=without)

    def grains_of(self, batch: Batch) -> Grains:
        """This worker's grains of a batch as they are assigned now."""
        return self._divide(batch, self.balance.costs).grains(self.collective.worker)

    def _weigh(
        self, given: WorkerBatch, division: Division, mine: Grains, busy: Stopwatch
    ) -> tuple[Iterator[Any], dict[int, float], float]:
        """This worker's grains, the share of each in the batch's mean, and the batch's weight in
        the epoch's mean."""
        weigh, collective = self.settings.weight, self.collective
        if weigh is None:
            total = len(given.batch.examples)
            return given.grains, {n: len(e) / total for n, e in mine.items()}, float(total)
        # The weight of the whole batch must be known before the first backward pass
        if self.pending:
            self.pending[-1].know()
        weights = np.zeros(division.most_grains)
        with busy:
            data = [to_device(next(given.grains), collective.device) for _ in mine]
            weights[: len(data)] = [float(weigh(grain)) for grain in data]
        batch_weight = math.fsum(collective.gather_rows(weights).ravel())
        if not math.isfinite(batch_weight) or min(weights, default=0.0) < 0:
            raise UserError(f"weight() gave {weights.tolist()}; weights must be finite and >= 0")
        scales = {
            number: float(of_grain) / batch_weight if batch_weight else 0.0
            for number, of_grain in zip(mine, weights, strict=False)
        }
        return iter(data), scales, batch_weight

    def _merge_buffers(self, pending: PendingBatch) -> None:
        facts = pending.know()
        counts = math.isfinite(facts.loss) and pending.weight > 0
        self._buffers.finish(facts.buffers, keep=counts)
        pending.buffers_merged = True
        after_batch = self.settings.after_batch
        if counts and after_batch is not None:
            seed_everything(key("after batch", self.settings.seed, pending.step))
            with torch.no_grad():
                after_batch(self.model, pending.rows)
        pending.rows = None

    def _diverged(self, pending: PendingBatch, what: str, value: float, hint: str = "") -> Diverged:
        """End what is still being added of a batch, which may be computed again."""
        if pending.division is not None and not pending.buffers_merged:
            self._buffers.finish(pending.know().buffers, keep=False)
            pending.buffers_merged = True
        self._replicas.put_back()
        return Diverged(pending.step, what, value, hint)

    def _second_opinion(
        self, given: WorkerBatch, first: PendingBatch, choice: Choice, *, stop: bool
    ) -> StepResult | None:
        """Compute a batch that came out NaN or infinite once more, without the worker whose numbers
        they were: if others find it finite, that worker's memory or processor fails; if they do
        not (None), the path has diverged."""
        if not (self.settings.exact and isinstance(given.grains, GrainLoader)):
            return None
        workers, is_known = first.suspects()
        for worker in workers:
            without = worker if self.collective.num_workers > 1 else None
            try:
                again = self._compute(given, choice.adversarial, stop=stop, without=without)
                result = self._apply(again, choice)
            except Diverged:
                continue
            self.warn(
                f"{f'worker {worker}' if is_known else 'some worker'} came to numbers that are not "
                f"finite at step {first.step}, and others do not: theirs are used; its memory or "
                "processor may be failing"
            )
            return result
        return None

    def _learn_times(self, pending: PendingBatch) -> None:
        """Learn the workers' times, at places that all workers come to between the same steps,
        so that they assign alike."""
        if self._balances:
            pending.teach(self.balance)

    def settle(self) -> None:
        """Wait for all gradients that are pending (on every worker, before anything that all
        workers do together, or that looks at the state)."""
        for pending in self.pending:
            pending.settle()

    def seed_between_steps(self, after: str = "") -> None:
        """Give whatever is drawn between two steps of a person's own loop the same numbers on every
        worker, whichever grains it had, and in a run that was resumed there."""
        words = (*self.words, after) if after else self.words
        seed_everything(key("between steps", self.settings.seed, self.step_number, *words))

    def forward_context(self) -> AbstractContextManager[Any]:
        if self.settings.autocast is None:
            return nullcontext()
        return torch.autocast(self.collective.device.type, dtype=self.settings.autocast)

    def end_epoch(self, valid_loss: float | None = None) -> None:
        """Advance a schedule that goes by epochs."""
        if self.schedule is not None and self.settings.schedule_every == "epoch":
            advance_epoch(self.schedule, valid_loss)

    # ---- what is checked on the way

    def _before_first_step(self, given: WorkerBatch) -> LeftAlone:
        """Compare what workers make of the first grain; what the loss holds beside the model is
        returned, to be compared after the step."""
        outside, batch, loader = LeftAlone(self.outside), given.batch, given.grains
        if isinstance(loader, GrainLoader):
            if self.settings.compare_workers:
                compute = partial(self._first_grain, batch, loader)
                compare_first_grain(self.collective, self.model, compute, self._may_differ)
            # once in a run: not where one goes on, nor where each grain is a batch
            if not (batch.step or batch.num_grains == 1 or self._whole or self.settings.i_know):
                self._refuse_not_a_mean(batch, loader)
            outside.put_back()
        return LeftAlone(self.outside)

    def _refuse_not_a_mean(self, batch: Batch, loader: GrainLoader) -> None:
        sizes = [len(batch.grain(number)) for number in range(min(GRAINS, batch.num_grains))]
        grains, weigh = self._load_early(batch, loader, len(sizes)), self.settings.weight
        weights = None if weigh is None else [float(weigh(grain)) for grain in grains]
        why = refuse_not_a_mean(
            *(self.loss, self.model, grains, weights, sizes), self.forward_context
        )
        self.loss_repeats = why is None
        if why is not None and self.collective.worker == 0:
            self.warn(
                f"whether the loss is a mean over examples could not be told ({why}), and the mean "
                "of its grains' losses is trained on. If examples meet in it (contrastive, "
                "ranking, Dice over the batch), give encode= and batch_loss= in place of loss= "
                "(docs/bring/contrastive.md); if not, --i-know (i_know=True in the recipe or "
                "prepare()) leaves this out"
            )

    def _load_early(self, batch: Batch, loader: GrainLoader, count: int) -> list[Any]:
        """Load and augment the first grains of a batch before their turn."""
        examples = [batch.grain(number) for number in range(count)]
        loaded = loader.load([GrainRequest(batch.epoch, each) for each in examples])
        return [
            self._augment(batch, number, examples[number], to_device(data, self.collective.device))
            for number, data in enumerate(loaded)
        ]

    def _first_grain(self, batch: Batch, loader: GrainLoader, copy: nn.Module | None) -> list[Any]:
        """Load a batch's first grain; the copy of the model, if there is one, says its loss and
        gradients."""
        (data,) = self._load_early(batch, loader, 1)
        if copy is None:
            return [data]
        if self._whole is not None:
            encoded = tensors_in(self._whole.encode(copy, data, len(batch.grain(0))))
            torch.autograd.backward([rows.abs().sum() for rows in encoded if rows.requires_grad])
            return [data, encoded, *(p.grad for p in copy.parameters())]
        with self.forward_context():
            loss = loss_alone(self.grain_loss(copy, data))
        refuse_own_backward(dict(copy.named_parameters()))
        if isinstance(loss, Tensor) and loss.requires_grad and loss.numel() == 1:
            loss.backward(torch.ones_like(loss))
        return [data, loss, *(p.grad for p in copy.parameters())]

    def _may_differ(self, text: str) -> None:
        """Another kind of processor was found; an error unless that is allowed."""
        if not self.settings.other_hardware:
            raise UserError(
                f"{text}; use machines of one kind, or add --other-hardware (in your own loop: "
                "prepare(..., other_hardware=True))"
            )
        self.warn(f"{text}, so that the path depends on which of them computes what")

    def _compare(self, pending: PendingBatch) -> None:
        """Raise if workers' models were not the same around this batch's grains."""
        if not pending.is_compared:
            pending.is_compared = True
            refuses = self.settings.compare_workers
            self._replicas.compare(pending.step, pending.know().replicas, refuses=refuses)

    def compare_replicas(self, when: str) -> None:
        """Raise if workers' models are not the same now (all workers together)."""
        self.settle()
        if self.settings.compare_workers:
            self._replicas.compare_now(when)
        self.compare_extra(when)

    def compare_extra(self, when: str) -> None:
        """Raise if workers' extra state is not the same now (all workers together)."""
        if self.settings.compare_workers:
            states = {f"extra[{name!r}]": each.state_dict() for name, each in self.extra.items()}
            refuse_other_values(self.collective, states, when)

    def warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self.warn(text)
