"""NumPy's files, read without trusting them.

In: an open .npy or .npz file. Out: arrays, of an .npy file mapped from disk. Guaranteed: nothing is
unpickled; a header is held against the length of the file before memory is taken, and so are the
sizes that an archive gives its members, which may not share bytes; memory grows with what really
comes out. `ValueError` with one line for all else.
"""

from __future__ import annotations

import io
import math
import warnings
import zipfile
from itertools import pairwise
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from samepath.files import check_unpacked, guarded, size_of

_MOST_HEADER = 1 << 16
_PIECE_BYTES = 1 << 22
_LOCAL_HEADER = 30  # bytes that a zip file has before a member, at the least


class PickledObjects(ValueError):
    """An array of Python objects, which only pickle could read."""


class _Header(NamedTuple):
    shape: tuple[int, ...]
    order: Any
    kind: np.dtype[Any]
    start: int
    """Where the values begin."""

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.kind.itemsize


def map_array(file: IO[bytes]) -> NDArray[Any]:
    """The array of an .npy file, left on disk."""
    header = _read_header(file.read(_MOST_HEADER))
    if header.start + header.num_bytes > size_of(file):
        raise ValueError("it is shorter than its header says")
    if header.num_bytes == 0:
        return guarded(lambda: np.empty(header.shape, header.kind, header.order))
    return guarded(
        lambda: np.memmap(file, header.kind, "r", header.start, header.shape, header.order)
    )


def unzip_arrays(file: IO[bytes]) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name."""
    return guarded(lambda: _unzip(file))


def _unzip(file: IO[bytes]) -> dict[str, NDArray[Any]]:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        _check_members(members, archive.start_dir)
        check_unpacked(sum(member.file_size for member in members), size_of(file))
        found: dict[str, NDArray[Any]] = {}
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name in found:
                raise ValueError("it holds two arrays of one name")
            with archive.open(member) as content:
                found[name] = _read_member(content, member.file_size)
        return found


def _check_members(members: list[zipfile.ZipInfo], end: int) -> None:
    """As numpy writes them, one behind the other."""
    for member in members:
        stored = member.compress_type == zipfile.ZIP_STORED
        if not stored and member.compress_type != zipfile.ZIP_DEFLATED:
            raise ValueError("it is packed in a way that NumPy does not know")
        if stored and member.file_size != member.compress_size:
            raise ValueError("the sizes of its members disagree")
    places = sorted((member.header_offset, member.compress_size) for member in members)
    for (start, size), (following, _) in pairwise([*places, (end, 0)]):
        if start + _LOCAL_HEADER + size > following:
            raise ValueError("its members lie over each other")


def _read_member(content: IO[bytes], num_bytes: int) -> NDArray[Any]:
    head = content.read(_MOST_HEADER)
    header = _read_header(head)
    if header.start + header.num_bytes != num_bytes:
        raise ValueError("a member is not as long as its header says")
    values = bytearray(head[header.start :])
    while len(values) < header.num_bytes and (piece := content.read(_PIECE_BYTES)):
        values += piece
    if len(values) != header.num_bytes:
        raise ValueError("a member ends before its last value")
    flat = np.frombuffer(values, header.kind) if values else np.empty(0, header.kind)
    return flat.reshape(header.shape, order=header.order)


def _read_header(head: bytes) -> _Header:
    def parse() -> _Header:
        file = io.BytesIO(head)
        version = npy.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"its format {version} is not one that plain arrays need")
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        with warnings.catch_warnings():  # of numpy and Python, about how odd a header is
            warnings.simplefilter("ignore")
            shape, is_fortran, kind = read(file)
        return _Header(shape, "F" if is_fortran else "C", kind, file.tell())

    header = guarded(parse)
    if header.kind.hasobject:
        raise PickledObjects("it holds Python objects")
    if min(header.shape, default=0) < 0:
        raise ValueError("its header gives a negative size")
    return header
