"""Rings of tensor copies in shared memory, which outlives the processes of a run.

In: named tensors, and a text that goes with them, again and again. Out, in any process: every entry
that is complete. Guaranteed: a process that is killed while writing leaves all entries but that
one; an entry that does not match its checksum is never read; no other user can read any.

The memory is files in /dev/shm, each with a number of equal places that are written in turn:
`<run id>.<process>.<token>.<places>`, the process as `owners` marks it with a dot after its number.
The workers of a machine share the copying, each its portion.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from samepath import owners
from samepath.engine.comm.tensors import sums_of, words_of
from samepath.faults import fault_point

MEMORY = Path("/dev/shm")
_HEADER = struct.Struct("<8sqqqqI")
"""Mark; step; bytes of text, bytes before the data, bytes of data; checksum."""
_MARK = b"samepath"
_TEXT = 64
"""Where the text begins, and what tensors are aligned to: a cache line."""
_PAGE = 4096

Layout: TypeAlias = list[tuple[str, torch.dtype, torch.Size, bool]]


@dataclass(frozen=True)
class Portion:
    """One of so many equal parts."""

    part: int = 0
    parts: int = 1


@dataclass(frozen=True)
class Piece:
    """A stretch of a tensor's values."""

    name: str
    dtype: torch.dtype
    shape: torch.Size
    begin: int
    end: int

    @property
    def num_bytes(self) -> int:
        return (self.end - self.begin) * self.dtype.itemsize

    @property
    def is_whole(self) -> bool:
        return self.end - self.begin == self.shape.numel()

    def of(self, tensor: Tensor) -> Tensor:
        return tensor if self.is_whole else tensor.view(-1)[self.begin : self.end]

    def written(self) -> list[Any]:
        dtype = str(self.dtype).removeprefix("torch.")
        return [self.name, dtype, list(self.shape), self.begin, self.end]

    @staticmethod
    def read(written: list[Any]) -> Piece:
        name, dtype, shape, begin, end = written
        return Piece(name, getattr(torch, dtype), torch.Size(shape), begin, end)


def layout_of(tensors: Mapping[str, Tensor]) -> Layout:
    """All that the pieces of some tensors depend on."""
    return [(n, t.dtype, t.shape, t.is_contiguous()) for n, t in tensors.items()]


def cut(tensors: Mapping[str, Tensor], portion: Portion) -> list[Piece]:
    """Cut a portion out of some tensors; the cuts are the same on every worker."""
    total = sum(_up(tensor.nbytes, _TEXT) for tensor in tensors.values())
    low, high = (_up(total * k // portion.parts, _TEXT) for k in (portion.part, portion.part + 1))
    found, offset = [], 0
    for name, tensor in tensors.items():
        size, number = tensor.itemsize, tensor.numel()
        begin, end = (min(max((bound - offset) // size, 0), number) for bound in (low, high))
        if not number or not tensor.is_contiguous():  # not to be cut
            mine = low <= offset < high or (portion.part == portion.parts - 1 and offset == total)
            begin, end = (0, number) if mine else (number, number)
            if mine and not number:
                found.append(Piece(name, tensor.dtype, tensor.shape, 0, 0))
        if begin < end:
            found.append(Piece(name, tensor.dtype, tensor.shape, begin, end))
        offset += _up(tensor.nbytes, _TEXT)
    return found


class Checksum:
    """Checksum of a portion of some tensors where they are (they must fill their memory): of a
    64-bit sum of each piece."""

    def __init__(self, tensors: Mapping[str, Tensor], portion: Portion) -> None:
        pieces = (piece for piece in cut(tensors, portion) if piece.num_bytes)
        self._words = [words_of(piece.of(tensors[piece.name])) for piece in pieces]

    def __call__(self) -> int:
        return zlib.crc32(sums_of(self._words).data)


def _up(num_bytes: int, unit: int) -> int:
    return -(-num_bytes // unit) * unit


class Ring:
    """Equal places in a file, written in turn, each with a portion of the same tensors."""

    def __init__(
        self,
        run_id: str,
        folder: Path,
        tensors: Mapping[str, Tensor],
        portion: Portion,
        *,
        places: int,
        text: int,
    ) -> None:
        """Raises OSError where there is no such memory, or not enough; `text` is how many bytes
        a text is expected to have."""
        self.layout = layout_of(tensors)
        self._pieces = cut(tensors, portion)
        about = {
            "folder": str(folder.absolute()),
            "share": (portion.part, portion.parts),
            "pieces": [piece.written() for piece in self._pieces],
        }
        self._about = json.dumps(about).encode() + b"\n"
        self._begin = _up(_TEXT + len(self._about) + 2 * text, _PAGE)
        sizes = (_up(piece.num_bytes, _TEXT) for piece in self._pieces)
        size = self._size = self._begin + _up(sum(sizes), _PAGE)
        process, _, more = owners.mark().partition("-")
        name = f"{run_id}.{process}.{more}-{secrets.token_hex(4)}.{places}"
        self.file = _own_folder() / name
        descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, places * size)  # an error now, not a SIGBUS later
            self._memory = mmap.mmap(descriptor, places * size)
        except OSError:
            self.file.unlink()
            raise
        finally:
            os.close(descriptor)
        whole = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._data = [place[self._begin :] for place in whole.split(size)]
        self._views = [_views(data, self._pieces) for data in self._data]
        self._sums = b""
        self._turn = 0

    def copy(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy tensors to the next place; `complete` makes it an entry."""
        start = self._turn * self._size
        # what was there is gone from here on
        self._memory[start : start + _HEADER.size] = bytes(_HEADER.size)
        if self._pieces:
            sources = [piece.of(tensors[piece.name]) for piece in self._pieces]
            with torch.no_grad():
                torch._foreach_copy_(self._views[self._turn], sources)
            fault_point("keep", data=self._data[self._turn])
            self._sums = _page_sums(self._data[self._turn])

    def complete(self, step: int, content: dict[str, Any]) -> bool:
        """Make an entry of what was copied. False: there is not enough room for the text."""
        text = self._about + json.dumps(content).encode()
        if _TEXT + len(text) > self._begin:
            return False
        start = self._turn * self._size
        self._memory[start + _TEXT : start + _TEXT + len(text)] = text
        claims = (_MARK, step, len(text), self._begin, self._size - self._begin)
        checksum = _checksum(_HEADER.pack(*claims, 0), text, self._sums)
        self._memory[start : start + _HEADER.size] = _HEADER.pack(*claims, checksum)
        self._turn = (self._turn + 1) % len(self._views)
        return True

    def take_back(self) -> None:
        """Remove the last entry."""
        self._turn = (self._turn - 1) % len(self._views)
        start = self._turn * self._size
        self._memory[start : start + _HEADER.size] = bytes(_HEADER.size)
        fault_point("taken back")


def _views(data: Tensor, pieces: list[Piece]) -> list[Tensor]:
    """The pieces, one after another; whole tensors in their shape."""
    views, offset = [], 0
    for piece in pieces:
        view = data[offset : offset + piece.num_bytes].view(piece.dtype)
        views.append(view.view(piece.shape) if piece.is_whole else view)
        offset += _up(piece.num_bytes, _TEXT)
    return views


def _page_sums(data: Tensor) -> bytes:
    """A 64-bit sum of each page: as fast as memory."""
    return data.view(torch.int64).view(-1, _PAGE // 8).sum(1).numpy().tobytes()


def _checksum(claims: bytes, text: bytes, page_sums: bytes) -> int:
    """Checksum of the data, and of all that says what they are."""
    return zlib.crc32(page_sums, zlib.crc32(text, zlib.crc32(claims)))


@dataclass(frozen=True)
class RingEntry:
    """One worker's portion of a step, read and checked."""

    step: int
    portion: Portion
    content: dict[str, Any]
    pieces: list[Piece]
    data: Tensor


def read(run_id: str) -> Iterator[RingEntry]:
    """Every complete entry of a run that this machine has, of any portion."""
    for file in files(run_id):
        yield from _read_file(file)


def join_entries(entries: list[RingEntry]) -> dict[str, Tensor]:
    """The tensors of all portions."""
    tensors: dict[str, Tensor] = {}
    for entry in entries:
        for piece, view in zip(entry.pieces, _views(entry.data, entry.pieces), strict=True):
            if piece.name not in tensors:
                tensors[piece.name] = torch.empty(piece.shape, dtype=piece.dtype)
            tensors[piece.name].view(-1)[piece.begin : piece.end] = view.reshape(-1)
    return tensors


def files(run_id: str) -> list[Path]:
    with suppress(OSError):
        return sorted(_own_folder().glob(f"{run_id}.*.*.*"))
    return []  # no such memory here


def writer_lives(file: Path) -> bool:
    """Whether the process that writes a file lives."""
    _, process, token, _ = file.name.split(".")
    return owners.lives(f"{process}-{token.rpartition('-')[0]}")


def files_of_the_dead(run_id: str) -> list[Path]:
    """The files of a run whose writers do not live."""
    return [file for file in files(run_id) if not writer_lives(file)]


def newest_step(file: Path) -> int:
    """The newest step that an entry of a file claims to be of; nothing but that is read."""
    newest, places = 0, int(file.suffix[1:])
    with suppress(OSError), file.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size // places
        for place in range(places):
            head = os.pread(opened.fileno(), _HEADER.size, place * size)
            if len(head) == _HEADER.size and head.startswith(_MARK):
                newest = max(newest, _HEADER.unpack(head)[1])
    return newest


def run_of(file: Path) -> tuple[str, Path] | None:
    """The run and the folder of a file, if one of its entries is complete."""
    for entry in _read_file(file):
        return file.name.split(".")[0], Path(str(entry.content["folder"]))
    return None


def _own_folder() -> Path:
    folder = MEMORY / f"samepath-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if folder.is_symlink() or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise OSError(f"{folder} is not this user's alone")
    return folder


def _read_file(file: Path) -> Iterator[RingEntry]:
    """Map a file's entries, without reading them: there are many, and few are wanted."""
    try:
        with file.open("rb") as opened:
            content = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError):
        return  # removed just now, or its process was killed before it wrote anything
    size = len(content) // int(file.suffix[1:])
    for place in torch.frombuffer(content, dtype=torch.uint8).split(size or len(content)):
        entry = _read(place)
        if entry is not None:
            yield entry


def _read(place: Tensor) -> RingEntry | None:
    """The entry in a place, if every byte is as it was written."""
    if len(place) < _HEADER.size:
        return None
    head = place[: _HEADER.size].numpy().tobytes()
    mark, step, text_bytes, begin, data_bytes, checksum = _HEADER.unpack(head)
    if mark != _MARK or begin + data_bytes != len(place) or not 0 < text_bytes <= begin - _TEXT:
        return None
    if begin % _PAGE or data_bytes % _PAGE:
        return None
    text = place[_TEXT : _TEXT + text_bytes].numpy().tobytes()
    data = place[begin:]
    claims = _HEADER.pack(mark, step, text_bytes, begin, data_bytes, 0)
    if _checksum(claims, text, _page_sums(data)) != checksum:
        return None
    about, rest = (json.loads(line) for line in text.split(b"\n"))
    pieces = [Piece.read(written) for written in about.pop("pieces")]
    return RingEntry(step, Portion(*about.pop("share")), about | rest, pieces, data)
