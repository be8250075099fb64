"""Whether a NIfTI file holds what its header says.

In: a .nii or .nii.gz file. Out: the bytes of its voxels, or `ImageProblem`. It is asked before
SimpleITK reads the file, since ITK takes memory for whatever a header claims, fills what a
truncated file lacks, and takes NaN for 0, without a word.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from samepath.data.formats.listing import by
from samepath.files import brief, check_memory, check_unpacked, open_plain, size_of

NIFTI = (".nii", ".nii.gz")
_PIECE_BYTES = 1 << 24
_SHORT = "the file is shorter than its header says"
_TYPES = {
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


class ImageProblem(Exception):
    """One image cannot be used; the message is the reason, without the name."""


def check_nifti(path: Path) -> int:
    """Read to the end, in pieces: enough voxels, and finite ones. How many bytes they have."""
    try:
        with open_plain(path) as plain:
            is_packed = path.name.endswith(".gz")
            file: IO[bytes] = gzip.GzipFile(fileobj=plain) if is_packed else plain  # type: ignore[assignment]
            num_bytes, start, kind = _layout(file.read(348))
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


def _layout(head: bytes) -> tuple[int, int, np.dtype[Any]]:
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
        if code not in _TYPES:
            raise ImageProblem(f"holds voxels that are not one number each (type {code})")
        kind = np.dtype(order + _TYPES[code])
        begins = int(start) if 352 <= start < 1 << 31 else 352 if version == 348 else 544
        return math.prod(sizes) * kind.itemsize, begins, kind
    raise ImageProblem("is no NIfTI image")
