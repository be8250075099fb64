"""The last completed step, in memory that outlives the processes of a run.

In: a trainer around every update and after every step. Out, after a failure: the newest step that
is complete. Guaranteed: a step that any worker has completed is not lost as long as its machine
lives.

All of the state is kept every few steps, two copies in turn. In between it is the gradient, a third
of that with Adam, from which `replay` makes the update again; it is kept before the update, and
no worker ends the update before all have kept it. Beside these, each worker notes the progress.
The files go when the run has finished; a run that was killed leaves them for `--resume`, and the
next run on this machine removes what belongs to no run any more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from samepath.engine.comm.tensors import fills
from samepath.engine.elastic import ring
from samepath.engine.elastic.ring import Checksum, Portion, Ring, RingEntry
from samepath.engine.state.checkpoint import SavedStep
from samepath.engine.state.state import State, state_of
from samepath.engine.step.step import Stepper
from samepath.faults import fault_point
from samepath.strategies import Choice

WHOLE_EVERY = 16
"""Steps. More would be hardly cheaper, and take more memory: that of so many gradients."""
NOTES = WHOLE_EVERY + 1
"""Steps: a machine that is lost with worker 0 takes its last lines of metrics along, and the run
goes on from the newest step whose lines are there."""
_WORTH = 0.5
"""A change is to have at most so much of the bytes of a state."""


def checksums_in(entries: list[RingEntry]) -> dict[Portion, int]:
    """Checksums of the weights, of those workers that noted them."""
    return {e.portion: e.content["weights"] for e in entries if "weights" in e.content}


@dataclass(frozen=True)
class Change:
    """What led from one step to the next."""

    step: int
    choice: Choice
    weights: dict[Portion, int]
    """Checksums of what was updated."""
    entries: list[RingEntry]

    @classmethod
    def made_of(cls, entries: list[RingEntry]) -> Change:
        pace, weights = Choice(**entries[0].content["pace"]), checksums_in(entries)
        return cls(entries[0].step, pace, weights, entries)

    def tensors(self) -> dict[str, Tensor]:
        """The gradient as the optimizer got it, and the model's buffers: read only now, because
        all changes together are larger than the state."""
        return ring.join_entries(self.entries)


@dataclass(frozen=True)
class Trail:
    """A step, and what leads on from it."""

    start: SavedStep
    changes: list[Change]
    progress: dict[str, Any]
    """After the last of them."""
    weights: dict[Portion, int]
    """Checksums of the weights after the last of them, of those workers that noted it."""


def gradient_and_buffers(model: nn.Module) -> dict[str, Tensor]:
    """What an update is made from, apart from the state before."""
    gradient = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {f"gradient/{n}": g for n, g in gradient.items()} | {
        f"buffers/{n}": b for n, b in model.named_buffers()
    }


def weights_checksum(model: nn.Module, portion: Portion) -> Checksum:
    return Checksum(dict(model.named_parameters()), portion)


class StepMemory:
    """Where a worker keeps its portion of the last step."""

    def __init__(
        self,
        run_id: str,
        folder: Path,
        tell: Callable[[str], None],
        *,
        part: int = 0,
        parts: int = 1,
    ) -> None:
        self._run_id = run_id
        self._folder = folder
        self._tell = tell
        self._portion = Portion(part, parts)
        self._whole: Ring | None = None
        self._changes: Ring | None = None
        self._notes: Ring | None = None
        self._copied = self._has_change = False
        self._takes_changes = True
        self._step = -1
        self._since_whole = 0
        self._retired: list[tuple[Path, int]] = []
        """Files that have been replaced, and after how many steps."""
        self._num_written = 0
        self._works = True

    @contextmanager
    def around_update(self, trainer: Stepper, choice: Choice) -> Iterator[None]:
        """Keep the gradient: every parameter has its own, and no optimizer has used it yet (some
        write into it)."""
        self._copied = self._copy_change(trainer, choice)
        gathered = trainer.collective.gather_begin(np.array([self._copied], np.uint8))
        yield
        self._has_change = all(record[0] for record in gathered())

    def _copy_change(self, trainer: Stepper, choice: Choice) -> bool:
        if self._whole is None or not self._takes_changes:
            return False
        tensors = gradient_and_buffers(trainer.model)
        if self._changes is None or self._changes.layout != ring.layout_of(tensors):
            if self._since_whole or ring.files_of_the_dead(self._run_id):
                return False  # what is there is needed until all of the state is kept again
            self._take_changes(trainer.model, tensors)
        if self._changes is None:
            return False
        how = {"learning_rate": choice.learning_rate, "schedule_steps": choice.schedule_steps}
        self._changes.copy(tensors)
        return self._changes.complete(
            trainer.step_number + 1,
            {"kind": "change", "pace": how, "weights": self._checksum(trainer.model)},
        )

    def keep(self, trainer: Stepper, progress: dict[str, Any], *, is_one_update: bool) -> None:
        """Keep this step, of which it is said whether one update is all that it changed."""
        is_kept = is_one_update and self._has_change and trainer.step_number == self._step + 1
        self._step = trainer.step_number
        self._since_whole += 1
        if is_kept:
            is_due = self._since_whole == WHOLE_EVERY
            after = None if is_due else self._checksum(trainer.model)
            self.write(self._step, state_of(trainer) if is_due else None, progress, weights=after)
        else:
            if self._copied and self._changes is not None:
                self._changes.take_back()  # it does not lead to all of this step
            # No worker notes the step before all have done so, and worker 0 has written its files
            trainer.collective.agree(True)
            self.write(self._step, state_of(trainer), progress, is_one_update=False)
            trainer.collective.agree(True)  # no worker goes on before all have their portion
        self._copied = self._has_change = False
        fault_point("kept")

    def write(
        self,
        step: int,
        state: State | None,
        progress: dict[str, Any],
        *,
        is_one_update: bool = True,
        weights: int | None = None,
    ) -> None:
        """Write a step's progress, and its state where due; else a checksum of its weights."""
        if not self._works:
            return
        fault_point("before writing")
        note = {"kind": "note", "progress": progress, "is_one_update": is_one_update}
        if weights is not None:
            note["weights"] = weights
        try:
            try:
                self._write_step(step, state, note)
            except OSError:  # no room beside what the dead have left: better the newest than two
                forget(self._run_id)
                self._write_step(step, state, note)
        except OSError as error:
            self._works = self._takes_changes = False
            self._tell(
                f"the last step cannot be kept in memory ({error}); after a failure the run "
                "goes on from its newest checkpoint"
            )
        self._remove_retired()
        fault_point("written")

    def _write_step(self, step: int, state: State | None, note: dict[str, Any]) -> None:
        if state is not None:
            content = {"structure": state.structure} | note if self._portion.part == 0 else {}
            content |= {"kind": "whole"}
            self._whole = self._write(self._whole, state.tensors, step, content, places=2)
            self._whole_bytes = sum(tensor.nbytes for tensor in state.tensors.values())
            self._since_whole = 0
        self._notes = self._write(self._notes, {}, step, note, places=NOTES)

    def _write(
        self,
        to: Ring | None,
        tensors: Mapping[str, Tensor],
        step: int,
        content: dict[str, Any],
        *,
        places: int,
    ) -> Ring:
        """Write to a ring, or to a new one where that is of another shape or too small."""
        if to is not None and to.layout == ring.layout_of(tensors):
            to.copy(tensors)
            if to.complete(step, content):
                fault_point("partly written")
                return to
        self._retire(to)
        made = self._make(tensors, places, content)
        return self._write(made, tensors, step, content, places=places)

    def _take_changes(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        """Make room for changes, if they are of any use here."""
        self._retire(self._changes)
        self._changes = None
        named = {*dict(model.named_parameters(remove_duplicate=False))}
        named |= {*dict(model.named_buffers(remove_duplicate=False))}
        num_bytes = sum(tensor.nbytes for tensor in tensors.values())
        self._takes_changes = (
            num_bytes <= _WORTH * self._whole_bytes
            and named >= {*model.state_dict()}  # no state of another kind, which would be missing
            and all(fills(p) for p in model.parameters())
        )
        if self._takes_changes:
            self._watch(model)
            try:
                self._changes = self._make(tensors, WHOLE_EVERY, {"room": " " * 200})
            except OSError:  # whole states do it too, and there is room for two of them
                self._takes_changes = False

    def _watch(self, model: nn.Module) -> None:
        self._parameters = [*model.parameters()]
        self._at = [parameter.data_ptr() for parameter in self._parameters]
        self._weights = weights_checksum(model, self._portion)

    def _checksum(self, model: nn.Module) -> int:
        """Checksum of this worker's portion of the weights as they are."""
        if self._at != [parameter.data_ptr() for parameter in self._parameters]:
            self._watch(model)  # they have been given other memory
        return self._weights()

    def _make(self, tensors: Mapping[str, Tensor], places: int, content: dict[str, Any]) -> Ring:
        return Ring(
            self._run_id,
            self._folder,
            tensors,
            self._portion,
            places=places,
            text=len(json.dumps(content)),
        )

    def _retire(self, those: Ring | None) -> None:
        if those is not None:
            self._retired.append((those.file, self._num_written))

    def _remove_retired(self) -> None:
        """Remove replaced files, and those of killed workers, with the second step in a new file:
        with the first the portions of other workers need not be there yet."""
        self._num_written += 1
        if self._num_written == 2:
            forget(self._run_id)
        _remove([file for file, written in self._retired if self._num_written >= written + 2])
        self._retired = [r for r in self._retired if self._num_written < r[1] + 2]

    def close(self) -> None:
        """Remove this worker's files: all of the run is on disk."""
        for those in (self._whole, self._changes, self._notes):
            if those is not None:
                those.file.unlink(missing_ok=True)


def newest(
    run_id: str, counts: Callable[[dict[str, Any]], bool] = lambda progress: True
) -> Trail | None:
    """What leads to the newest complete step of a run that this machine has, of those whose
    progress `counts`."""
    portions: dict[tuple[str, int, int], dict[Portion, RingEntry]] = {}
    complete: dict[str, dict[int, list[RingEntry]]] = {"whole": {}, "change": {}, "note": {}}
    more_than_updates: set[int] = set()
    for entry in ring.read(run_id):
        kind, parts = entry.content["kind"], entry.portion.parts
        if not entry.content.get("is_one_update", True):
            more_than_updates.add(entry.step)
        those = portions.setdefault((kind, entry.step, parts), {})
        those[entry.portion] = entry
        if len(those) == parts or kind == "note":  # which is the same on every worker
            complete[kind][entry.step] = sorted(those.values(), key=lambda e: e.portion.part)
    wholes, changes, notes = complete.values()
    for step in more_than_updates:
        changes.pop(step, None)  # left by workers that died before they could take it back
    progress = {step: those[0].content["progress"] for step, those in (wholes | notes).items()}
    ways = [
        (end, start)
        for start in wholes
        for end in _reached(start, changes)
        if end in progress and counts(progress[end])
    ]
    if not ways:
        return None
    end, start = max(ways)
    state = State(ring.join_entries(wholes[start]), wholes[start][0].content["structure"])
    return Trail(
        SavedStep(start, state, progress[start]),
        [Change.made_of(changes[step]) for step in range(start + 1, end + 1)],
        progress[end],
        checksums_in(notes.get(end, [])),
    )


def _reached(step: int, changes: Container[int]) -> Iterator[int]:
    yield step
    while (step := step + 1) in changes:
        yield step


def forget(run_id: str) -> None:
    """Remove the step memory of a run that has finished, or left this machine."""
    _remove(ring.files_of_the_dead(run_id))


def _remove(files: list[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)
