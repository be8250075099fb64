"""One step after another: grains, sums, update.

In: a collective, a model, an optimizer and a loss; batches of a plan. Out: the model after each
step, and what the step was like. Guaranteed: everything a step computes, its result included, is
the same bits on every worker and for every worker count (with `exact`, the default).
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from samepath.data import Draws, GrainRequest, Source, as_source, seed_everything
from samepath.data.sources import Data
from samepath.engine.buffers import BufferMerge
from samepath.engine.checkpoint import load_newest, save
from samepath.engine.collective import Collective
from samepath.engine.evaluation import evaluate, to_device
from samepath.engine.gradients import GradientSum
from samepath.engine.record import pack, unpack
from samepath.engine.refuse import refuse_unsupported
from samepath.engine.state import digest, load_state, state_of
from samepath.errors import Diverged, UserError
from samepath.keys import key
from samepath.plan import Batch, Division, Plan, divide


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a model is trained, apart from its data."""

    batch_size: int
    """Examples of one step."""
    grain_size: int
    """Examples computed at once."""
    seed: int = 0
    """Decides order, dropout and augmentation."""
    exact: bool = True
    """Same bits at every worker count; otherwise each worker computes its whole share at once and
    the path is the same up to rounding."""
    clip_norm: float | None = None
    """Clip gradients to this global norm."""
    weight: Callable[[Any], float] | None = None
    """What a grain counts for, when not its number of examples."""
    augment: Callable[[Any, Draws], Any] | None = None
    """Changes training examples with numbers keyed by (seed, epoch, example)."""
    metrics: Callable[[nn.Module, Any], Mapping[str, Tensor]] | None = None
    """Means by name for validation; the loss alone when not given."""
    autocast: torch.dtype | None = None
    """Run forward passes under torch.autocast with this dtype."""
    schedule_every: Literal["step", "epoch"] = "epoch"
    """When the schedule advances."""
    collate: Callable[[list[Any]], Any] | None = None
    """Makes a batch of a Dataset's items."""
    loader_workers: int = 0
    """Loader processes, for Datasets."""


@dataclass(frozen=True)
class Share:
    """A batch, and this worker's grains of it as they are needed."""

    batch: Batch
    grains: Iterator[Any]


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step was like; the same on every worker."""

    step: int
    epoch: int
    loss: float
    grain_losses: tuple[float, ...]
    gradient_norm: float
    """Of the whole batch's gradient, before clipping."""
    learning_rate: float
    num_examples: int
    stop: bool
    """Some worker was asked to stop."""


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
        self._gradients: GradientSum | None = None
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

    def plan(self, source: Source) -> Plan:
        return Plan(
            num_examples=len(source),
            batch_size=self.settings.batch_size,
            grain_size=self.settings.grain_size,
            seed=self.settings.seed,
        )

    def batches(self, data: Data, epoch: int) -> Iterator[Share]:
        """The batches of one epoch that have not been trained on yet."""
        source = self.source(data)
        per_epoch = self.plan(source).steps_per_epoch
        return self.stream(
            source, max(epoch * per_epoch, self.step_number), (epoch + 1) * per_epoch
        )

    def stream(self, source: Source, first: int, stop: int) -> Iterator[Share]:
        """The batches of steps first to stop, each with this worker's grains."""
        plan = self.plan(source)

        def requests() -> Iterator[GrainRequest]:
            for step in range(first, stop):
                batch = plan.batch(step)
                for grain in self._divide(batch).grains(self.collective.worker).values():
                    yield GrainRequest(batch.epoch, grain)

        grains = source.load(requests())
        for step in range(first, stop):
            yield Share(plan.batch(step), grains)

    def _divide(self, batch: Batch) -> Division:
        return divide(batch, self.collective.num_workers, exact=self.settings.exact)

    # ---- one step

    def step(self, share: Share, *, stop: bool = False) -> StepResult:
        """One update from one batch. Raises Diverged instead where that is not finite."""
        batch = share.batch
        division = self._divide(batch)
        mine = division.grains(self.collective.worker)
        gradients = self._gradient_sum()
        gradients.begin(division.reduction)
        self._buffers.begin(division.reduction)
        data, scales = self._scales(share, division, mine)
        losses = [
            self._grain(batch, number, examples, next(data), scales[number], gradients)
            for number, examples in mine.items()
        ]
        gradients.launch_rest()
        self._buffers.launch()
        record = pack(
            division,
            torch.stack(losses).tolist() if losses else [],
            list(scales.values()),
            gradients.used,
            self._buffers.record(),
            stop=stop,
        )
        end_gather = self.collective.gather_begin(record)
        gradients.finish()
        facts = unpack(division, end_gather(), len(gradients.parameters))
        if not math.isfinite(facts.loss):
            raise Diverged(batch.step, "loss", facts.loss)
        gradients.assign(facts.used)
        gradient_norm = self._clip()
        if not math.isfinite(gradient_norm):
            raise Diverged(batch.step, "gradient's norm", gradient_norm)
        self._buffers.finish(facts.buffers)
        learning_rate = self._update()
        return StepResult(
            step=batch.step,
            epoch=batch.epoch,
            loss=facts.loss,
            grain_losses=facts.grain_losses,
            gradient_norm=gradient_norm,
            learning_rate=learning_rate,
            num_examples=len(batch.examples),
            stop=facts.stop,
        )

    def _gradient_sum(self) -> GradientSum:
        """The sum over the parameters that require gradients now (people freeze and unfreeze)."""
        parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        if self._gradients is not None:
            if list(parameters) == self._gradients.names and all(
                map(operator.is_, parameters.values(), self._gradients.parameters)
            ):
                return self._gradients
            self._gradients.close()
        if not parameters:
            raise UserError("no parameter of the model requires a gradient; unfreeze some")
        self._gradients = GradientSum(self.collective, parameters, exact=self.settings.exact)
        return self._gradients

    def _scales(
        self, share: Share, division: Division, mine: Mapping[int, NDArray[np.int64]]
    ) -> tuple[Iterator[Any], dict[int, float]]:
        """This worker's grains, and what each counts for in the batch's mean."""
        if self.settings.weight is None:
            total = len(share.batch.examples)
            return share.grains, {n: len(examples) / total for n, examples in mine.items()}
        # The weight of the whole batch must be known before the first backward pass
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
        with self.forward_context():
            loss = self.loss(self.model, data)
        self.watch("loss", number, loss)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shape = f"has shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"is {loss!r}"
            raise UserError(
                f"the loss of a grain {shape}; return a tensor with one number, the mean over its "
                "examples"
            )
        gradients.before_backward()
        if scale:  # a grain that counts for nothing may have no loss to speak of (0 / 0)
            loss.backward(torch.full_like(loss, scale))
        self.watch("done", number, None)
        gradients.after_backward()
        self._buffers.after_grain(scale)
        return loss.detach().reshape(())

    def _clip(self) -> float:
        """Clip the gradient if asked to; its norm before."""
        if self.settings.clip_norm is not None:
            parameters = self.model.parameters()
            return float(nn.utils.clip_grad_norm_(parameters, self.settings.clip_norm))
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        return float(nn.utils.get_total_norm(gradients))

    def _update(self) -> float:
        """Update and advance the schedule; the learning rate that was used."""
        learning_rate = float(self.optimizer.param_groups[0]["lr"])
        self.optimizer.step()
        if self.schedule is not None and self.settings.schedule_every == "step":
            self.schedule.step()
        self.step_number += 1
        return learning_rate

    def end_epoch(self, valid_loss: float | None = None) -> None:
        """Advance a schedule that goes by epochs."""
        if self.schedule is None or self.settings.schedule_every != "epoch":
            return
        if isinstance(self.schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
            if valid_loss is None:
                raise UserError("ReduceLROnPlateau needs validation data; give the recipe `valid`")
            self.schedule.step(valid_loss)
        else:
            self.schedule.step()

    # ---- evaluation

    def evaluate(self, data: Data) -> dict[str, float]:
        """Means over validation data, the same bits at every worker count."""
        return evaluate(self, self.source(data))

    # ---- state

    def digest(self) -> str:
        """SHA-256 of weights, buffers and optimizer state: equal digests, equal training."""
        return digest(state_of(self))

    def save(self, folder: str | Path) -> None:
        """Write a checkpoint (call it on every worker; one writes)."""
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
