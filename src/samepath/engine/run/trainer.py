"""A model being trained, as a person's own loop holds it: data, steps, evaluation, checkpoints.

In: what `Session.prepare` was given. Out: batches, steps (see step/step.py), metrics, files.
Guaranteed: the same bits on every worker and for every worker count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader, IterableDataset

from samepath.data import Loaders, Source, as_source
from samepath.data.given import LoaderParts, as_given, take_apart
from samepath.data.sources import Data
from samepath.engine.run.evaluation import evaluate
from samepath.engine.state.checkpoint import resume, save
from samepath.engine.state.state import digest, refuse_unsavable, state_of
from samepath.engine.step.grain_loader import GrainLoader
from samepath.engine.step.pending import PendingBatch
from samepath.engine.step.settings import WorkerBatch
from samepath.engine.step.step import Stepper
from samepath.errors import UserError
from samepath.plan import Batch, Plan, WeightedSampler
from samepath.recipe import sampled


class Trainer(Stepper):
    """A model being trained. Made by `Session.prepare`."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        refuse_unsavable(self.extra)

    # ---- data

    def source(self, data: Data | DataLoader[Any]) -> Source:
        """Any data as a source with this trainer's seed and loader settings."""
        parts = self._taken(data, "valid") if isinstance(data, DataLoader) else None
        return self._source(data, parts)

    def training_source(self, data: Data | DataLoader[Any]) -> Source:
        """Training data as a source, from which the sampler draws, if there is one."""
        sampler, parts = self.settings.sampler, None
        if isinstance(data, DataLoader):
            parts = self._taken(data, "train")
            for name in ("batch_size", "drop_last"):
                here, there = getattr(self.settings, name), getattr(parts, name)
                if here != there:
                    raise UserError(
                        f"prepare() was given {name}={here}, and the DataLoader has {there}; give "
                        "the same to both"
                    )
            if parts.sampling is not None:
                if sampler is not None:
                    raise UserError(
                        "prepare() and the DataLoader have a sampler each; give it to one of them"
                    )
                sampler = WeightedSampler(*parts.sampling)
        return sampled(self._source(data, parts), sampler, seed=self.settings.seed)

    def _source(self, data: Any, parts: LoaderParts | None) -> Source:
        given, group = self.settings, self.collective
        collate, num_loaders = given.collate, given.loader_workers
        if parts is not None:
            data, num_loaders = parts.data, max(num_loaders, parts.loader_workers)
            collate = collate or parts.collate
        elif isinstance(data, IterableDataset):
            data = self._once(data, as_given)
        is_cuda = group.device.type == "cuda"
        loaders = Loaders(num_loaders, torch.get_num_threads(), group.timeout_seconds, is_cuda)
        return as_source(data, seed=given.seed, loaders=loaders, collate=collate)

    def _taken(self, loader: DataLoader[Any], split: Literal["train", "valid"]) -> LoaderParts:
        taken: LoaderParts = self._once(loader, partial(take_apart, split=split), split)
        return taken

    def _once(self, data: Any, make: Callable[[Any], Any], split: str = "") -> Any:
        """Make something of data once, and not in every epoch: a stream is read for it."""
        known: dict[tuple[int, str], tuple[Any, Any]] = vars(self).setdefault("_made_of", {})
        if (id(data), split) not in known:
            known[id(data), split] = data, make(data)
        return known[id(data), split][1]

    def plan(self, source: Source, batch_size: int | None = None) -> Plan:
        size, grain = batch_size or self.settings.batch_size, self.settings.grain_size
        return Plan(
            num_examples=len(source),
            batch_size=size,
            grain_size=min(grain, size) if batch_size else grain,
            seed=self.settings.seed,
            drop_last=self.settings.drop_last,
        )

    def batches(self, data: Data | DataLoader[Any], epoch: int) -> Iterator[WorkerBatch]:
        """The batches of one epoch that have not been trained on yet."""
        source = self.training_source(data)
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
    ) -> Iterator[WorkerBatch]:
        """The batches `first` to `stop` of the plan, each with this worker's grains.

        `batch_size` is another than the settings' for a stretch of epochs; the first batch is then
        the run's step `begin`, not `first`."""
        plan = self.plan(source, batch_size)
        ahead = 0 if begin is None else begin - first

        def batch(step: int) -> Batch:
            return replace(plan.batch(step - ahead), step=step)

        loader = GrainLoader(source, batch, stop + ahead, self.grains_of)
        for step in range(first + ahead, stop + ahead):
            yield WorkerBatch(batch(step), loader)

    # ---- without an update

    def compute(self, given: WorkerBatch) -> PendingBatch:
        """Compute a batch without its update: its gradient, and the model's buffers as they are
        after it (for a worker of a parameter server)."""
        computed = self._compute(given)
        self._merge_buffers(computed)
        return computed

    def gradient(self, source: Source, batch: Batch) -> float:
        """Leave the gradient of any batch in `.grad`; returns its loss. Changes nothing else."""
        self.settle()
        loader = GrainLoader(source, lambda _: batch, batch.step + 1, self.grains_of)
        computed = self._compute(WorkerBatch(batch, loader), only_look=True)
        computed.assign(list(self.model.parameters()))
        if self.scaling is not None:
            gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
            torch._foreach_div_(gradients, self.scaling.value)
        self._replicas.put_back()
        self.seed_between_steps()
        return computed.know().loss

    def evaluate(self, data: Data | DataLoader[Any]) -> dict[str, float]:
        """Means over validation data, the same bits at every worker count."""
        self.settle()
        metrics = evaluate(self, self.source(data))
        self.observe("evaluate", metrics)
        return metrics

    # ---- state

    def digest(self) -> str:
        """SHA-256 of weights, buffers and optimizer state: equal digests, equal training."""
        self.settle()
        return digest(state_of(self))

    def save(self, folder: str | Path) -> None:
        """Write a checkpoint (call it on every worker; worker 0 writes)."""
        self._refuse_unknown_schedule()
        self.compare_replicas("when it is saved")
        if self.collective.worker == 0:
            progress = {"settings": self.settings.shaping(), "words": self.words}
            save(Path(folder), state_of(self), progress)
        self.collective.agree(True)  # no worker goes on, or resumes, before it is there

    def resume(self, folder: str | Path) -> bool:
        """Go on from the newest good checkpoint, at any worker count; False if there is none.
        UserError where the trainer was prepared with settings that lead elsewhere.

        `batches` then skips what has been trained on."""
        self._refuse_unknown_schedule()
        frozen = [(n, p) for n, p in self.model.named_parameters() if not p.requires_grad]
        found = resume(self, Path(folder), self.warn)
        if found is not None:
            self.settings.refuse_changes(found.progress.get("settings", {}))
            self.words = tuple(found.progress.get("words", ()))  # the path that it goes on with
        for name, parameter in frozen:
            if parameter.requires_grad:
                self.warn(f"{name!r} is trained, as when it was saved; freeze it after resume")
                break
        self.seed_between_steps()
        self.observe("resume", None)
        return found is not None

    def _refuse_unknown_schedule(self) -> None:
        """Raise for a schedule that only the script knows: its place would not be saved."""
        if self.schedule is None and hasattr(self.optimizer.step, "_wrapped_by_lr_sched"):
            raise UserError(
                "the optimizer has a learning rate schedule that this trainer does not know, so "
                "that its place would be lost on resume; give it to prepare(schedule=..., "
                "schedule_every='epoch') (you may still call its step() yourself, in place of "
                "trainer.end_epoch())"
            )
