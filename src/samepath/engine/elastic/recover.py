"""Where an elastic run goes on: the newest complete step that any of its machines has.

In: a training that is new, the memory of every worker's machine, the folder of worker 0. Out: the
training in the state after that step. Guaranteed: all workers have the same step, bit for bit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from samepath.engine.elastic import step_memory
from samepath.engine.elastic.replay import replay
from samepath.engine.state.checkpoint import SavedStep, resume, share_newest, step_or_none, tell
from samepath.engine.state.state import state_of
from samepath.engine.step.step import Stepper

_STEPS_LINES = 3
"""At most so many lines of metrics belong to one step, which may be computed again."""


def recover(
    trainer: Stepper,
    run_id: str | None,
    checkpoints: Path,
    note: Callable[[str], None],
    *,
    num_lines: Callable[[], int] = lambda: sys.maxsize,
    is_on_disk: Callable[[dict[str, Any]], bool] = lambda progress: True,
) -> SavedStep | None:
    """Put a training where its run stood; None if there is nothing to go on from. Worker 0 says how
    many lines are on disk, and whether a step in memory `is_on_disk` with all else that goes with
    it; it is not used otherwise."""
    collective, start = trainer.collective, state_of(trainer).clone()
    logged = tell(collective, num_lines() if collective.worker == 0 else 0)[0]
    missing = 0

    def is_logged(progress: dict[str, Any]) -> bool:
        nonlocal missing
        lines = int(progress.get("lines", 0))
        missing = max(missing, lines - logged)
        return lines <= logged

    trail = None if run_id is None else step_memory.newest(run_id, is_logged)
    mine = None if trail is None else replay(trainer, trail, note)
    mine = share_newest(collective, mine, tell(collective, step_or_none(mine)))
    missing = max(tell(collective, missing))
    if mine is not None:
        usable = collective.worker != 0 or is_on_disk(mine.progress)
        mine = mine if tell(collective, usable)[0] else None
    if missing > _STEPS_LINES and collective.worker == 0:
        note(f"{missing} lines of metrics were lost on a disk that took none; they come again")
    return resume(trainer, checkpoints, note, start=start, in_memory=mine)
