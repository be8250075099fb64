"""A worker's grains of one batch after another, loaded ahead.

In: a source, batches, and a rule that says which of a batch's grains are this worker's. Out: those
grains, in order. Guaranteed: what comes is what the step asks for. Sources load ahead, as far as
they like, by the rule as it is then; a step that finds the rule changed has loading begin anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samepath.data import GrainRequest, Source
from samepath.plan import Batch

Grains = Mapping[int, NDArray[np.int64]]
"""Grains by number: their examples."""


class GrainLoader(Iterator[Any]):
    """Grains of the batches of all steps up to `stop`."""

    def __init__(
        self,
        source: Source,
        batch: Callable[[int], Batch],
        stop: int,
        mine: Callable[[Batch], Grains],
    ) -> None:
        self._source = source
        self._batch = batch
        self._stop = stop
        self._mine = mine
        self._step: int | None = None
        self._left = 0
        self._asked: dict[int, Grains] = {}
        """What the source has been asked for, from the present step on."""
        self._grains: Iterator[Any] = iter(())

    def load(self, requests: Iterable[GrainRequest]) -> Iterator[Any]:
        """Load some grains out of turn."""
        return self._source.load(requests)

    def turn_to(self, step: int, mine: Grains) -> None:
        """Have these grains come next."""
        follows = self._step is not None and step == self._step + 1 and not self._left
        self._step, self._left = step, len(mine)
        self._asked.pop(step - 1, None)
        if not follows or self._asked.setdefault(step, mine).keys() != mine.keys():
            self._grains = iter(())  # ends loader processes before others are started
            self._asked = {step: mine}
            self._grains = self._source.load(self._requests(step))

    def _requests(self, first: int) -> Iterator[GrainRequest]:
        for step in range(first, self._stop):
            assert self._step is not None
            if step < self._step:
                continue  # it had no grains for this worker: nothing was fetched, so nothing asked
            batch = self._batch(step)
            if step not in self._asked:
                self._asked[step] = self._mine(batch)
            for examples in self._asked[step].values():
                yield GrainRequest(batch.epoch, examples)

    def __next__(self) -> Any:
        self._left -= 1
        return next(self._grains)
