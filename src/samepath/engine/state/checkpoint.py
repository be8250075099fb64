"""State on disk: safetensors and JSON, checksummed, all or nothing; and back into a training.

In: a State and where the run stands; a model's weights to be looked at later; a training that is
new. Out: a folder `step-00000017`, or the newest good one back; `weights/epoch-00010.safetensors`,
`weights/best.safetensors`, or a model put back to what it was then; the training after its newest
step. Guaranteed: what has such a name is complete (it is written aside, synced, then renamed); what
does not match its checksum is never loaded; what cannot be written leaves nothing behind, and what
was there before as it was; nothing is unpickled. All workers resume with the same step, bit for
bit: one that has nothing gets it from one that has, and worker 0 alone reads and tidies the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import load_file, save_file
from safetensors.torch import save as dump_tensors
from torch import Tensor, nn

from samepath import files
from samepath.engine.comm.collective import Collective
from samepath.engine.state.state import (
    MISSHAPEN,
    State,
    check,
    digest,
    load_state,
    one_line,
    state_of,
)
from samepath.engine.step.step import Stepper
from samepath.errors import CheckpointDamaged
from samepath.faults import fault_point
from samepath.files import (
    MOST_JSON,
    PART,
    folder_aside,
    opened_tensors,
    parse_json,
    read_tensors,
    read_through,
    read_whole,
)

KEEP = 2
"""Checkpoints kept: the newest, and one to fall back on."""
_BEFORE = ".before"
"""Ends the name of what has just been replaced."""
BEST: Literal["best"] = "best"
"""Instead of a number of epochs: the best, by the recipe's `monitor`."""
Epoch = int | Literal["best"]
_NOTHING, _DAMAGED = -1, -2


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint read back and checked."""

    path: Path
    state: State
    progress: dict[str, Any]
    digest: str


def write_tensors(
    path: Path, tensors: dict[str, Tensor], about: dict[str, str] | None = None
) -> None:
    """Write a safetensors file to the disk; what the disk says against it is an OSError."""
    fault_point("write", path=path, data=None)
    try:
        save_file(tensors, path, metadata=about)
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        code = int(number[1])
        raise OSError(code, os.strerror(code), str(path)) from error
    path.chmod(0o666 & path.parent.stat().st_mode)  # safetensors lets only the owner read it
    with path.open("rb") as file:
        os.fsync(file.fileno())
    fault_point("tensors", path=path)


def save(folder: Path, state: State, progress: dict[str, Any]) -> str:
    """Write a checkpoint of this step; the state's digest."""
    folder.mkdir(parents=True, exist_ok=True)
    _tidy(folder)
    path = folder / f"step-{state.structure['step']:08d}"
    fingerprint = digest(state)
    if path.is_dir():  # the same step again: a run that was resumed and stopped at once
        with suppress(CheckpointDamaged):
            there = load(path)
            if (there.digest, there.progress) == (fingerprint, progress):
                return fingerprint
    aside = _beside(path, PART)
    try:
        aside.mkdir()
        tensors, same_as = _distinct(state.tensors)
        write_tensors(aside / "state.safetensors", tensors)
        content = {
            "digest": fingerprint,
            "structure": state.structure,
            "same_as": same_as,
            "progress": progress,
        }
        text = json.dumps(content)
        checksum = json.dumps({"checksum": _sha256(text)})
        files.write_atomically(aside / "checkpoint.json", f"{checksum}\n{text}\n")
        if path.exists():
            path.rename(_beside(path, _BEFORE))
        aside.rename(path)
        files.sync_folder(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        with suppress(OSError):
            _tidy(folder)
        raise
    with suppress(OSError):  # this one is safe; the next save tries again
        for old in list_checkpoints(folder)[:-KEEP]:
            old.rename(_beside(old, PART))  # never half of one under its own name
        _tidy(folder)
    return fingerprint


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _tidy(folder: Path) -> None:
    """Finish what was cut short: half of a checkpoint goes, one that was not replaced returns."""
    for before in folder.glob(f"step-*{_BEFORE}"):
        path = before.with_suffix("")
        before.rename(_beside(path, PART) if path.exists() else path)
    for part in folder.glob(f"step-*{PART}"):
        shutil.rmtree(part)


def _distinct(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Store tied tensors once; the other names point to them."""
    first: dict[tuple[Any, ...], str] = {}
    distinct: dict[str, Tensor] = {}
    same_as: dict[str, str] = {}
    for name, tensor in tensors.items():
        where = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and where in first:
            same_as[name] = first[where]
        else:
            first[where] = name
            # a tensor that is part of another's memory is written out as itself
            is_alone = tensor.untyped_storage().nbytes() == tensor.nbytes
            distinct[name] = tensor.contiguous() if is_alone else _row_major(tensor)
    return distinct, same_as


def _row_major(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def list_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    if not folder.is_dir():
        return []
    found = [p for p in folder.iterdir() if re.fullmatch(r"step-[0-9]{8,}", p.name) and p.is_dir()]
    return sorted(found, key=step_of)


def step_of(path: Path) -> int:
    """The step that a checkpoint is of, by its name."""
    return int(path.name.removeprefix("step-"))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Read a file of state in this block; whatever is wrong with it is CheckpointDamaged."""
    try:
        yield
    except (OSError, MemoryError, SafetensorError, *MISSHAPEN) as error:
        raise CheckpointDamaged(f"{path}: cannot be read ({one_line(error)})") from error


def load(path: Path) -> Checkpoint:
    """Read a checkpoint and check every byte of it."""
    with _reading(path):
        whole = read_whole(path / "checkpoint.json", MOST_JSON).decode()
        first, text = whole.rstrip("\n").split("\n", 1)
        if json.loads(first)["checksum"] != _sha256(text):
            raise CheckpointDamaged(f"{path}: checkpoint.json does not match its checksum")
        content = json.loads(text)
        read_through(path / "state.safetensors")
        # mapped; safetensors holds what the header claims against the file's size
        state = State(load_file(path / "state.safetensors"), content["structure"])
        for name, other in content["same_as"].items():
            state.tensors[name] = state.tensors[other]
        check(state)
        if digest(state) != content["digest"]:
            raise CheckpointDamaged(f"{path}: state.safetensors does not match its digest")
        return Checkpoint(path, state, {**content["progress"]}, content["digest"])


def load_newest(
    folder: Path, warn: Callable[[str], None], *, set_aside: bool = False
) -> Checkpoint | None:
    """The newest good checkpoint; damaged ones are named.

    With `set_aside` (for the one process that may write here) damaged ones that are newer get
    another name, `step-00000017.damaged`, and what a kill left half-written goes. As long as no
    good one is found all stay as they are: the next attempt must not take the folder for an empty
    one.
    """
    if set_aside:
        with suppress(OSError):  # a folder that can only be read is as good
            _tidy(folder)
    damaged: dict[Path, str] = {}
    for path in reversed(list_checkpoints(folder)):
        try:
            found = load(path)
        except CheckpointDamaged as error:
            damaged[path] = str(error)
            continue
        for bad, why in damaged.items():
            aside = f"it {_set_aside(bad)}, and " if set_aside else ""
            warn(f"{why}; {aside}{path.name} is used")
        return found
    for why in damaged.values():
        warn(why)
    return None


def _set_aside(path: Path) -> str:
    """Rename a damaged checkpoint; what became of it."""
    number, aside = 1, _beside(path, ".damaged")
    while aside.exists():
        number += 1
        aside = _beside(path, f".damaged-{number}")
    try:
        path.rename(aside)
        files.sync_folder(path.parent)
    except OSError as error:
        return f"cannot be set aside ({error.strerror})"
    return f"is set aside as {aside.name}"


# ---- weights kept along the way


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The weights and buffers of a model, as copies in the order that files have."""
    return {name: _row_major(t.detach().cpu()) for name, t in model.state_dict().items()}


def write_weights(
    folder: Path, epoch: Epoch, tensors: dict[str, Tensor], after: int | None = None
) -> None:
    """Write the weights that a model had after so many epochs, or at its best, which it was `after`
    so many."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (f"epoch-{epoch:05d}" if isinstance(epoch, int) else epoch)
    after = epoch if isinstance(epoch, int) else after
    about = {"digest": digest(State(tensors, {})), "epochs": after}
    with folder_aside(path) as aside:  # safetensors has a file of its own beside the one it writes
        written = aside / "weights"
        write_tensors(written, tensors, {"about": json.dumps(about)})  # several have no order
        written.replace(path.with_suffix(".safetensors"))
        files.sync_folder(folder)


def kept_weights(folder: Path) -> dict[Epoch, Path]:
    """Epochs and their files, in order, the best ones last."""
    found: dict[Epoch, Path] = {}
    for path in sorted(folder.glob("epoch-*.safetensors")):
        if match := re.fullmatch(r"epoch-(\d+)", path.stem):
            found[int(match[1])] = path
    best = folder / f"{BEST}.safetensors"
    return found | ({BEST: best} if best.is_file() else {})


def epochs_of(path: Path) -> int:
    """Epochs after which a file's weights were reached, as it says itself; -1 if it does not."""
    with suppress(CheckpointDamaged), _reading(path), opened_tensors(path, "pt") as file:
        return int(_about(file.metadata() or {}).get("epochs") or -1)
    return -1


def _about(known: dict[str, str]) -> dict[str, Any]:
    about = parse_json(known["about"]) if "about" in known else known
    return about if isinstance(about, dict) else {}


def load_weights(path: Path, model: nn.Module) -> str:
    """Put a model back to what it was when the file was written; the weights' digest."""
    with _reading(path):
        read_through(path)
        tensors, known = read_tensors(path, "pt")
        recorded = _about(known).get("digest")
    if digest(State(tensors, {})) != recorded:
        raise CheckpointDamaged(f"{path}: the weights do not match their digest")
    try:
        model.load_state_dict(tensors)
    except MISSHAPEN as error:
        raise CheckpointDamaged(
            f"{path}: does not fit this recipe's model ({one_line(error)})"
        ) from error
    return str(recorded)


# ---- resuming


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
    return replace(found, from_disk=newest != _NOTHING)


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
    source, about, data = steps.index(newest), b"", b""
    if collective.worker == source:
        assert mine is not None
        about = json.dumps([mine.step, mine.state.structure, mine.progress]).encode()
        tensors = mine.state.tensors
        data = dump_tensors({name: _row_major(t.detach().cpu()) for name, t in tensors.items()})
    lengths = torch.tensor([len(about), len(data)], device=collective.device)
    collective.broadcast(lengths, source)
    content = torch.empty(int(lengths.sum()), dtype=torch.uint8)
    if collective.worker == source:
        content = torch.frombuffer(bytearray(about + data), dtype=torch.uint8)
    content = content.to(collective.device)
    collective.broadcast(content, source)
    received, end = content.cpu().numpy().tobytes(), int(lengths[0])
    step, structure, progress = json.loads(received[:end])
    return SavedStep(step, State(parse_tensors(received[end:]), structure), progress)
