"""One step after another: grains, sums, update.

In: a collective, a model, an optimizer and a loss; batches of a plan. Out: the model after each
step, and what the step was like. Guaranteed: everything a step computes, its result included, is
the same bits on every worker and for every worker count (with `exact`, the default).
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from samepath.data import Draws, GrainRequest, Source, as_source, seed_everything
from samepath.data.sources import Data
from samepath.engine.adversarial import moved
from samepath.engine.buffers import BufferMerge
from samepath.engine.checkpoint import load_newest, save
from samepath.engine.collective import Collective
from samepath.engine.evaluation import evaluate, to_device
from samepath.engine.gradients import GradientSum
from samepath.engine.noise import is_measured, sample
from samepath.engine.record import pack
from samepath.engine.refuse import refuse_unsupported
from samepath.engine.settings import Pace, Settings, Share, StepResult
from samepath.engine.state import digest, load_state, state_of
from samepath.engine.underway import SumPool, Underway
from samepath.engine.update import advance_epoch, clip_gradient, update
from samepath.errors import Diverged, UserError
from samepath.keys import key
from samepath.plan import Batch, Division, Plan, divide
from samepath.strategies import Adversarial

SYNCHRONOUS = Pace()


def _unwatched(point: str, grain: int, value: Any) -> None:
    """Nobody looks."""


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
        for tensor in (*model.parameters(), *model.buffers()):
            collective.broadcast(tensor.data)  # one model, also when it was made without the seed
        self.underway: deque[Underway] = deque()
        """Batches that have been computed and not been applied: as many as the lag."""
        self._sums = SumPool(collective, exact=settings.exact)
        self._buffers = BufferMerge(collective, model, exact=settings.exact)

    # ---- data

    def source(self, data: Data) -> Source:
        """Any data as a source with this trainer's seed and loader settings."""
        return as_source(
            data,
            seed=self.settings.seed,
            loader_workers=self.settings.loader_workers,
            threads=torch.get_num_threads(),
            collate=self.settings.collate,
            pin_memory=self.collective.device.type == "cuda",
        )

    def plan(self, source: Source, batch_size: int | None = None) -> Plan:
        size = batch_size or self.settings.batch_size
        return Plan(
            num_examples=len(source),
            batch_size=size,
            grain_size=min(self.settings.grain_size, size)
            if batch_size
            else self.settings.grain_size,
            seed=self.settings.seed,
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

        def requests() -> Iterator[GrainRequest]:
            for step in range(first, stop):
                batch = plan.batch(step)
                for grain in self._divide(batch).grains(self.collective.worker).values():
                    yield GrainRequest(batch.epoch, grain)

        grains = source.load(requests())
        for step in range(first, stop):
            yield Share(replace(plan.batch(step), step=step + ahead), grains)

    def _divide(self, batch: Batch) -> Division:
        return divide(batch, self.collective.num_workers, exact=self.settings.exact)

    # ---- one step

    def step(self, share: Share, *, stop: bool = False) -> StepResult:
        """One update from one batch. Raises Diverged instead where that is not finite."""
        (result,) = self.advance(share, SYNCHRONOUS, stop=stop)
        return result

    def advance(self, share: Share, pace: Pace, *, stop: bool = False) -> list[StepResult]:
        """Compute one batch, and apply what has waited long enough: with a lag, an earlier batch
        (none at first); without, this one."""
        computed = self._compute(share, stop=stop, attack=pace.adversarial)
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
        self.step_number += 1
        return applied

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
        mine = self._divide(batch).grains(self.collective.worker).values()
        grains = source.load(GrainRequest(batch.epoch, examples) for examples in mine)
        computed = self._compute(Share(batch, grains), merge_buffers=False)
        computed.assign(self.trained_parameters())
        return computed.know().loss

    def _compute(
        self,
        share: Share,
        *,
        stop: bool = False,
        attack: Adversarial | None = None,
        merge_buffers: bool = True,
    ) -> Underway:
        """All grains of this worker; their sums are on their way."""
        batch = share.batch
        division = self._divide(batch)
        mine = division.grains(self.collective.worker)
        gradients = self._sums.free(self.model, self.underway)
        gradients.begin(division.reduction)
        self._buffers.begin(division.reduction)
        data, scales = self._scales(share, division, mine)
        losses = [
            self._grain(
                batch,
                number,
                examples,
                next(data),
                scales[number],
                gradients,
                attack,
                measure=is_measured(number, division.num_grains),
            )
            for number, examples in mine.items()
        ]
        gradients.launch_rest()
        if merge_buffers:
            self._buffers.launch()
        record = pack(
            division,
            torch.stack(losses).tolist() if losses else [],
            list(scales.values()),
            gradients.squared_norms(),
            gradients.used,
            self._buffers.record(),
            stop=stop,
        )
        if self.underway:
            self.underway[-1].know()
        return Underway(
            step=batch.step,
            epoch=batch.epoch,
            num_examples=len(batch.examples),
            gradients=gradients,
            division=division,
            end_gather=self.collective.gather_begin(record),
        )

    def _apply(self, underway: Underway, pace: Pace) -> StepResult:
        """One update from a batch that has been computed."""
        if underway.gradients is not None:
            underway.gradients.finish()  # hides the wait for the facts
        facts = underway.know()
        if not math.isfinite(facts.loss):
            raise Diverged(underway.step, "loss", facts.loss)
        underway.assign(self.trained_parameters())
        gradient_norm = clip_gradient(self.model, self.settings.clip_norm)
        if not math.isfinite(gradient_norm):
            raise Diverged(underway.step, "gradient's norm", gradient_norm)
        if not underway.buffers_merged:
            self._merge_buffers(underway)
        by_step = self.schedule if self.settings.schedule_every == "step" else None
        learning_rate = update(self.optimizer, by_step, pace)
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
            stop=facts.stop,
            staleness=underway.behind,
        )

    def _merge_buffers(self, underway: Underway) -> None:
        facts = underway.know()
        self._buffers.finish(facts.buffers, keep=math.isfinite(facts.loss))
        underway.buffers_merged = True

    def trained_parameters(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def _scales(
        self, share: Share, division: Division, mine: Mapping[int, NDArray[np.int64]]
    ) -> tuple[Iterator[Any], dict[int, float]]:
        """This worker's grains, and what each counts for in the batch's mean."""
        if self.settings.weight is None:
            total = len(share.batch.examples)
            return share.grains, {n: len(examples) / total for n, examples in mine.items()}
        # The weight of the whole batch must be known before the first backward pass
        if self.underway:
            self.underway[-1].know()
        data = [self._to_device(next(share.grains)) for _ in mine]
        weights = np.zeros(division.most_grains)
        weights[: len(data)] = [float(self.settings.weight(grain)) for grain in data]
        records = self.collective.gather(weights.view(np.uint8))
        batch_weight = math.fsum(w for record in records for w in record.view(np.float64))
        if not math.isfinite(batch_weight) or min(weights, default=0.0) < 0:
            raise UserError(f"weight() gave {weights.tolist()}; weights must be finite and >= 0")
        return iter(data), {
            number: float(weight) / batch_weight if batch_weight else 0.0
            for number, weight in zip(mine, weights, strict=False)
        }

    def _grain(
        self,
        batch: Batch,
        number: int,
        examples: NDArray[np.int64],
        data: Any,
        scale: float,
        gradients: GradientSum,
        attack: Adversarial | None,
        *,
        measure: bool,
    ) -> Tensor:
        """Forward and backward of one grain."""
        data = self._to_device(data)
        self.watch("loaded", number, data)
        self.watch("weight", number, scale)
        seed = self.settings.seed
        seed_everything(key("grain", seed, batch.step, number))
        if self.settings.augment is not None:
            draws = Draws(seed=seed, epoch=batch.epoch, examples=examples)
            data = self.settings.augment(data, draws)
            self.watch("augmented", number, data)
        if attack is not None:
            with self.forward_context():
                data = moved(attack, data, self.model, self.loss)
            seed_everything(key("grain", seed, batch.step, number))
        with self.forward_context():
            loss = self.loss(self.model, data)
        self.watch("loss", number, loss)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shape = f"has shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"is {loss!r}"
            raise UserError(
                f"the loss of a grain {shape}; return a tensor with one number, the mean over its "
                "examples"
            )
        gradients.before_backward(measure=measure)
        if scale:  # a grain that counts for nothing may have no loss to speak of (0 / 0)
            loss.backward(torch.full_like(loss, scale))
        self.watch("done", number, None)
        gradients.after_backward()
        self._buffers.after_grain(scale)
        return loss.detach().reshape(())

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
        self.settle()
        if self.collective.worker == 0:
            save(Path(folder), state_of(self), {})
        self.collective.agree(True)  # nobody goes on, or resumes, before it is there

    def resume(self, folder: str | Path) -> bool:
        """Go on from the newest good checkpoint, at any worker count; False if there is none.

        `batches` then skips what has been trained on."""
        found = load_newest(Path(folder), warnings.warn)
        if found is not None:
            load_state(self, found.state)
        return found is not None

    def forward_context(self) -> AbstractContextManager[Any]:
        if self.settings.autocast is None:
            return nullcontext()
        return torch.autocast(self.collective.device.type, dtype=self.settings.autocast)

    def _to_device(self, data: Any) -> Any:
        return to_device(data, self.collective.device)
