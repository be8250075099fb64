"""Cubes made of scans and volumes of any shape.

In: a LUNA16 folder, a folder of NIfTI files, or an .npz/.npy file; side, millimetres and intensity
window. Out: a cube folder, and a `Report` of what could not be made. Guaranteed: what cannot be
made is listed, not fatal, unless it is everything; then nothing is left behind.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from samepath.data.formats.cube_folder import ABOUT, Made, write_cubes
from samepath.data.formats.cutting import CubeSettings, Failure, Job, Result, cut_cube, window_for
from samepath.data.formats.images import as_image, centre_of, longest_side_mm
from samepath.data.formats.luna16 import ANNOTATIONS, luna_job, luna_settings
from samepath.data.formats.nifti_folder import nifti_job
from samepath.data.formats.numpy_files import read_arrays
from samepath.errors import UserError


@dataclass(kw_only=True)
class Report:
    """What was made."""

    num_asked: int
    num_cubes: int = 0
    num_flat: int = 0
    """Cubes with one single value, as when all values lie outside the window."""

    failed: list[dict[str, str]] = field(default_factory=list)


def make_cubes(
    source: Path,
    out: Path,
    settings: CubeSettings | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Make a cube folder `out` of a source; `progress(done, total)` is called as it goes."""
    settings = settings or CubeSettings()
    source = Path(os.path.expanduser(source))
    out = Path(os.path.abspath(os.path.expanduser(out)))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {out} exists and is not empty; give a new folder, or delete it")
    if not os.path.exists(source):
        raise UserError(f"{source}: no such file or folder; give a LUNA16 folder or an .npz file")
    if (source / ABOUT).exists():
        raise UserError(f"{source} holds cubes already; use it as it is")
    if source.is_file():
        job = _arrays_job(source)
    elif (source / ANNOTATIONS).exists():
        job, settings = luna_job(source), luna_settings(settings)
    else:
        job = nifti_job(source)
    about = {"source": str(source.resolve())}
    report, was_first = run_job(job, out, settings, about, progress)
    if not was_first:
        raise UserError(f"--out {out} was filled by someone else meanwhile; give a new folder")
    return report


def run_job(
    job: Job,
    out: Path,
    settings: CubeSettings,
    about: dict[str, Any],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Report, bool]:
    """Make the cubes; what was made, and whether no one else had filled `out` before.

    A cube's side becomes its fact `side_mm`, unless the source gives one and the whole of it was
    taken.
    """
    report = Report(num_asked=len(job.listing))
    adds_side = job.knows_mm and (settings.mm is not None or "side_mm" not in job.listing.facts)

    def made() -> Iterator[Made]:
        progress(0, report.num_asked)
        for row, result in enumerate(job.results(settings)):
            if isinstance(result, Failure):
                if result._asdict() not in report.failed[-1:]:  # one scan, several nodules
                    report.failed.append(result._asdict())
            else:
                report.num_cubes += 1
                report.num_flat += int(result.voxels.min() == result.voxels.max())
                yield Made(row, result.voxels, {"side_mm": result.side_mm} if adds_side else {})
            progress(row + 1, report.num_asked)
        if not report.num_cubes:
            first, *others = (f"{one['name']}: {one['reason']}" for one in report.failed)
            more = f", and {len(others)} more like it" if others else ""
            raise UserError(f"no cube could be made of {about['source']} ({first}{more})")

    about = {**about, **asdict(settings), "failed": report.failed}
    return report, write_cubes(out, job.listing, made(), settings.side, about)


def _arrays_job(path: Path) -> Job:
    """One cube of each volume, padded where it is no cube."""
    volumes = read_arrays(path)

    def results(settings: CubeSettings) -> Iterator[Result]:
        if settings.mm is not None:
            raise UserError(f"--mm {settings.mm:g}: {path} knows no millimetres; leave --mm out")
        window = settings.window or window_for(volumes.cubes)
        for volume, name in zip(volumes.cubes, volumes.names, strict=True):
            image = as_image(volume.astype(np.float32))
            one = settings.filled(longest_side_mm(image), window)  # a voxel counts as one mm
            yield cut_cube(name, image, centre_of(image), one)

    return Job(listing=volumes, results=results, knows_mm=False)
