"""MetaImage (.mhd) scans, read without ITK's own reader.

In: a .mhd header and the .raw or .zraw file it names. Out: voxels and their place. Guaranteed:
the header is checked against the length of its data (of packed data: of what really comes out)
before memory is taken; what does not fit raises `ImageProblem`. ITK's reader takes what a header
claims, crashes on some, and gives memory it never wrote where data cannot be unpacked. Where
several values of one name are given, or several data files, the scan is refused.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samepath.data.formats.nifti import ImageProblem
from samepath.files import check_memory, check_unpacked, open_plain, size_of

_MOST_HEADER = 1 << 20
_PIECE_BYTES = 1 << 22
_TYPES = {
    "MET_CHAR": "i1",
    "MET_UCHAR": "u1",
    "MET_SHORT": "i2",
    "MET_USHORT": "u2",
    "MET_INT": "i4",
    "MET_UINT": "u4",
    "MET_LONG": "i4",  # four bytes in this format
    "MET_ULONG": "u4",
    "MET_LONG_LONG": "i8",
    "MET_ULONG_LONG": "u8",
    "MET_FLOAT": "f4",
    "MET_DOUBLE": "f8",
}
_PLACES = ("Offset", "Position", "Origin")
_DIRECTIONS = ("TransformMatrix", "Rotation", "Orientation")
_LIMIT = 1e12  # of any number in a header
_ORDERS = ("BinaryDataByteOrderMSB", "ElementByteOrderMSB")


class Scan(NamedTuple):
    """Voxels as (z, y, x), and where they are."""

    voxels: NDArray[Any]
    spacing: tuple[float, ...]
    origin: tuple[float, ...]
    direction: tuple[float, ...]
    """Nine numbers as SimpleITK orders them; their columns are the axes x, y, z."""


class _Header(NamedTuple):
    fields: dict[str, str]
    num_bytes: int
    """Where data that follows in the same file begins."""


def read_metaimage(path: Path) -> Scan:
    """A 3-D scan with one number per voxel (a fourth dimension of size 1 is dropped)."""
    try:
        with open_plain(path) as file:
            header = _parse(file.read(_MOST_HEADER))
    except FileNotFoundError:
        raise ImageProblem("no such file") from None
    except OSError as error:
        raise ImageProblem(f"cannot be read ({error.strerror})") from error
    fields = header.fields
    dims = _numbers(fields, ("NDims",), (), 1)
    if dims not in ((3.0,), (4.0,)):
        raise ImageProblem("is no MetaImage of 3 dimensions")
    ndim = int(dims[0])
    sizes = _numbers(fields, ("DimSize",), (), ndim)
    shape = [int(size) for size in sizes]
    if sizes != tuple(shape) or min(shape) < 1 or shape[3:] not in ([], [1]):
        raise ImageProblem("its DimSize is not three whole numbers above 0")
    if fields.get("ElementNumberOfChannels", "1") != "1":
        raise ImageProblem(f"has {fields['ElementNumberOfChannels'][:20]} numbers per voxel, not 1")
    if _truth(fields, "BinaryData", True) is False:
        raise ImageProblem("holds its voxels as text; write them in binary")
    kind = _TYPES.get(fields.get("ElementType", ""))
    if kind is None:
        raise ImageProblem("its ElementType is not one of a number")
    order = ">" if any(_truth(fields, name, False) for name in _ORDERS) else "<"
    voxels = _voxels(path, header, np.dtype(order + kind), (shape[2], shape[1], shape[0]))
    spacing = _numbers(fields, ("ElementSpacing", "ElementSize"), (1.0,) * ndim, ndim)[:3]
    direction = _numbers(fields, _DIRECTIONS, np.eye(ndim).ravel().tolist(), ndim**2)
    axes = np.array(direction).reshape(ndim, ndim)[:3, :3].T
    return Scan(
        voxels=voxels,
        spacing=spacing,
        origin=_numbers(fields, _PLACES, (0.0,) * ndim, ndim)[:3],
        direction=tuple(axes.ravel().tolist()),
    )


def _parse(content: bytes) -> _Header:
    """Lines of 'name = value', up to the one that names the data."""
    fields: dict[str, str] = {}
    num_bytes = 0
    for line in content.splitlines(keepends=True):
        num_bytes += len(line)
        found = re.fullmatch(r"(\w+)\s*[=:]([^\0]*)", line.decode("latin-1").strip())
        if found is None and line.strip():
            break
        if found is not None:
            name, value = found[1], found[2].strip()
            if fields.setdefault(name, value) is not value:
                raise ImageProblem(f"its header gives {name[:40]} twice")
            if name == "ElementDataFile":
                return _Header(fields, num_bytes)
    raise ImageProblem("is no image that SimpleITK can read (its header is damaged)")


def _numbers(
    fields: dict[str, str], names: tuple[str, ...], default: Sequence[float], count: int
) -> tuple[float, ...]:
    """So many numbers, under the first of these names that is given."""
    name = next((name for name in names if name in fields), None)
    if name is None and default:
        return tuple(default)
    try:
        found = tuple(float(word) for word in fields.get(name or names[0], "").split())
    except ValueError:
        found = ()
    if len(found) != count or not all(abs(value) < _LIMIT for value in found):
        raise ImageProblem(f"its header gives no {names[0]} of {count} numbers")
    return found


def _truth(fields: dict[str, str], name: str, default: bool) -> bool:
    return fields[name][:1] in ("T", "t", "1") if name in fields else default


def _voxels(
    path: Path, header: _Header, kind: np.dtype[Any], shape: tuple[int, ...]
) -> NDArray[Any]:
    """The data, from where the header says it is."""
    named = header.fields["ElementDataFile"]
    if not named or named == "LIST" or "%" in named:
        raise ImageProblem("names several data files, or none; write one .raw or .zraw")
    is_local = named.upper() == "LOCAL"
    num_bytes = math.prod(shape) * kind.itemsize
    try:
        with open_plain(path if is_local else path.parent / named) as file:
            size = size_of(file)
            start = header.num_bytes if is_local else 0
            if _truth(header.fields, "CompressedData", False):
                check_unpacked(num_bytes, size)
                file.seek(start)
                return np.frombuffer(_unpacked(file, num_bytes), kind).reshape(shape)
            (skipped,) = _numbers(header.fields, ("HeaderSize",), (0.0,), 1)
            start = size - num_bytes if skipped == -1 else start + max(0, int(skipped))
            if start < 0 or size - start < num_bytes:
                raise ImageProblem("its data file is shorter than its header says")
            check_memory(num_bytes)
            return np.memmap(file, kind, "r", start, shape)
    except OSError as error:
        raise ImageProblem("its data file is absent or cannot be opened") from error
    except zlib.error as error:
        raise ImageProblem(f"its data cannot be unpacked ({error})") from error
    except ValueError as error:
        raise ImageProblem(f"cannot be read: {error}") from error


def _unpacked(file: IO[bytes], num_bytes: int) -> bytearray:
    """Exactly so many bytes out of a zlib or gzip stream; memory is taken as they come."""
    content, stream = bytearray(), zlib.decompressobj(wbits=47)
    while len(content) <= num_bytes and not stream.eof:
        packed = stream.unconsumed_tail or file.read(_PIECE_BYTES)
        if not packed:
            break
        content += stream.decompress(packed, _PIECE_BYTES)
    if len(content) != num_bytes:
        less = "shorter" if len(content) < num_bytes else "longer"
        raise ImageProblem(f"its data file is {less} than its header says")
    return content
