"""Where a run goes on: the newest complete step that any of its machines has.

In: a trainer that is new, the memory of every worker's machine, the folder of worker 0. Out: the
trainer in the state after that step. Guaranteed: all workers have the same step, bit for bit; a
machine that has nothing gets it from one that has; the folder is read, and tidied, by worker 0
alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor

from samepath.engine.comm.collective import Collective
from samepath.engine.elastic import step_memory as last_step
from samepath.engine.elastic.replay import replay
from samepath.engine.elastic.step_memory import Kept
from samepath.engine.state.checkpoint import list_checkpoints, load_newest, step_of
from samepath.engine.state.state import State, digest, load_state, state_of
from samepath.errors import CheckpointDamaged

if TYPE_CHECKING:
    from samepath.engine.step.trainer import Trainer

_NOTHING, _DAMAGED = -1, -2
_STEPS_LINES = 3
"""At most so many belong to one step, which may be computed again."""


def recover(
    trainer: Trainer,
    run_id: str | None,
    checkpoints: Path,
    note: Callable[[str], None],
    *,
    num_lines: Callable[[], int] = lambda: sys.maxsize,
    is_on_disk: Callable[[dict[str, Any]], bool] = lambda progress: True,
) -> tuple[int, dict[str, Any]] | None:
    """Put the trainer where the run stood. The step of the checkpoint that was used (-1: it was in
    memory) and the run's progress; None if there is nothing to go on from. Worker 0 says how
    many lines are on disk, and whether a step in memory `is_on_disk` with all else that goes with
    it; it is not used otherwise."""
    collective, new = trainer.collective, state_of(trainer).clone()
    logged = _tell(collective, num_lines() if collective.worker == 0 else 0)[0]
    missing = 0

    def is_logged(progress: dict[str, Any]) -> bool:
        nonlocal missing
        lines = int(progress.get("lines", 0))
        missing = max(missing, lines - logged)
        return lines <= logged

    trail = None if run_id is None else last_step.newest(run_id, is_logged)
    mine = None if trail is None else replay(trainer, trail, note)
    mine = _agree(collective, mine, _tell(collective, _step(mine)))
    missing = max(_tell(collective, missing))
    if mine is not None:
        usable = collective.worker != 0 or is_on_disk(mine.progress)
        mine = mine if _tell(collective, usable)[0] else None
    if missing > _STEPS_LINES and collective.worker == 0:
        note(f"{missing} lines of metrics were lost on a disk that took none; they come again")
    saved = _NOTHING
    if collective.worker == 0:
        there = list_checkpoints(checkpoints)
        if there and step_of(there[-1]) > _step(mine):
            found = load_newest(checkpoints, note, set_aside=True)
            if found is None:
                saved = _NOTHING if mine is not None else _DAMAGED
            elif int(found.state.structure["step"]) > _step(mine):
                saved = int(found.state.structure["step"])
                mine = Kept(saved, found.state, found.progress)
    saved = _tell(collective, saved)[0]
    if saved == _DAMAGED:
        raise CheckpointDamaged(
            f"no checkpoint in {checkpoints} can be read; to start again, give another --out"
        )
    if saved != _NOTHING:
        mine = _agree(collective, mine, [saved] + [_NOTHING] * (collective.num_workers - 1))
    if mine is None:
        load_state(trainer, new)
        return None
    load_state(trainer, mine.state)
    if trainer.digest() != digest(mine.state):
        raise CheckpointDamaged("the model and optimizer do not take the saved state unchanged")
    return saved, mine.progress


def resume_own_loop(trainer: Trainer, checkpoints: Path) -> bool:
    """Put a trainer where its newest checkpoint stood; False if there is none. UserError where it
    was prepared with settings that lead elsewhere."""
    found = recover(trainer, None, checkpoints, trainer.doubt)
    if found is None:
        return False
    trainer.settings.refuse_changes(found[1].get("settings", {}))
    return True


def _step(kept: Kept | None) -> int:
    return _NOTHING if kept is None else kept.step


def _agree(collective: Collective, mine: Kept | None, steps: list[int]) -> Kept | None:
    """The newest of what workers have, on all of them."""
    newest = max(steps)
    if min(steps) == newest:
        return mine
    return _hand_out(collective, mine, source=steps.index(newest))


def _tell(collective: Collective, number: int) -> list[int]:
    """Everybody's number."""
    record = np.array([number], np.int64).view(np.uint8)
    return [int(other.view(np.int64)[0]) for other in collective.gather(record)]


def _plain(tensor: Tensor) -> Tensor:
    """As it travels, however it lies in memory."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _hand_out(collective: Collective, kept: Kept | None, *, source: int) -> Kept:
    """One worker's step, for all of them."""
    if collective.worker == source:
        assert kept is not None
        text = json.dumps([kept.step, kept.state.structure, kept.progress]).encode()
        data = dump_tensors({n: _plain(t) for n, t in kept.state.tensors.items()})
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
    return Kept(step, State(load_tensors(received[int(lengths[0]) :]), structure), progress)
