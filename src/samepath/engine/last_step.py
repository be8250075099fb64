"""The last completed step, in memory that outlives the processes of a run.

In: a trainer's state after every step. Out, after a failure: the newest step that is complete.
Guaranteed: two copies are written in turn, so that whoever is killed while writing leaves the one
before; a copy that does not match its checksum is never used; nobody but this user can read it.

The memory is a file in /dev/shm, one for each machine's part of a run. It goes when the run has
finished; a run that was killed leaves it for `--resume`, and the next run on this machine removes
what belongs to no run any more.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from samepath.engine.state import State

MEMORY = Path("/dev/shm")
_HEADER = struct.Struct("<8sqqqqI")
"""Mark; step; bytes of text, bytes before the data, bytes of data; checksum."""
_MARK = b"samepath"
_TEXT = 64
"""Where the text begins, and what tensors are aligned to: a cache line."""
_PAGE = 4096

Layout: TypeAlias = list[tuple[str, torch.dtype, torch.Size]]


@dataclass(frozen=True)
class Kept:
    """A step read back and checked."""

    step: int
    state: State
    progress: dict[str, Any]


def _up(num_bytes: int, unit: int) -> int:
    return -(-num_bytes // unit) * unit


def _num_bytes(layout: Layout) -> int:
    return _up(sum(_up(s.numel() * d.itemsize, _TEXT) for _, d, s in layout), _PAGE)


def _views(data: Tensor, layout: Layout) -> list[Tensor]:
    """The tensors, one after another."""
    views, offset = [], 0
    for _, dtype, shape in layout:
        size = shape.numel() * dtype.itemsize
        views.append(data[offset : offset + size].view(dtype).view(shape))
        offset += _up(size, _TEXT)
    return views


def _checksum(claims: bytes, text: bytes, data: Tensor) -> int:
    """CRC-32 of all that says what the data are, and of a 64-bit sum of each page of them: as fast
    as memory."""
    sums = data.view(torch.int64).view(-1, _PAGE // 8).sum(1)
    return zlib.crc32(sums.numpy().data, zlib.crc32(text, zlib.crc32(claims)))


class LastStep:
    """Where one machine's part of a run keeps its last step."""

    def __init__(self, run_id: str, folder: Path, tell: Callable[[str], None]) -> None:
        self._run_id = run_id
        self._run_folder = str(folder.absolute())
        self._tell = tell
        self._layout: Layout | None = None
        self._turn = 0
        self._works = True

    def keep(self, state: State, progress: dict[str, Any]) -> None:
        """Keep this step, in place of the one before the last."""
        if not self._works:
            return
        layout = [(name, tensor.dtype, tensor.shape) for name, tensor in state.tensors.items()]
        content = {
            "folder": self._run_folder,
            "structure": state.structure,
            "progress": progress,
            "tensors": [(n, str(d).removeprefix("torch."), list(s)) for n, d, s in layout],
        }
        text = json.dumps(content).encode()
        moves = layout != self._layout or _TEXT + len(text) > self._begin
        if moves:
            try:
                self._make(layout, text)
            except OSError as error:
                self._works = False
                self._tell(
                    f"the last step cannot be kept in memory ({error}); after a failure the run "
                    "goes on from its newest checkpoint"
                )
                return
        memory, views = self._copies[self._turn % 2]
        self._turn += 1
        header = memory[: _HEADER.size].numpy()
        header[:] = 0  # from here on it is not complete
        with torch.no_grad():
            torch._foreach_copy_(views, list(state.tensors.values()))
        memory[_TEXT : _TEXT + len(text)].numpy()[:] = np.frombuffer(text, np.uint8)
        data = memory[self._begin :]
        claims = (_MARK, int(state.structure["step"]), len(text), self._begin, len(data))
        checksum = _checksum(_HEADER.pack(*claims, 0), text, data)
        header[:] = np.frombuffer(_HEADER.pack(*claims, checksum), np.uint8)
        if moves:  # now the ones before can go: mine, and of those who were killed
            for file in _files(self._run_id):
                if file != self._file and (_owner(file) == os.getpid() or not _lives(file)):
                    file.unlink(missing_ok=True)

    def close(self) -> None:
        """All of it is on disk."""
        if self._layout is not None:
            self._file.unlink(missing_ok=True)

    def _make(self, layout: Layout, text: bytes) -> None:
        """Two empty copies in a file of their own."""
        self._begin = _up(_TEXT + 2 * len(text), _PAGE)
        size = self._begin + _num_bytes(layout)
        self._file = _own_folder() / f"{self._run_id}.{os.getpid()}.{secrets.token_hex(4)}"
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, 2 * size)  # an error now, not a SIGBUS later
            memory = torch.frombuffer(mmap.mmap(descriptor, 2 * size), dtype=torch.uint8)
        except OSError:
            self._file.unlink()
            raise
        finally:
            os.close(descriptor)
        halves = memory[:size], memory[size:]
        self._copies = [(half, _views(half[self._begin :], layout)) for half in halves]
        self._layout = layout


def newest(run_id: str) -> Kept | None:
    """The newest complete step of a run that this machine has."""
    found = [kept for file in _files(run_id) for kept in _read(file)]
    return max(found, key=lambda kept: kept.step, default=None)


def forget(run_id: str) -> None:
    """The run has finished, or left this machine."""
    for file in _files(run_id):
        if not _lives(file):
            file.unlink(missing_ok=True)


def forget_strangers(is_wanted: Callable[[str, Path], bool]) -> None:
    """Remove what belongs to no run any more: `is_wanted` is asked with a run and its folder."""
    for file in _files("*"):
        content = _text(file)
        wanted = content is not None and is_wanted(
            file.name.split(".")[0], Path(str(content["folder"]))
        )
        if not wanted and not _lives(file):
            file.unlink(missing_ok=True)


def _own_folder() -> Path:
    folder = MEMORY / f"samepath-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if folder.is_symlink() or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise OSError(f"{folder} is not this user's alone")
    return folder


def _files(run_id: str) -> list[Path]:
    with suppress(OSError):
        return sorted(_own_folder().glob(f"{run_id}.*.*"))
    return []  # no such memory here


def _owner(file: Path) -> int:
    return int(file.name.split(".")[1])


def _lives(file: Path) -> bool:
    try:
        os.kill(_owner(file), 0)
    except ProcessLookupError:
        return False
    return True


def _halves(file: Path) -> list[bytes]:
    try:
        content = file.read_bytes()
    except OSError:
        return []  # somebody removed it just now
    return [content[: len(content) // 2], content[len(content) // 2 :]]


def _text(file: Path) -> dict[str, Any] | None:
    """What a file says of itself, if one of its copies is complete."""
    for half in _halves(file):
        content = _checked(half)
        if content is not None:
            return content
    return None


def _read(file: Path) -> list[Kept]:
    kept = []
    for half in _halves(file):
        content = _checked(half)
        if content is None:
            continue
        layout = [
            (name, getattr(torch, dtype), torch.Size(shape))
            for name, dtype, shape in content["tensors"]
        ]
        data = torch.frombuffer(bytearray(half[content["begin"] :]), dtype=torch.uint8)
        tensors = dict(zip([name for name, *_ in layout], _views(data, layout), strict=True))
        state = State(tensors, content["structure"])
        kept.append(Kept(int(state.structure["step"]), state, content["progress"]))
    return kept


def _checked(half: bytes) -> dict[str, Any] | None:
    """The text of a copy, if every byte is as it was written."""
    if len(half) < _HEADER.size:
        return None
    mark, step, text_bytes, begin, data_bytes, checksum = _HEADER.unpack_from(half)
    if mark != _MARK or begin + data_bytes != len(half) or not 0 < text_bytes <= begin - _TEXT:
        return None
    text = half[_TEXT : _TEXT + text_bytes]
    data = torch.frombuffer(bytearray(half[begin:]), dtype=torch.uint8)
    claims = _HEADER.pack(mark, step, text_bytes, begin, data_bytes, 0)
    if _checksum(claims, text, data) != checksum:
        return None
    content: dict[str, Any] = json.loads(text)
    return content | {"begin": begin}
