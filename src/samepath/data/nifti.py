"""Whether a NIfTI file holds what its header says.

In: a .nii or .nii.gz file. Out: nothing, or `ImageProblem`. It is asked before SimpleITK reads
the file, since ITK fills what a truncated file lacks, and takes NaN for 0, without a word.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

NIFTI = (".nii", ".nii.gz")
_PIECE_BYTES = 1 << 24


class ImageProblem(Exception):
    """One image cannot be used; the message is the reason, without the name."""


def check_nifti(path: Path) -> None:
    """Read to the end, in pieces: enough voxels, and finite ones."""
    try:
        with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
            num_bytes, start, kind = _layout(file.read(348))
            file.seek(start)
            while num_bytes > 0 and (piece := file.read(min(num_bytes, _PIECE_BYTES))):
                num_bytes -= len(piece)
                if kind is not None:
                    values = np.frombuffer(piece, kind, count=len(piece) // kind.itemsize)
                    if not np.isfinite(values).all():
                        raise ImageProblem("holds NaN or infinite values")
    except FileNotFoundError as error:
        raise ImageProblem("no such file") from error
    except (OSError, EOFError, zlib.error) as error:
        raise ImageProblem(f"cannot be read to its end ({error})") from error
    if num_bytes > 0:
        raise ImageProblem("the file is shorter than its header says")


def _layout(head: bytes) -> tuple[int, int, np.dtype[Any] | None]:
    """Bytes of voxels, where they start, and their type where it can hold NaN."""
    for order in "<>" if len(head) == 348 else "":
        (version,) = struct.unpack_from(f"{order}i", head)
        if version == 348:
            dims = struct.unpack_from(f"{order}8h", head, 40)
            code, bits = struct.unpack_from(f"{order}2h", head, 70)
            (start,) = struct.unpack_from(f"{order}f", head, 108)
        elif version == 540:  # NIfTI-2
            code, bits = struct.unpack_from(f"{order}2h", head, 12)
            dims = struct.unpack_from(f"{order}8q", head, 16)
            (start,) = struct.unpack_from(f"{order}q", head, 168)
        else:
            continue
        voxels = math.prod(max(count, 1) for count in dims[1 : max(dims[0], 0) + 1])
        kind = np.dtype(f"{order}f{bits // 8}") if code in (16, 64) and bits in (32, 64) else None
        return voxels * bits // 8, int(start) if 0 <= start < 1 << 31 else 352, kind
    raise ImageProblem("is no NIfTI image")
