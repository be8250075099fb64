"""3-D medical images: checked, then read through SimpleITK; and written.

In: `.mhd`, `.nii` and `.nii.gz` files. Out: images that know their place in millimetres.
Guaranteed: a file that is truncated or no image, or claims more than it holds, raises
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
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from samepath.data.formats.listing import by
from samepath.errors import UserError
from samepath.files import brief, check_memory, check_unpacked, open_plain, size_of

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
    try:
        with _quiet():
            image = _read_nifti(path) if path.name.endswith(NIFTI) else _read_metaimage(path)
    except (RuntimeError, MemoryError) as error:
        if "allocate" in str(error):
            reason = "too large for this machine's memory (or its header is damaged)"
        else:
            reason = "is no image that SimpleITK can read (damaged header?)"
        raise ImageProblem(reason) from error
    if image.GetDimension() == 4 and image.GetSize()[3] == 1:
        image = image[:, :, :, 0]
    if image.GetDimension() != 3:
        raise ImageProblem(f"has {image.GetDimension()} dimensions, not 3")
    if image.GetNumberOfComponentsPerPixel() != 1:
        raise ImageProblem(f"has {image.GetNumberOfComponentsPerPixel()} numbers per voxel, not 1")
    check_place(image.GetSpacing(), image.GetOrigin())
    return image


def check_place(spacing: Sequence[float], origin: Sequence[float]) -> None:
    """Raise unless voxels have a size and a place that can be."""
    if not all(1 / _FAR < step < _FAR for step in spacing):
        raise ImageProblem(f"has voxels of {by(spacing)} mm, which cannot be")
    if not all(abs(place) < _FAR for place in origin):
        raise ImageProblem(f"its origin is not a number of millimetres below {_FAR:g}")


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
    return float(np.multiply(image.GetSize(), image.GetSpacing()).max())


def write_nifti(
    path: Path, volume: NDArray[Any], spacing_mm: float, dtype: type[np.generic] = np.float32
) -> None:
    """Write a (z, y, x) volume, as float32 unless told; the path ends in .nii or .nii.gz."""
    try:
        with _quiet():
            image = as_image(volume.astype(dtype), spacing_mm)
            simpleitk().WriteImage(image, str(path))
    except RuntimeError as error:
        raise UserError(f"{path} cannot be written; is the folder writable?") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the C++ library prints on standard error away from the terminal."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


# ---- NIfTI: does a file hold what its header says?

_PIECE_BYTES = 1 << 24
_NIFTI_TYPES = {
    2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8",
    256: "i1", 512: "u2", 768: "u4", 1024: "i8", 1280: "u8",
}  # fmt: skip


def _read_nifti(path: Path) -> Image:
    num_bytes = _check_nifti(path)
    reader = simpleitk().ImageFileReader()
    reader.SetImageIO("NiftiImageIO")  # else ITK tries every format it knows
    reader.SetFileName(str(path))
    reader.ReadImageInformation()
    # what ITK would take memory for, of at least one byte per voxel
    if math.prod(reader.GetSize()) * reader.GetNumberOfComponents() > num_bytes:
        raise ImageProblem(_SHORT)
    return reader.Execute()


def _check_nifti(path: Path) -> int:
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
    "MET_CHAR": "i1", "MET_SHORT": "i2", "MET_INT": "i4", "MET_LONG_LONG": "i8",
    "MET_UCHAR": "u1", "MET_USHORT": "u2", "MET_UINT": "u4", "MET_ULONG_LONG": "u8",
    "MET_LONG": "i4", "MET_ULONG": "u4",  # four bytes in this format
    "MET_FLOAT": "f4", "MET_DOUBLE": "f8",
}  # fmt: skip
_MOST_NUMBER = 1e12  # of any number in a header


def _read_metaimage(path: Path) -> Image:
    try:
        with open_plain(path) as file:
            fields, header_bytes = _parse_header(file.read(_MOST_HEADER))
    except FileNotFoundError:
        raise ImageProblem("no such file") from None
    except OSError as error:
        raise ImageProblem(f"cannot be read ({error.strerror})") from error
    dims = _numbers(fields, 1, "NDims")
    if dims not in ((3.0,), (4.0,)):
        raise ImageProblem("is no MetaImage of 3 dimensions")
    ndim = int(dims[0])
    sizes = _numbers(fields, ndim, "DimSize")
    shape = [int(size) for size in sizes]
    if sizes != tuple(shape) or min(shape) < 1 or shape[3:] not in ([], [1]):
        raise ImageProblem("its DimSize is not three whole numbers above 0")
    if fields.get("ElementNumberOfChannels", "1") != "1":
        raise ImageProblem(f"has {fields['ElementNumberOfChannels'][:20]} numbers per voxel, not 1")
    if "BinaryData" in fields and not _is_true(fields, "BinaryData"):
        raise ImageProblem("holds its voxels as text; write them in binary")
    kind = _METAIMAGE_TYPES.get(fields.get("ElementType", ""))
    if kind is None:
        raise ImageProblem("its ElementType is not one of a number")
    is_big = _is_true(fields, "BinaryDataByteOrderMSB") or _is_true(fields, "ElementByteOrderMSB")
    spacing = _numbers(fields, ndim, "ElementSpacing", "ElementSize", default=(1.0,) * ndim)[:3]
    origin = _numbers(fields, ndim, "Offset", "Position", "Origin", default=(0.0,) * ndim)[:3]
    check_place(spacing, origin)
    straight = np.eye(ndim).ravel().tolist()
    turned = ("TransformMatrix", "Rotation", "Orientation")
    axes = np.reshape(_numbers(fields, ndim**2, *turned, default=straight), (ndim, ndim))
    stored = np.dtype((">" if is_big else "<") + kind)
    voxels = _read_voxels(path, fields, header_bytes, stored, shape[2::-1])
    image = simpleitk().GetImageFromArray(voxels.astype(stored.newbyteorder("="), copy=False))
    image.SetSpacing(spacing)
    image.SetOrigin(origin)
    image.SetDirection(axes[:3, :3].T.ravel().tolist())  # its columns are the axes x, y, z
    return image


def _parse_header(content: bytes) -> tuple[dict[str, str], int]:
    """Lines of 'name = value' up to the one that names the data, and how many bytes they have."""
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
                return fields, num_bytes
    raise ImageProblem("is no image that SimpleITK can read (its header is damaged)")


def _numbers(
    fields: dict[str, str], count: int, *names: str, default: Sequence[float] = ()
) -> tuple[float, ...]:
    """Read so many numbers, under the first of these names that is given."""
    given = [fields[name] for name in names if name in fields]
    if not given and default:
        return tuple(default)
    try:
        found = tuple(float(word) for word in "".join(given[:1]).split())
    except ValueError:
        found = ()
    if len(found) != count or not all(abs(value) < _MOST_NUMBER for value in found):
        raise ImageProblem(f"its header gives no {names[0]} of {count} numbers")
    return found


def _is_true(fields: dict[str, str], name: str) -> bool:
    return fields.get(name, "")[:1] in ("T", "t", "1")


def _read_voxels(
    path: Path, fields: dict[str, str], header_bytes: int, kind: np.dtype[Any], shape: Sequence[int]
) -> NDArray[Any]:
    """The data, from where the header says it is."""
    named = fields["ElementDataFile"]
    if not named or named == "LIST" or "%" in named:
        raise ImageProblem("names several data files, or none; write one .raw or .zraw")
    is_local = named.upper() == "LOCAL"
    num_bytes = math.prod(shape) * kind.itemsize
    try:
        with open_plain(path if is_local else path.parent / named) as file:
            size = size_of(file)
            start = header_bytes if is_local else 0
            if _is_true(fields, "CompressedData"):
                check_unpacked(num_bytes, size)
                file.seek(start)
                return np.frombuffer(_unpacked(file, num_bytes), kind).reshape(shape)
            (skipped,) = _numbers(fields, 1, "HeaderSize", default=(0.0,))
            start = size - num_bytes if skipped == -1 else start + max(0, int(skipped))
            if start < 0 or size - start < num_bytes:
                raise ImageProblem("its data file is shorter than its header says")
            check_memory(num_bytes)
            return np.memmap(file, kind, "r", start, tuple(shape))
    except OSError as error:
        raise ImageProblem("its data file is absent or cannot be opened") from error
    except (ValueError, zlib.error) as error:
        raise ImageProblem(f"its data cannot be read ({error})") from error


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
