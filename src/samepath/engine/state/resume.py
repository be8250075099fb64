"""Resuming a training: from its newest checkpoint, or a newer step that some worker has.

In: a model in training that is new, the folder of worker 0, and what workers may hold in memory.
Out: it is in the state after that step. Guaranteed: all workers have the same step, bit for bit; a
worker that has nothing gets it from one that has; the folder is read, and tidied, by worker 0
alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor

from samepath.engine.comm.collective import Collective
from samepath.engine.state.checkpoint import list_checkpoints, load_newest, step_of
from samepath.engine.state.state import State, digest, load_state, state_of
from samepath.engine.step.step import Stepper
from samepath.errors import CheckpointDamaged

_NOTHING, _DAMAGED = -1, -2


@dataclass(frozen=True)
class SavedStep:
    """A completed step, read back and checked."""

    step: int
    state: State
    progress: dict[str, Any]
    """What was saved beside the state."""
    from_disk: bool = False
    """It comes from a checkpoint, not from memory."""


def resume(
    trainer: Stepper,
    checkpoints: Path,
    note: Callable[[str], None],
    *,
    start: State | None = None,
    in_memory: SavedStep | None = None,
) -> SavedStep | None:
    """Put a training into its newest checkpoint, or into the step that all workers have
    `in_memory` if that is newer. None if there is neither: then it is at its `start` (its present
    state when not given). All workers together."""
    start = start or state_of(trainer).clone()
    collective, found = trainer.collective, in_memory
    newest = _NOTHING
    if collective.worker == 0:
        there = list_checkpoints(checkpoints)
        if there and step_of(there[-1]) > step_or_none(in_memory):
            saved = load_newest(checkpoints, note, set_aside=True)
            if saved is None:
                newest = _NOTHING if in_memory is not None else _DAMAGED
            elif int(saved.state.structure["step"]) > step_or_none(in_memory):
                newest = int(saved.state.structure["step"])
                found = SavedStep(newest, saved.state, saved.progress)
    newest = tell(collective, newest)[0]
    if newest == _DAMAGED:
        raise CheckpointDamaged(
            f"no checkpoint in {checkpoints} can be read; to start again, give another --out"
        )
    if newest != _NOTHING:
        steps = [newest] + [_NOTHING] * (collective.num_workers - 1)
        found = share_newest(collective, found, steps)
    load_state(trainer, start if found is None else found.state)
    if found is None:
        return None
    trainer.settle()
    if digest(state_of(trainer)) != digest(found.state):
        raise CheckpointDamaged("the model and optimizer do not take the saved state unchanged")
    return SavedStep(found.step, found.state, found.progress, from_disk=newest != _NOTHING)


def step_or_none(saved: SavedStep | None) -> int:
    """The step, below all steps where there is none."""
    return _NOTHING if saved is None else saved.step


def tell(collective: Collective, number: int) -> list[int]:
    """Tell all workers a number; returns the number of each."""
    numbers: list[int] = collective.gather_rows(np.array([number], np.int64)).ravel().tolist()
    return numbers


def share_newest(
    collective: Collective, mine: SavedStep | None, steps: list[int]
) -> SavedStep | None:
    """Give all workers the newest of what they have; `steps` says which step each has."""
    newest = max(steps)
    if min(steps) == newest:
        return mine
    source = steps.index(newest)
    if collective.worker == source:
        assert mine is not None
        text = json.dumps([mine.step, mine.state.structure, mine.progress]).encode()
        data = dump_tensors({n: _plain(t) for n, t in mine.state.tensors.items()})
        sizes = [len(text), len(data)]
    else:
        text, data, sizes = b"", b"", [0, 0]
    lengths = torch.tensor(sizes, device=collective.device)
    collective.broadcast(lengths, source)
    size = int(lengths.sum())
    content: Tensor = torch.empty(size, dtype=torch.uint8)
    if collective.worker == source:
        content = torch.frombuffer(bytearray(text + data), dtype=torch.uint8)
    content = content.to(collective.device)
    collective.broadcast(content, source)
    received = content.cpu().numpy().tobytes()
    step, structure, progress = json.loads(received[: int(lengths[0])])
    return SavedStep(step, State(load_tensors(received[int(lengths[0]) :]), structure), progress)


def _plain(tensor: Tensor) -> Tensor:
    """Copy a tensor row by row, as it travels, however it lies in memory."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
