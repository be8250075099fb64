"""The last completed step, in memory that outlives the processes of a run.

In: a trainer's state after every step. Out, after a failure: the newest step that is complete.
Guaranteed: two copies are written in turn, so that whoever is killed while writing leaves the one
before; a copy that does not match its checksum is never used; nobody but this user can read it.

The memory is files in /dev/shm, one for each worker: those of a machine share the copying. They go
when the run has finished; a run that was killed leaves them for `--resume`, and the next run on
this machine removes what belongs to no run any more.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import struct
import zlib
from collections.abc import Callable, Mapping
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
Piece: TypeAlias = tuple[str, torch.dtype, torch.Size, int, int]
"""A stretch of a tensor's values: from, to."""


@dataclass(frozen=True)
class Kept:
    """A step read back and checked."""

    step: int
    state: State
    progress: dict[str, Any]


def _up(num_bytes: int, unit: int) -> int:
    return -(-num_bytes // unit) * unit


def _pieces(tensors: Mapping[str, Tensor], part: int, parts: int) -> list[Piece]:
    """One of so many equal parts of a state, the same cuts whoever makes them."""
    total = sum(tensor.nbytes for tensor in tensors.values())
    low, high = total * part // parts, total * (part + 1) // parts
    found, offset = [], 0
    for name, tensor in tensors.items():
        size, number = tensor.itemsize, tensor.numel()
        begin, end = (min(max(-(-(cut - offset) // size), 0), number) for cut in (low, high))
        if not number or not tensor.is_contiguous():  # not to be cut
            mine = low <= offset < high or (part == parts - 1 and offset == total)
            begin, end = (0, number) if mine else (number, number)
            if mine and not number:
                found.append((name, tensor.dtype, tensor.shape, 0, 0))
        if begin < end:
            found.append((name, tensor.dtype, tensor.shape, begin, end))
        offset += tensor.nbytes
    return found


def _num_bytes(pieces: list[Piece]) -> int:
    return _up(sum(_up((end - begin) * d.itemsize, _TEXT) for _, d, _, begin, end in pieces), _PAGE)


def _views(data: Tensor, pieces: list[Piece]) -> list[Tensor]:
    """The pieces, one after another; whole tensors in their shape."""
    views, offset = [], 0
    for _, dtype, shape, begin, end in pieces:
        size = (end - begin) * dtype.itemsize
        view = data[offset : offset + size].view(dtype)
        views.append(view.view(shape) if end - begin == shape.numel() else view)
        offset += _up(size, _TEXT)
    return views


def _sources(tensors: Mapping[str, Tensor], pieces: list[Piece]) -> list[Tensor]:
    return [
        tensors[name] if end - begin == shape.numel() else tensors[name].view(-1)[begin:end]
        for name, _, shape, begin, end in pieces
    ]


def _checksum(claims: bytes, text: bytes, data: Tensor) -> int:
    """CRC-32 of all that says what the data are, and of a 64-bit sum of each page of them: as fast
    as memory."""
    sums = data.view(torch.int64).view(-1, _PAGE // 8).sum(1)
    return zlib.crc32(sums.numpy().data, zlib.crc32(text, zlib.crc32(claims)))


class LastStep:
    """Where a worker keeps its part of the last step."""

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
        self._part, self._parts = part, parts
        self._run_folder = str(folder.absolute())
        self._tell = tell
        self._layout: Layout | None = None
        self._file: Path | None = None
        self._before: list[Path] = []
        self._turn = 0
        self._works = True

    def keep(self, state: State, progress: dict[str, Any]) -> None:
        """Keep this step, in place of the one before the last."""
        if not self._works:
            return
        tensors = state.tensors
        layout = [(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]
        moves = layout != self._layout
        if moves:
            self._pieces = _pieces(tensors, self._part, self._parts)
        content: dict[str, Any] = {"part": (self._part, self._parts), "pieces": self._written()}
        if self._part == 0:
            content |= {"structure": state.structure, "progress": progress}
        text = json.dumps(content | {"folder": self._run_folder}).encode()
        if moves or _TEXT + len(text) > self._begin:
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
        if views:
            with torch.no_grad():
                torch._foreach_copy_(views, _sources(tensors, self._pieces))
        memory[_TEXT : _TEXT + len(text)].numpy()[:] = np.frombuffer(text, np.uint8)
        data = memory[self._begin :]
        claims = (_MARK, int(state.structure["step"]), len(text), self._begin, len(data))
        checksum = _checksum(_HEADER.pack(*claims, 0), text, data)
        header[:] = np.frombuffer(_HEADER.pack(*claims, checksum), np.uint8)
        if self._turn == 2:
            self._remove_those_before()

    def _written(self) -> list[Any]:
        return [
            (name, str(dtype).removeprefix("torch."), list(shape), begin, end)
            for name, dtype, shape, begin, end in self._pieces
        ]

    def _remove_those_before(self) -> None:
        """Mine, and of those who were killed. Not with the first copy in a new file: the others'
        parts of that step need not be there yet; with the second all of them are."""
        killed = [file for file in _files(self._run_id) if not _lives(file)]
        for file in (*self._before, *killed):
            file.unlink(missing_ok=True)
        self._before.clear()

    def close(self) -> None:
        """All of it is on disk."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def _make(self, layout: Layout, text: bytes) -> None:
        """Two empty copies in a file of their own."""
        self._begin = _up(_TEXT + 2 * len(text), _PAGE)
        size = self._begin + _num_bytes(self._pieces)
        if self._file is not None:
            self._before.append(self._file)
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
        self._copies = [(half, _views(half[self._begin :], self._pieces)) for half in halves]
        self._layout = layout
        self._turn = 0


def newest(run_id: str) -> Kept | None:
    """The newest complete step of a run that this machine has."""
    found: dict[tuple[int, int], dict[int, Part]] = {}
    for file in _files(run_id):
        for half in _halves(file):
            read = _read(half)
            if read is not None:
                found.setdefault((read.step, read.parts), {})[read.part] = read
    complete = [key for key, parts in found.items() if len(parts) == key[1]]
    if not complete:
        return None
    parts = found[max(complete)]
    first = parts[0].content
    state = State(_together(list(parts.values())), first["structure"])
    return Kept(parts[0].step, state, first["progress"])


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


@dataclass(frozen=True)
class Part:
    """What one worker kept of a step."""

    step: int
    part: int
    parts: int
    content: dict[str, Any]
    data: Tensor


def _read(half: bytes) -> Part | None:
    content = _checked(half)
    if content is None:
        return None
    part, parts = content["part"]
    data = torch.frombuffer(bytearray(half[content["begin"] :]), dtype=torch.uint8)
    return Part(content["step"], part, parts, content, data)


def _together(parts: list[Part]) -> dict[str, Tensor]:
    """The tensors of all parts."""
    tensors: dict[str, Tensor] = {}
    for part in parts:
        pieces: list[Piece] = [
            (name, getattr(torch, dtype), torch.Size(shape), begin, end)
            for name, dtype, shape, begin, end in part.content["pieces"]
        ]
        for (name, dtype, shape, begin, end), view in zip(
            pieces, _views(part.data, pieces), strict=True
        ):
            if name not in tensors:
                tensors[name] = torch.empty(shape, dtype=dtype)
            tensors[name].view(-1)[begin:end] = view.reshape(-1)
    return tensors


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
    return content | {"begin": begin, "step": step}
