"""Is it the path that has diverged, or one worker that computes wrongly?

In: a step whose loss or gradient came out NaN or infinite. Out: its result, if other workers find
it finite; None, if they find it as it was. Broken memory, a processor or a GPU that is failing make
one worker's numbers wrong; a path that diverges is the same on every worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from samepath.engine.step.pending import Underway
from samepath.errors import Diverged

if TYPE_CHECKING:
    from samepath.engine.step.settings import StepResult
    from samepath.engine.step.trainer import Trainer


def second_opinion(
    trainer: Trainer, first: Underway, again: Callable[[], StepResult]
) -> StepResult | None:
    """Compute a batch once more, without the worker whose numbers were not finite."""
    suspects, known = _suspects(first)
    for worker in suspects:
        trainer.without = worker if trainer.collective.num_workers > 1 else None
        try:
            result = again()
        except Diverged:
            continue
        finally:
            trainer.without = None
        whose = f"worker {worker}" if known else "some worker"
        trainer.doubt(
            f"{whose} came to numbers that are not finite at step {first.step}, and others do not: "
            "theirs are used; its memory or processor may be failing"
        )
        return result
    return None


def _suspects(first: Underway) -> tuple[list[int], bool]:
    """Workers that may be at fault, and whether it is known that they are: a gradient does not say
    whose grain it comes from, so that all are left out in turn."""
    assert first.division is not None
    runs, losses = first.division.reduction.runs, first.know().grain_losses
    busy = [worker for worker, run in enumerate(runs) if run]
    found = [w for w in busy if not all(math.isfinite(losses[grain]) for grain in runs[w])]
    return found or busy, bool(found)
