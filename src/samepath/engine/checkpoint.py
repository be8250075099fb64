"""State on disk: safetensors and JSON, checksummed, all or nothing.

In: a State and where the run stands. Out: a folder `step-00000017`, or the newest good one back.
Guaranteed: a folder of that name is complete (it is written aside, synced, then renamed); one whose
bytes do not match its checksum is never loaded; nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
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

from samepath.engine.state import State, digest
from samepath.errors import CheckpointDamaged

KEEP = 2
"""Checkpoints kept: the newest, and one to fall back on."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint read back and checked."""

    path: Path
    state: State
    progress: dict[str, Any]
    digest: str


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, text: str) -> None:
    """Replace a small text file: the old or the new content, never half of one."""
    aside = path.with_name(path.name + ".part")
    with aside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    sync_folder(path.parent)


def save(folder: Path, state: State, progress: dict[str, Any]) -> str:
    """Write a checkpoint of this step; the state's digest."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{state.structure['step']:08d}"
    fingerprint = digest(state)
    with suppress(CheckpointDamaged):
        there = load(path)  # the same step again: a run that was resumed and stopped at once
        if (there.digest, there.progress) == (fingerprint, progress):
            return fingerprint
    aside = folder / (path.name + ".part")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    tensors, same_as = _distinct(state.tensors)
    save_file(tensors, aside / "state.safetensors")
    content = {
        "digest": fingerprint,
        "structure": state.structure,
        "same_as": same_as,
        "progress": progress,
    }
    text = json.dumps(content)
    (aside / "checkpoint.json").write_text(
        json.dumps({"checksum": hashlib.sha256(text.encode()).hexdigest()}) + "\n" + text + "\n"
    )
    for file in aside.iterdir():
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    sync_folder(aside)
    shutil.rmtree(path, ignore_errors=True)
    aside.rename(path)
    sync_folder(folder)
    for old in list_checkpoints(folder)[:-KEEP]:
        shutil.rmtree(old)
    return fingerprint


def _distinct(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tied tensors are stored once; the other names say whose they are."""
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
    return sorted(p for p in folder.glob("step-????????") if p.is_dir())


def load(path: Path) -> Checkpoint:
    """Read a checkpoint and check every byte of it."""
    try:
        first, text = (path / "checkpoint.json").read_text().rstrip("\n").split("\n", 1)
        if json.loads(first)["checksum"] != hashlib.sha256(text.encode()).hexdigest():
            raise CheckpointDamaged(f"{path}: checkpoint.json does not match its checksum")
        content = json.loads(text)
        tensors = load_file(path / "state.safetensors")
        for name, other in content["same_as"].items():
            tensors[name] = tensors[other]
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointDamaged(f"{path}: cannot be read ({error})") from error
    state = State(tensors, content["structure"])
    if digest(state) != content["digest"]:
        raise CheckpointDamaged(f"{path}: state.safetensors does not match its digest")
    return Checkpoint(path, state, content["progress"], content["digest"])


def load_newest(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest good checkpoint; damaged ones are named."""
    for path in reversed(list_checkpoints(folder)):
        try:
            return load(path)
        except CheckpointDamaged as error:
            warn(f"{error}; trying the one before")
    return None
