"""Volumes to learn from: cubes of voxels in [0, 1], from the files people have.

In: an .npz or .npy file (MedMNIST's among them), a folder of NIfTI files, a LUNA16 folder, or a
folder that `samepath cubes` wrote. Out: `Volumes`. Guaranteed: every value is finite and in
[0, 1], every volume is a cube whose side is a multiple of 4, nothing is unpickled, and what does
not fit ends in one line that says what to type. Large .npy files and cube folders stay on disk.
"""

from __future__ import annotations

import os
from pathlib import Path

from samepath.data.formats.cubes import ABOUT, cached_cubes, open_cubes
from samepath.data.formats.listing import Volumes, checked
from samepath.data.formats.numpy_files import read_arrays
from samepath.data.formats.scan_folders import ANNOTATIONS, stack_nifti
from samepath.errors import UserError

__all__ = ["Volumes", "load_volumes"]


def load_volumes(path: Path) -> Volumes:
    """Volumes from a file or folder, checked (see the module)."""
    path = Path(os.path.expanduser(path))
    if not os.path.exists(path):  # False, not an error, where this user may not look
        raise UserError(f"{path}: no such file or folder; give volumes such as cubes.npz")
    if os.path.exists(path / ABOUT):
        return open_cubes(path)
    if os.path.exists(path / ANNOTATIONS):
        return cached_cubes(path)
    return checked(read_arrays(path) if path.is_file() else stack_nifti(path), path)
