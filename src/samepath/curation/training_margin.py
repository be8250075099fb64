"""How sure a network was of each training label while it learned: the margin, averaged over epochs.

In: a run that is about to be trained, and the layer of its model that gives logits. Out: for each
example the label's logit minus the largest other, as the training's own forward passes had them
(augmented, with dropout), and their mean over all the passes there were (Pickler et al., arXiv
2510.16211). Guaranteed: the training is the same to the bit, and computes nothing twice; the mean
is the same bits at any number of workers, and after any interruption.

Every worker appends to a file of its own, step by step, which example it had with what margin. A
step that is computed again after an interruption has the same numbers, and counts once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samepath.curation.features import batch_labels, layers_of
from samepath.engine.run.loop import Run
from samepath.plan import Batch
from samepath.recipe import Recipe

FOLDER = "margins"
"""Of a run: what its workers noted."""
_NOTE = np.dtype([("step", "<i4"), ("place", "<i4"), ("example", "<i4"), ("margin", "<f4")])
"""`place`: of the example in the step's batch."""


def why_not(recipe: Recipe, head: str | None) -> str | None:
    """Why margins cannot be noted while this recipe is trained; None where they can."""
    if head is None:
        return "no layer of the model gives the logits of the labels"
    if recipe.encode is not None:
        return "the loss is one of the whole batch"
    return "the recipe is compiled" if recipe.compile else None


@dataclass(frozen=True, kw_only=True)
class NoteMargins:
    """Note margins while a network is trained: a Request's `listen`."""

    head: str
    """The layer whose output are the logits."""

    @contextmanager
    def __call__(self, run: Run) -> Iterator[None]:
        """Note on one worker, while the block runs. What is noted stays when it is killed."""
        assert run.folder is not None
        folder = run.folder.path / FOLDER
        folder.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile(
            dir=folder, suffix=".bin", delete=False, buffering=0
        ) as file:
            notes = _Notes(file)
            run.trainer.watch, run.after_step = notes.told, notes.write
            # a function, which is copied with the model as it is
            layers_of(run.trainer.model)[self.head].register_forward_hook(
                lambda module, inputs, output: notes.passed(output)
            )
            yield


class _Notes:
    """One worker's."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._place: tuple[Batch, NDArray[np.int64]] | None = None
        self._data: Any = None
        self._logits: Tensor | None = None
        self._waiting: list[tuple[NDArray[Any], Tensor, Tensor]] = []
        """Notes without their margin, logits and labels of the step's grains."""

    def passed(self, output: Any) -> None:
        """Hear what the layer gave; only what a training grain's loss used last counts."""
        self._logits = output.detach() if isinstance(output, Tensor) else None

    def told(self, point: str, grain: int, value: Any) -> None:
        """Hear what the trainer does."""
        if point == "examples":
            self._place = value
        elif point in ("loaded", "augmented"):
            self._data = value
        elif point == "loss" and self._place is not None:
            (batch, examples), logits, labels = self._place, self._logits, batch_labels(self._data)
            self._place = self._logits = self._data = None
            if logits is None or labels is None or not is_of(logits, labels):
                return
            notes = np.empty(len(examples), _NOTE)
            notes["step"] = batch.step
            notes["place"] = np.arange(len(examples)) + grain * batch.grain_size
            notes["example"] = examples
            self._waiting.append((notes, logits, labels))

    def write(self, *_: Any) -> None:
        """Write the notes of a step, all at once, before it can be saved."""
        if self._waiting:
            notes, logits, labels = zip(*self._waiting, strict=True)
            self._waiting = []
            noted = np.concatenate(notes)
            noted["margin"] = label_margins(torch.cat(logits), torch.cat(labels)).numpy(force=True)
            self._file.write(noted.tobytes())


def is_of(logits: Tensor, labels: Tensor) -> bool:
    """Whether a layer's output can be the logits of these labels (not of some that were mixed)."""
    return logits.ndim == 2 and len(logits) == len(labels) and logits.shape[1] > 1


def label_margins(logits: Tensor, labels: Tensor) -> Tensor:
    """The label's logit minus the largest other, for each example; NaN where it has no label (some
    losses leave out what is labelled -100)."""
    with torch.no_grad():
        logits, places = logits.float(), labels.clamp(0, logits.shape[1] - 1)[:, None]
        others = logits.scatter(1, places, -torch.inf).amax(1)
        margins = logits.gather(1, places)[:, 0] - others
        return margins.where(places[:, 0] == labels, torch.nan)


# ---- what was noted


def training_margins(
    runs: Sequence[tuple[Path, NDArray[np.int64]]], num_examples: int
) -> NDArray[np.float32] | None:
    """Mean margins of all examples over all epochs of these runs, each with the numbers of the
    examples it was trained on; NaN of what none saw, None where nothing was noted."""
    sums, counts = np.zeros(num_examples), np.zeros(num_examples, np.int64)
    for run, rows in runs:
        notes = [_read(path) for path in sorted((run / FOLDER).glob("*.bin"))]
        if not notes:
            continue
        noted = np.concatenate(notes)
        order = np.lexsort((noted["place"], noted["step"]))
        noted = noted[order]
        again = np.zeros(len(noted), bool)
        again[1:] = (np.diff(noted["step"]) == 0) & (np.diff(noted["place"]) == 0)
        noted = noted[~again & ~np.isnan(noted["margin"])]
        np.add.at(sums, rows[noted["example"]], noted["margin"].astype(np.float64))
        np.add.at(counts, rows[noted["example"]], 1)
    if not counts.any():
        return None
    means = np.full(num_examples, np.nan)
    means[counts > 0] = sums[counts > 0] / counts[counts > 0]
    return means.astype(np.float32)


def _read(path: Path) -> NDArray[Any]:
    """The notes of one process; the last is left out where it was killed in the middle of it."""
    content = path.read_bytes()
    return np.frombuffer(content[: len(content) // _NOTE.itemsize * _NOTE.itemsize], _NOTE)
