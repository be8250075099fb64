"""Volumes to learn from: cubes of voxels in [0, 1], from the files people have.

In: an .npz or .npy file (MedMNIST's among them), a folder of NIfTI files, a LUNA16 folder, or a
cube folder: `cubes.npy` (the voxels, uint8) and `cubes.json` (all else), made by `samepath cubes`.
Out: `Volumes`; or a new cube folder, and a `Report` of what could not be made.

Guaranteed: every value is finite and in [0, 1], every volume is a cube whose side is a multiple of
4, nothing is unpickled, and what does not fit ends in one line that says what to type. Large .npy
files and cube folders stay on disk. A cube folder is written aside and renamed, so that it is
complete or absent, even if several processes make the same one; one that was damaged since is
refused, by its checksum; what cannot be made is listed, not fatal, unless it is everything: then
nothing is left behind.

Cubes of a LUNA16 folder with the default settings are made once and kept in `$SAMEPATH_CACHE` or
`~/.cache/samepath`, by the folder's path, its annotations, the settings and its scan files with
their sizes. Scans deleted since do no harm; new or changed ones make new cubes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samepath.console import Patience, say
from samepath.data.formats.dicom import DICOM
from samepath.data.formats.images import NIFTI, as_image, centre_of, longest_side_mm
from samepath.data.formats.listing import Volumes, check_shape, checked
from samepath.data.formats.numpy_files import map_array, read_arrays, read_masks
from samepath.data.formats.scans import (
    ANNOTATIONS,
    HOUNSFIELD,
    LUNA_FILL,
    CubeSettings,
    Cut,
    Failure,
    Job,
    Results,
    cut_cube,
    dicom_job,
    files_below,
    luna_job,
    nifti_job,
    stack_masks,
    stack_nifti,
    window_for,
)
from samepath.errors import UserError
from samepath.files import (
    brief,
    check_text,
    content_hash,
    finite,
    folder_aside,
    guarded,
    open_plain,
    read_object,
    try_lock,
)
from samepath.version import __version__

_FORMAT = 1
_ABOUT = "cubes.json"
_VOXELS = "cubes.npy"
WAIT_SECONDS = 3600.0
"""How long a process waits for another that makes the same cubes."""

NOT_AIR = -100.0
"""Hounsfield units of a cut through a lung begin far below."""
OFFSET = 1024
"""What scanners add to have no negative values."""
MOST_CLIPPED = 0.4
"""The share of voxels that may lie above the window."""
MOST_SIDES = 2.0
"""The largest cube in the smallest."""

Progress = Callable[[int, int], None]


def load_volumes(path: Path) -> Volumes:
    """Volumes from a file or folder, checked (see the module)."""
    path = Path(os.path.expanduser(path))
    if not os.path.exists(path):  # False, not an error, where this user may not look
        raise UserError(f"{path}: no such file or folder; give volumes such as cubes.npz")
    if os.path.exists(path / _ABOUT):
        return open_cubes(path)
    if os.path.exists(path / ANNOTATIONS):
        return _cached_cubes(path)
    return checked(read_arrays(path) if path.is_file() else stack_nifti(path), path)


def load_masks(path: Path, shape: tuple[int, ...]) -> NDArray[np.bool_] | None:
    """The masks that a file or folder has beside its volumes, which have a shape; None: it has
    none."""
    path = Path(os.path.expanduser(path))
    if path.is_file():
        return read_masks(path, shape) if path.suffix == ".npz" else None
    if any(os.path.exists(path / name) for name in (_ABOUT, ANNOTATIONS)):
        return None
    return stack_masks(path, shape)


# ---- making cube folders


@dataclass(kw_only=True)
class Report:
    """How many cubes were made, and what could not be."""

    num_asked: int
    num_cubes: int = 0
    num_flat: int = 0
    """Cubes with one single value, as when all values lie outside the window."""
    failed: list[dict[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """What looks wrong about values and sizes, and what to type."""


def make_cubes(
    source: Path,
    out: Path,
    settings: CubeSettings | None = None,
    progress: Progress = lambda done, total: None,
) -> Report:
    """Make a cube folder `out` of a source; `progress(done, total)` is called as it goes."""
    settings = settings or CubeSettings()
    source = Path(os.path.expanduser(source))
    out = Path(os.path.abspath(os.path.expanduser(out)))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {out} exists and is not empty; give a new folder, or delete it")
    if not os.path.exists(source):
        raise UserError(f"{source}: no such file or folder; give a LUNA16 folder or an .npz file")
    if (source / _ABOUT).exists():
        raise UserError(f"{source} holds cubes already; use it as it is")
    if source.is_file():
        job = _arrays_job(source)
    elif (source / ANNOTATIONS).exists():
        job, settings = luna_job(source), settings.filled(*LUNA_FILL)
    elif not files_below(source, *NIFTI) and files_below(source, DICOM):
        job = dicom_job(source)
    else:
        job = nifti_job(source)
    report, was_first = _run(job, out, settings, {"source": str(source.resolve())}, progress)
    if not was_first:
        raise UserError(f"--out {out}: another process wrote there first; give a new folder")
    return report


def _arrays_job(path: Path) -> Job:
    """One cube of each volume, padded where it is no cube."""
    volumes = read_arrays(path)

    def results(settings: CubeSettings) -> Results:
        if settings.mm is not None:
            raise UserError(f"--mm {settings.mm:g}: {path} knows no millimetres; leave --mm out")
        window = settings.window or window_for(volumes.cubes)
        for volume, name in zip(volumes.cubes, volumes.names, strict=True):
            image = as_image(volume.astype(np.float32))
            one = settings.filled(longest_side_mm(image), window)  # a voxel counts as one mm
            yield cut_cube(name, image, centre_of(image), one)

    return Job(listing=volumes, results=results, knows_mm=False)


def _run(
    job: Job,
    out: Path,
    settings: CubeSettings,
    about: dict[str, Any],
    progress: Progress = lambda done, total: None,
) -> tuple[Report, bool]:
    """Make the cubes; what was made, and False where another process filled `out` first: its cubes
    stay.

    A cube's side becomes its fact `side_mm`, unless the source gives one and the whole of it was
    taken.
    """
    listing = job.listing
    report = Report(num_asked=len(listing))
    rows: list[int] = []
    sides: list[float] = []
    cuts: list[_CutFacts] = []
    try:
        with folder_aside(out, shared=True) as aside:
            with (aside / _VOXELS).open("wb+") as file:
                _write_header(file, 0, settings.side)
                progress(0, report.num_asked)
                for row, result in enumerate(job.results(settings)):
                    if not isinstance(result, Failure):
                        report.num_flat += int(result.voxels.min() == result.voxels.max())
                        file.write(result.voxels.tobytes())
                        rows.append(row)
                        sides.append(result.side_mm)
                        cuts.append(_facts_of(result))
                    elif result._asdict() not in report.failed[-1:]:  # one scan, several nodules
                        report.failed.append(result._asdict())
                    progress(row + 1, report.num_asked)
                file.seek(0)
                _write_header(file, len(rows), settings.side)  # as long: it leaves room for digits
            if not rows:
                first, *others = (f"{one['name']}: {one['reason']}" for one in report.failed)
                more = f", and {len(others)} more like it" if others else ""
                raise UserError(f"no cube could be made of {about['source']} ({first}{more})")
            report.num_cubes = len(rows)
            report.warnings = [
                *_doubtful_values(cuts),
                *_doubtful_sizes(sides if job.knows_mm else [], listing.facts, rows, settings.side),
            ]
            facts = {key: values[rows] for key, values in listing.facts.items()}
            if job.knows_mm and (settings.mm is not None or "side_mm" not in facts):
                facts["side_mm"] = np.array(sides)
            content = {
                "format": _FORMAT,
                "samepath": __version__,
                **about,
                **asdict(settings),
                "failed": report.failed,
                "sha256": content_hash(aside / _VOXELS),
                "names": [listing.names[row] for row in rows],
                "group": [listing.group[row] for row in rows],
                "split": listing.split and [listing.split[row] for row in rows],
                "facts": {
                    key: {"dtype": values.dtype.str, "values": finite(values.tolist())}
                    for key, values in facts.items()
                },
            }
            (aside / _ABOUT).write_text(json.dumps(content, indent=1, allow_nan=False))
            try:
                aside.rename(out)
            except OSError:
                if (out / _ABOUT).exists():
                    return report, False
                raise
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror or error}") from error
    return report, True


class _CutFacts(NamedTuple):
    """What is kept of a cube to judge them all by."""

    lowest: float
    highest: float
    window: tuple[float, float]
    clipped: float
    """The part of its voxels above the window."""


def _facts_of(cut: Cut) -> _CutFacts:
    return _CutFacts(cut.lowest, cut.highest, cut.window, float((cut.voxels == 255).mean()))


def _doubtful_values(cuts: Sequence[_CutFacts]) -> Iterator[str]:
    """Say where a window does not fit the values. (Outside an image a cube holds the window's low
    end, so that one cube says little of the lowest value.)"""
    low, high = (float(np.median([cut[n] for cut in cuts])) for n in (0, 1))
    if all(cut.window == HOUNSFIELD for cut in cuts) and low >= NOT_AIR and high > 1.0:
        begin, end = (round(value + OFFSET) for value in HOUNSFIELD)
        yield (
            f"values of a cube go from about {low:.0f} to {high:.0f}, and Hounsfield units would "
            f"begin near -1000: if these are HU + {OFFSET}, add --window {begin},{end}; for other "
            "images, --window LOW,HIGH"
        )
        return
    clipped = float(np.mean([cut.clipped for cut in cuts]))
    if clipped > MOST_CLIPPED and not all(cut.window == (0.0, 1.0) for cut in cuts):
        yield (
            f"{clipped:.0%} of the voxels are at the window's high end or above; values of a cube "
            f"go from about {low:.4g} to {high:.4g}: does --window fit them?"
        )


def _doubtful_sizes(
    sides: Sequence[float], facts: Mapping[str, NDArray[Any]], rows: Sequence[int], num_voxels: int
) -> Iterator[str]:
    """Say where what is in the cubes does not fit them, or cubes are of very different sizes."""
    if not sides:
        return
    if max(sides) > MOST_SIDES * min(sides):
        yield (
            f"cubes stand for {min(sides):.3g} to {max(sides):.3g} mm a side, so that nodules of "
            "one size come out in many; add --mm MM for one scale"
        )
    if "diameter_mm" not in facts:
        return
    diameters = np.asarray(facts["diameter_mm"], np.float64)[list(rows)]
    large, small = diameters > np.array(sides), diameters < 2.0 * np.array(sides) / num_voxels
    if large.any():
        yield (
            f"nodules larger than their cube: {large.sum()} of {len(rows)} (up to "
            f"{diameters.max():.3g} mm across); add --mm {math.ceil(1.5 * diameters.max())}"
        )
    if small.any():
        yield (
            f"nodules smaller than two voxels: {small.sum()} of {len(rows)} (from "
            f"{diameters.min():.3g} mm across); add a smaller --mm or a larger --side"
        )


def _write_header(file: IO[bytes], count: int, side: int) -> None:
    header = {"descr": "|u1", "fortran_order": False, "shape": (count, side, side, side)}
    np.lib.format.write_array_header_1_0(file, header)


# ---- opening them


def open_cubes(folder: Path) -> Volumes:
    """A cube folder, its voxels memory-mapped; its checksum is compared first."""
    try:
        return guarded(lambda: _open(folder))
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder} is damaged or incomplete ({brief(error)}); delete it and make it again"
        ) from error


def _open(folder: Path) -> Volumes:
    content = read_object(folder / _ABOUT)
    if content["format"] != _FORMAT:
        raise UserError(
            f"{folder} has cube format {brief(content['format'])}, this samepath reads "
            f"{_FORMAT}; make it again with samepath cubes"
        )
    if content_hash(folder / _VOXELS) != content["sha256"]:
        raise ValueError("the checksum differs")
    with open_plain(folder / _VOXELS) as file:
        cubes = map_array(file)
    if cubes.dtype != np.uint8 or cubes.ndim != 4 or not cubes.size:
        raise ValueError(f"its voxels are {cubes.dtype} of the shape {cubes.shape}")
    check_shape(cubes.shape[1:], folder)
    return Volumes(
        cubes=cubes,
        names=_texts(content["names"]),
        group=_texts(content["group"]),
        facts={key: _column(column) for key, column in content["facts"].items()},
        split=content["split"] and _texts(content["split"]),
    )


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError("names, groups or splits are not text")
    check_text(values)
    return tuple(values)


def _column(column: dict[str, Any]) -> NDArray[Any]:
    """A fact; JSON has no word for NaN and infinity, which are text in it."""
    if not (kind := re.fullmatch(r"[<>|=]([biufU])\d+", column["dtype"])):
        raise ValueError("facts that are neither numbers nor text")
    if kind[1] == "U":  # as long as they are, whatever the type says
        return np.array(_texts(column["values"]))
    return np.array(column["values"], kind[0])


# ---- cubes of LUNA16, made once


def _cached_cubes(folder: Path) -> Volumes:
    """The cubes of a LUNA16 folder, made or only opened. One process makes them, others that need
    the same ones wait."""
    settings = CubeSettings().filled(*LUNA_FILL)
    scans = {
        file.relative_to(folder).as_posix(): file.stat().st_size
        for file in files_below(folder, ".mhd", ".raw", ".zraw", DICOM)
    }
    try:
        annotations = content_hash(folder / ANNOTATIONS)
        cache = Path(os.environ.get("SAMEPATH_CACHE") or "~/.cache/samepath").expanduser()
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}; set SAMEPATH_CACHE=FOLDER") from error
    source = str(folder.resolve())
    key = _short([source, annotations, asdict(settings), _FORMAT])
    exact = cache / f"luna16-{key}-{_short(scans)}"
    if found := _find_made(exact, key, scans):
        return open_cubes(found)
    with _alone(cache / f"luna16-{key}.lock"):
        if found := _find_made(exact, key, scans):  # while this process waited
            return open_cubes(found)
        say(f"making cubes of {folder}, once, into {exact}")
        report, _ = _run(luna_job(folder), exact, settings, {"source": source, "scans": scans})
    if report.failed:
        first = "; ".join(f"{one['name']}: {one['reason']}" for one in report.failed[:3])
        more = f"; and {len(report.failed) - 3} more" if len(report.failed) > 3 else ""
        say(
            f"{report.num_asked - report.num_cubes} of {report.num_asked} cubes could not be made "
            f"(all reasons: {exact / _ABOUT}): {first}{more}"
        )
    return open_cubes(exact)


def _find_made(exact: Path, key: str, scans: dict[str, int]) -> Path | None:
    """A cube folder made of these scans, or of these and more."""
    for made in (exact, *sorted(exact.parent.glob(f"luna16-{key}-*"))):
        try:
            known = read_object(made / _ABOUT)["scans"]
            if scans.items() <= known.items():
                return made
        except FileNotFoundError:
            continue
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            if made == exact:
                return made  # damaged: opening it says so
    return None


def _short(content: Any) -> str:
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Let one process in at a time, if the file system has locks; else the rename decides."""
    patience = Patience(WAIT_SECONDS)
    try:
        file = lock.open("w")
    except OSError as error:
        raise UserError(f"{lock}: {error.strerror}; set SAMEPATH_CACHE=FOLDER") from error
    with file:
        while not try_lock(file):
            patience.pause(f"the process that makes the same cubes and has locked {lock}")
        yield
