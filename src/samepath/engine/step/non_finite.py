"""Suspects for numbers that are not finite.

In: a batch whose loss or gradient came out NaN or infinite. Out: the workers that may have computed
it wrongly. Broken memory, a processor or a GPU that is failing make one worker's numbers wrong; a
path that diverges is the same on every worker (`Stepper` computes the batch again to find out).
"""

from __future__ import annotations

import math

from samepath.engine.step.pending import PendingBatch


def suspects(first: PendingBatch) -> tuple[list[int], bool]:
    """Workers that may be at fault, and whether it is known that they are: a gradient does not say
    whose grain it comes from, so that all are left out in turn."""
    assert first.division is not None
    runs, losses = first.division.reduction.runs, first.know().grain_losses
    busy = [worker for worker, run in enumerate(runs) if run]
    found = [w for w in busy if not all(math.isfinite(losses[grain]) for grain in runs[w])]
    return found or busy, bool(found)
