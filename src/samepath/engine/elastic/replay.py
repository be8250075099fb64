"""The updates since the last state that was kept, made again.

In: a trainer, a state, and the gradients that came after it. Out: the state after the last of them.
Guaranteed: the same bits. Where weights are not those that were updated then (a recipe that changes
them behind its optimizer's back), none of the updates is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from samepath.engine.elastic.ring import Portion
from samepath.engine.elastic.step_memory import Change, Trail, weights_checksum
from samepath.engine.state.checkpoint import SavedStep
from samepath.engine.state.state import digest, like, load_state, state_of
from samepath.engine.step.step import Stepper


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
