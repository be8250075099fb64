"""State on disk: safetensors and JSON, checksummed, all or nothing.

In: a State and where the run stands. Out: a folder `step-00000017`, or the newest good one back.
Guaranteed: a folder of that name is complete (it is written aside, synced, then renamed); one whose
bytes do not match its checksum is never loaded; what cannot be written leaves nothing behind, and
what was there before as it was; nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from samepath import files
from samepath.engine.state.state import MISSHAPEN, State, check, digest, one_line
from samepath.errors import CheckpointDamaged
from samepath.faults import fault_point
from samepath.files import MOST_JSON, PART, read_through, read_whole

KEEP = 2
"""Checkpoints kept: the newest, and one to fall back on."""
_BEFORE = ".before"
"""Ends the name of what has just been replaced."""


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
        checksum = json.dumps({"checksum": hashlib.sha256(text.encode()).hexdigest()})
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
            row_major = torch.contiguous_format
            distinct[name] = (
                tensor.contiguous() if _alone(tensor) else tensor.clone(memory_format=row_major)
            )
    return distinct, same_as


def _alone(tensor: Tensor) -> bool:
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def list_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    if not folder.is_dir():
        return []
    found = [p for p in folder.iterdir() if re.fullmatch(r"step-[0-9]{8,}", p.name) and p.is_dir()]
    return sorted(found, key=step_of)


def step_of(path: Path) -> int:
    """The step that a checkpoint is of, by its name."""
    return int(path.name.removeprefix("step-"))


def load(path: Path) -> Checkpoint:
    """Read a checkpoint and check every byte of it."""
    try:
        whole = read_whole(path / "checkpoint.json", MOST_JSON).decode()
        first, text = whole.rstrip("\n").split("\n", 1)
        if json.loads(first)["checksum"] != hashlib.sha256(text.encode()).hexdigest():
            raise CheckpointDamaged(f"{path}: checkpoint.json does not match its checksum")
        content = json.loads(text)
        state = State(_read_tensors(path / "state.safetensors"), content["structure"])
        for name, other in content["same_as"].items():
            state.tensors[name] = state.tensors[other]
        check(state)
        found = Checkpoint(path, state, {**content["progress"]}, content["digest"])
        matches = digest(state) == found.digest
    except (OSError, MemoryError, SafetensorError, *MISSHAPEN) as error:
        raise CheckpointDamaged(f"{path}: cannot be read ({one_line(error)})") from error
    if not matches:
        raise CheckpointDamaged(f"{path}: state.safetensors does not match its digest")
    return found


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, in memory that is mapped to it. What its header claims is held against
    its size before any memory is taken (by safetensors)."""
    read_through(path)
    tensors: dict[str, Tensor] = load_file(path)
    return tensors


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
