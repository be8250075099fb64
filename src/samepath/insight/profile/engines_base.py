"""What an engine is, and the batches that all of them train on.

In: a recipe with its options. Out: for each worker its part of one whole batch after another.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

from torch import nn

from samepath.data import GrainRequest, Loaders, as_source
from samepath.engine.run.options import Options
from samepath.engine.step.settings import WorkerBatch
from samepath.insight.profile.recorder import Recorder
from samepath.plan import Batch, divide
from samepath.recipe import Recipe


class Engine(ABC):
    """A way to train, on one worker."""

    model: nn.Module
    shares: Iterator[WorkerBatch]
    """Whole batches only, one after another, each with what this worker computes of it."""

    @abstractmethod
    def step(self) -> None:
        """One update from the next share."""

    def running(self) -> AbstractContextManager[None]:
        """Around steps that follow one another: between such stretches an engine is at rest."""
        return nullcontext()


def shares_of(
    recipe: Recipe, options: Options, recorder: Recorder, *, worker: int, workers: int, exact: bool
) -> Iterator[WorkerBatch]:
    """An epoch's short last batch is left out: it takes less long, and says nothing of the rest."""
    plan = options.plan
    source = as_source(
        recipe.train,
        seed=options.seed,
        loaders=Loaders(options.loader_workers, options.threads),
        collate=recipe.collate,
    )

    def batches() -> Iterator[Batch]:
        every = map(plan.batch, itertools.count())
        return (batch for batch in every if len(batch.examples) == plan.batch_size)

    requests = (
        GrainRequest(batch.epoch, examples)
        for batch in batches()
        for examples in divide(batch, workers, exact=exact).grains(worker).values()
    )
    grains = recorder.each("load", source.load(requests))
    return (WorkerBatch(batch, grains) for batch in batches())
