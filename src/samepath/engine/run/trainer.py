"""A model being trained, as a person's own loop holds it: data, steps, evaluation, checkpoints.

In: what `Session.prepare` was given. Out: batches, steps (see step/step.py), metrics, files.
Guaranteed: the same bits on every worker and for every worker count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from samepath.data import Loaders, Source, as_source
from samepath.data.sources import Data
from samepath.engine.run.evaluation import evaluate
from samepath.engine.state.checkpoint import resume, save
from samepath.engine.state.state import digest, state_of
from samepath.engine.step.grain_loader import GrainLoader
from samepath.engine.step.pending import PendingBatch
from samepath.engine.step.settings import WorkerBatch
from samepath.engine.step.step import Stepper
from samepath.plan import Batch, Plan


class Trainer(Stepper):
    """A model being trained. Made by `Session.prepare`."""

    # ---- data

    def source(self, data: Data) -> Source:
        """Any data as a source with this trainer's seed and loader settings."""
        given, group = self.settings, self.collective
        is_cuda = group.device.type == "cuda"
        loaders = Loaders(
            given.loader_workers, torch.get_num_threads(), group.timeout_seconds, is_cuda
        )
        return as_source(data, seed=given.seed, loaders=loaders, collate=given.collate)

    def plan(self, source: Source, batch_size: int | None = None) -> Plan:
        size, grain = batch_size or self.settings.batch_size, self.settings.grain_size
        return Plan(
            num_examples=len(source),
            batch_size=size,
            grain_size=min(grain, size) if batch_size else grain,
            seed=self.settings.seed,
            drop_last=self.settings.drop_last,
        )

    def batches(self, data: Data, epoch: int) -> Iterator[WorkerBatch]:
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
        self._replicas.put_back()
        self.seed_between_steps()
        return computed.know().loss

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
        """Write a checkpoint (call it on every worker; worker 0 writes)."""
        self.compare_replicas("when it is saved")
        if self.collective.worker == 0:
            save(Path(folder), state_of(self), {"settings": self.settings.shaping()})
        self.collective.agree(True)  # no worker goes on, or resumes, before it is there

    def resume(self, folder: str | Path) -> bool:
        """Go on from the newest good checkpoint, at any worker count; False if there is none.
        UserError where the trainer was prepared with settings that lead elsewhere.

        `batches` then skips what has been trained on."""
        frozen = [(n, p) for n, p in self.model.named_parameters() if not p.requires_grad]
        found = resume(self, Path(folder), self.warn)
        if found is not None:
            self.settings.refuse_changes(found.progress.get("settings", {}))
        for name, parameter in frozen:
            if parameter.requires_grad:
                self.warn(f"{name!r} is trained, as when it was saved; freeze it after resume")
                break
        self.seed_between_steps()
        return found is not None
