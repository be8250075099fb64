"""Finds where an elastic run goes on: at the newest complete step that any of its machines has.

In: a training that is new, the memory of every worker's machine, the folder of worker 0. Out: the
training in the state after that step. Guaranteed: all workers have the same step, bit for bit.
Updates since the last state that was kept are made again from their gradients; where weights are
not those that were updated then (a recipe that changes them behind its optimizer's back), none of
the updates is used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from samepath.engine.elastic import step_memory
from samepath.engine.elastic.ring import Portion
from samepath.engine.elastic.step_memory import Change, Trail, weights_checksum
from samepath.engine.state.checkpoint import SavedStep, resume, share_newest, step_or_none, tell
from samepath.engine.state.state import digest, like, load_state, state_of
from samepath.engine.step.step import Stepper

_STEPS_LINES = 3
"""The most lines of metrics that belong to one step, which may be computed again."""


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


def replay(trainer: Stepper, trail: Trail, note: Callable[[str], None]) -> SavedStep:
    """Make the updates of a trail again: its last step, or its start where that is impossible."""
    if not trail.changes:
        return trail.start
    load_state(trainer, trail.start.state)
    if digest(state_of(trainer)) != digest(trail.start.state):
        return trail.start  # an optimizer that does not take its state back: not for us to judge
    for change in trail.changes:
        if not _has_weights(trainer, change.weights):
            break
        _make_again(trainer, change)
    else:
        if _has_weights(trainer, trail.weights):
            return SavedStep(change.step, state_of(trainer).clone(), trail.progress)
    note(
        f"going on from step {trail.start.step}, not {trail.changes[-1].step}: weights are changed "
        "by something other than the optimizer, whose updates can then not be made again"
    )
    return trail.start


def _has_weights(trainer: Stepper, checksums: Mapping[Portion, int]) -> bool:
    return all(weights_checksum(trainer.model, portion)() == c for portion, c in checksums.items())


def _make_again(trainer: Stepper, change: Change) -> None:
    tensors = change.tensors()
    for name, parameter in trainer.model.named_parameters():
        gradient = tensors.get(f"gradient/{name}")
        parameter.grad = None if gradient is None else like(parameter, gradient)
    for name, buffer in trainer.model.named_buffers():
        buffer.copy_(tensors[f"buffers/{name}"])
    trainer.update(change.choice, step=change.step - 1)
    trainer.optimizer.zero_grad()
    trainer.step_number = change.step
