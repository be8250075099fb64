"""3-D medical images: checked, then read through SimpleITK; and written.

In: `.mhd`, `.nii` and `.nii.gz` files. Out: images that know their place in millimetres, arrays
as (z, y, x). Guaranteed: a file that is truncated or no image, or claims more than it holds, raises
`ImageProblem` with one line of reason and prints nothing. SimpleITK is an optional part: it is
imported when the first image is touched.

Why headers are checked here before ITK sees a file: ITK takes memory for whatever a header claims,
fills what a truncated file lacks, and takes NaN for 0, without a word. Its MetaImage reader also
crashes on some headers, and gives memory it never wrote where data cannot be unpacked; so .mhd is
read here altogether, and refused where it gives several values of one name, or several data files.
"""

from __future__ import annotations

import gzip
import math
import os
import re
import struct
import sys
import tempfile
import uuid
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from samepath.data.formats.listing import by
from samepath.errors import UserError
from samepath.files import brief, check_memory, check_unpacked, open_plain, replaced, size_of

NIFTI = (".nii", ".nii.gz")

Image: TypeAlias = Any
"""A SimpleITK image, which carries no types."""

_FAR = 1e9  # millimetres; no voxel is as large, or as small as 1 / _FAR
_SHORT = "the file is shorter than its header says"


class ImageProblem(Exception):
    """One image cannot be used; the message is the reason, without the name."""


def simpleitk() -> Any:
    """The SimpleITK module, or an error that says how to install it."""
    try:
        with warnings.catch_warnings():
            # Python 3.12 and later warn about the types that SWIG makes
            warnings.simplefilter("ignore", DeprecationWarning)
            import SimpleITK
    except ImportError as error:
        raise UserError(
            "reading .mhd and NIfTI files needs SimpleITK, which is not installed; "
            "type: pip install 'samepath[medical]'"
        ) from error
    return SimpleITK


def read_image(path: Path) -> Image:
    """A 3-D image with one number per voxel (a fourth dimension of size 1 is dropped)."""
    heard: list[str] = []
    try:
        with _standard_error_kept(heard):
            image = _read_nifti(path) if path.name.endswith(NIFTI) else _read_scan(path)
    except (RuntimeError, MemoryError) as error:
        raise ImageProblem(_reason(str(error))) from error
    if image.GetDimension() == 4 and image.GetSize()[3] == 1:
        image = image[:, :, :, 0]
    if image.GetDimension() != 3:
        raise ImageProblem(f"has {image.GetDimension()} dimensions, not 3")
    if image.GetNumberOfComponentsPerPixel() != 1:
        raise ImageProblem(f"has {image.GetNumberOfComponentsPerPixel()} numbers per voxel, not 1")
    _check_place(image.GetSpacing(), image.GetOrigin())
    return image


def _check_place(spacing: Sequence[float], origin: Sequence[float]) -> None:
    if not all(1 / _FAR < step < _FAR for step in spacing):
        raise ImageProblem(f"has voxels of {by(spacing)} mm, which cannot be")
    if not all(abs(place) < _FAR for place in origin):
        raise ImageProblem(f"its origin is not a number of millimetres below {_FAR:g}")


def _read_nifti(path: Path) -> Image:
    num_bytes = check_nifti(path)
    reader = simpleitk().ImageFileReader()
    reader.SetImageIO("NiftiImageIO")  # else ITK tries every format it knows
    reader.SetFileName(str(path))
    reader.ReadImageInformation()
    # what ITK would take memory for, of at least one byte per voxel
    if math.prod(reader.GetSize()) * reader.GetNumberOfComponents() > num_bytes:
        raise ImageProblem(_SHORT)
    return reader.Execute()


def _read_scan(path: Path) -> Image:
    scan = read_metaimage(path)
    _check_place(scan.spacing, scan.origin)
    native = scan.voxels.astype(scan.voxels.dtype.newbyteorder("="), copy=False)
    image = simpleitk().GetImageFromArray(native)
    image.SetSpacing(scan.spacing)
    image.SetOrigin(scan.origin)
    image.SetDirection(scan.direction)
    return image


def as_array(image: Image) -> NDArray[Any]:
    """The voxels as (z, y, x), copied."""
    array: NDArray[Any] = simpleitk().GetArrayFromImage(image)
    return array


def as_image(volume: NDArray[Any], spacing_mm: float = 1.0) -> Image:
    """A (z, y, x) array as an image with its first voxel at (0, 0, 0) mm."""
    image = simpleitk().GetImageFromArray(np.ascontiguousarray(volume))
    image.SetSpacing((spacing_mm,) * 3)
    return image


def centre_of(image: Image) -> tuple[float, float, float]:
    """The middle of the image, (x, y, z) in millimetres."""
    middle = [(count - 1) / 2 for count in image.GetSize()]
    x, y, z = image.TransformContinuousIndexToPhysicalPoint(middle)
    return x, y, z


def longest_side_mm(image: Image) -> float:
    sides = zip(image.GetSize(), image.GetSpacing(), strict=True)
    return float(max(count * spacing for count, spacing in sides))


def write_nifti(path: Path, volume: NDArray[Any], spacing_mm: float) -> None:
    """Write a (z, y, x) volume as float32 to a .nii or .nii.gz file, complete or not at all."""
    if not path.name.endswith(NIFTI):
        raise UserError(f"{path} is no NIfTI name; end it in .nii.gz or .nii")
    if volume.ndim != 3:
        raise UserError(f"a volume has 3 dimensions (z, y, x), not {volume.ndim}")
    ending = ".nii.gz" if path.name.endswith(".gz") else ".nii"
    aside = path.with_name(f".{uuid.uuid4().hex}{ending}")  # ITK goes by the ending
    heard: list[str] = []
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path, aside=aside, sync=False), _standard_error_kept(heard):
            image = as_image(volume.astype(np.float32), spacing_mm)
            simpleitk().WriteImage(image, str(aside))
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is the folder writable?"
        raise UserError(f"{path} cannot be written: {reason}") from error


def read_nifti(path: Path) -> tuple[NDArray[Any], tuple[float, float, float]]:
    """A NIfTI file's voxels as (z, y, x), and its spacing in millimetres in the same order."""
    try:
        image = read_image(path)
    except ImageProblem as problem:
        raise UserError(f"{path}: {problem}; give a .nii or .nii.gz file") from problem
    x, y, z = image.GetSpacing()
    return as_array(image), (z, y, x)


@contextmanager
def _standard_error_kept(heard: list[str]) -> Iterator[None]:
    """What the C++ library prints on standard error goes into `heard`, not onto the terminal."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            heard.append(file.read().decode(errors="replace"))


def _reason(error: str) -> str:
    if "allocate" in error:
        return "too large for this machine's memory (or its header is damaged)"
    return "is no image that SimpleITK can read (damaged header?)"


# ---- NIfTI: does a file hold what its header says?

_PIECE_BYTES = 1 << 24
_NIFTI_TYPES = {
    2: "u1",
    4: "i2",
    8: "i4",
    16: "f4",
    64: "f8",
    256: "i1",
    512: "u2",
    768: "u4",
    1024: "i8",
    1280: "u8",
}


def check_nifti(path: Path) -> int:
    """Read to the end, in pieces: enough voxels, and finite ones. How many bytes they have."""
    try:
        with open_plain(path) as plain:
            is_packed = path.name.endswith(".gz")
            file: IO[bytes] = gzip.GzipFile(fileobj=plain) if is_packed else plain  # type: ignore[assignment]
            num_bytes, start, kind = _nifti_layout(file.read(348))
            if is_packed:
                check_unpacked(num_bytes + start, size_of(plain))
            elif num_bytes + start > size_of(plain):
                raise ImageProblem(_SHORT)
            check_memory(num_bytes)
            file.seek(start)
            rest = num_bytes
            while rest > 0 and (piece := file.read(min(rest, _PIECE_BYTES))):
                rest -= len(piece)
                if kind.kind == "f":
                    values = np.frombuffer(piece, kind, count=len(piece) // kind.itemsize)
                    if not np.isfinite(values).all():
                        raise ImageProblem("holds NaN or infinite values")
    except FileNotFoundError as error:
        raise ImageProblem("no such file") from error
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise ImageProblem(f"cannot be read to its end ({brief(error)})") from error
    if rest > 0:
        raise ImageProblem(_SHORT)
    return num_bytes


def _nifti_layout(head: bytes) -> tuple[int, int, np.dtype[Any]]:
    """Bytes of voxels, where they start, and their type."""
    for order in "<>" if len(head) == 348 else "":
        (version,) = struct.unpack_from(f"{order}i", head)
        if version == 348 and head[344:347] == b"n+1":
            dims = struct.unpack_from(f"{order}8h", head, 40)
            (code,) = struct.unpack_from(f"{order}h", head, 70)
            (start,) = struct.unpack_from(f"{order}f", head, 108)
        elif version == 540 and head[4:7] == b"n+2":
            (code,) = struct.unpack_from(f"{order}h", head, 12)
            dims = struct.unpack_from(f"{order}8q", head, 16)
            (start,) = struct.unpack_from(f"{order}q", head, 168)
        else:
            continue
        sizes = dims[1 : dims[0] + 1]
        if not 1 <= dims[0] <= 7 or min(sizes) < 1:
            raise ImageProblem(f"has no size: its header says {by(sizes) or 'nothing'}")
        if code not in _NIFTI_TYPES:
            raise ImageProblem(f"holds voxels that are not one number each (type {code})")
        kind = np.dtype(order + _NIFTI_TYPES[code])
        begins = int(start) if 352 <= start < 1 << 31 else 352 if version == 348 else 544
        return math.prod(sizes) * kind.itemsize, begins, kind
    raise ImageProblem("is no NIfTI image")


# ---- MetaImage (.mhd)

_MOST_HEADER = 1 << 20
_UNPACKED_BYTES = 1 << 22
_METAIMAGE_TYPES = {
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
_MOST_NUMBER = 1e12  # of any number in a header
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
            header = _parse_header(file.read(_MOST_HEADER))
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
    kind = _METAIMAGE_TYPES.get(fields.get("ElementType", ""))
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


def _parse_header(content: bytes) -> _Header:
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
    """Read so many numbers, under the first of these names that is given."""
    name = next((name for name in names if name in fields), None)
    if name is None and default:
        return tuple(default)
    try:
        found = tuple(float(word) for word in fields.get(name or names[0], "").split())
    except ValueError:
        found = ()
    if len(found) != count or not all(abs(value) < _MOST_NUMBER for value in found):
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
        packed = stream.unconsumed_tail or file.read(_UNPACKED_BYTES)
        if not packed:
            break
        content += stream.decompress(packed, _UNPACKED_BYTES)
    if len(content) != num_bytes:
        less = "shorter" if len(content) < num_bytes else "longer"
        raise ImageProblem(f"its data file is {less} than its header says")
    return content
