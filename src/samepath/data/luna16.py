"""Cubes made of scans: LUNA16's nodules first of all; also NIfTI scans and NumPy volumes.

In: a LUNA16 folder (`annotations.csv`, .mhd/.raw scans anywhere below), a folder of NIfTI files,
or an .npz/.npy file; side, millimetres and intensity window. Out: a cube folder, `cubes.npy`
(uint8, 255 for the top of the window) and `cubes.json` (all else). Guaranteed: each scan is read
once; a scan that is missing or damaged is listed, not fatal; a cube folder is written aside and
renamed, so that it is complete or absent, whoever else makes the same one at the same time.
Long because all sources are made, kept and cached the same way.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from samepath.data.images import (
    HOUNSFIELD,
    CubeSettings,
    Image,
    ImageProblem,
    as_bytes,
    as_image,
    centre_of,
    files_below,
    longest_side_mm,
    read_image,
    sample_cube,
    simpleitk,
    window_for,
)
from samepath.data.volumes import (
    FORMAT,
    Listing,
    Volumes,
    dump_column,
    list_nifti,
    open_cubes,
    read_arrays,
    read_table,
)
from samepath.errors import UserError
from samepath.version import __version__

COLUMNS = ("seriesuid", "coordX", "coordY", "coordZ", "diameter_mm")
LUNA_MM = 32.0


class Nodule(NamedTuple):
    """A row of LUNA16's annotations."""

    series: str
    centre_mm: tuple[float, float, float]
    diameter_mm: float


class Failure(NamedTuple):
    """What could not be made into cubes, and why."""

    name: str
    reason: str


Result: TypeAlias = "tuple[int, NDArray[np.uint8] | Failure]"
Job: TypeAlias = "tuple[Listing, Callable[[CubeSettings], Iterator[Result]]]"
"""What is known about each cube to be made, and the function that makes them, in order."""


@dataclass(kw_only=True)
class Report:
    """What was made."""

    num_asked: int
    num_cubes: int = 0
    num_flat: int = 0
    """Cubes with one single value, as when all values lie outside the window."""

    failed: list[dict[str, str]] = field(default_factory=list)


# ---- LUNA16


def read_annotations(path: Path) -> list[Nodule]:
    """LUNA16's annotation file, in its order; more columns than LUNA16's do no harm."""
    nodules: list[Nodule] = []
    for line, row in read_table(path, COLUMNS):
        if not row["seriesuid"]:
            raise UserError(f"{path}, line {line}: seriesuid is empty")
        x, y, z, diameter = (_number(row[name], name, path, line) for name in COLUMNS[1:])
        nodules.append(Nodule(row["seriesuid"], (x, y, z), diameter))
    if not nodules:
        raise UserError(f"{path} holds no nodules, only column names; give LUNA16's file")
    return nodules


def _number(text: str, column: str, path: Path, line: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{path}, line {line}: {column} is {text!r}, which is no number")
    return value


def _luna_job(folder: Path) -> Job:
    by_series: dict[str, list[tuple[str, Nodule]]] = {}
    for row, nodule in enumerate(read_annotations(folder / "annotations.csv")):
        named = (f"{nodule.series}#{row}", nodule)
        by_series.setdefault(nodule.series, []).append(named)
    ordered = [pair for pairs in by_series.values() for pair in pairs]
    scans = {scan.stem: scan for scan in reversed(files_below(folder, (".mhd",)))}

    def results(settings: CubeSettings) -> Iterator[Result]:
        rows = itertools.count()
        for series, pairs in by_series.items():
            image: Image = None
            failure = Failure(series, "no .mhd scan of this name below the folder")
            if series in scans:
                try:
                    image = read_image(scans[series])
                except ImageProblem as problem:
                    failure = Failure(series, str(problem))
            for name, nodule in pairs:
                result = failure if image is None else _cut(name, image, nodule.centre_mm, settings)
                yield next(rows), result

    listing = Listing(
        names=tuple(name for name, _ in ordered),
        group=tuple(nodule.series for _, nodule in ordered),
        facts={"diameter_mm": np.array([n.diameter_mm for _, n in ordered], np.float32)},
    )
    return listing, results


# ---- other sources


def _nifti_job(folder: Path) -> Job:
    files, listing = list_nifti(folder)

    def results(settings: CubeSettings) -> Iterator[Result]:
        for row, (file, name) in enumerate(zip(files, listing.names, strict=True)):
            try:
                image = read_image(file)
            except ImageProblem as problem:
                yield row, Failure(name, str(problem))
                continue
            values = simpleitk().GetArrayViewFromImage(image)
            one = settings.filled(longest_side_mm(image), window_for(values[None]))
            yield row, _cut(name, image, centre_of(image), one)

    return listing, results


def _arrays_job(path: Path) -> Job:
    volumes = read_arrays(path)

    def results(settings: CubeSettings) -> Iterator[Result]:
        if settings.mm is not None:
            raise UserError(f"--mm {settings.mm:g}: {path} knows no millimetres; leave --mm out")
        window = settings.window or window_for(volumes.cubes)
        for row, name in enumerate(volumes.names):
            image = as_image(volumes.cubes[row].astype(np.float32))
            one = settings.filled(longest_side_mm(image), window)  # a voxel counts as one mm
            yield row, _cut(name, image, centre_of(image), one)

    return volumes, results


def _cut(
    name: str, image: Image, centre_mm: tuple[float, float, float], settings: CubeSettings
) -> NDArray[np.uint8] | Failure:
    side, mm, window = settings.side, settings.mm, settings.window
    assert mm is not None
    assert window is not None
    try:
        values = sample_cube(image, centre_mm=centre_mm, side=side, mm=mm, fill=window[0])
    except ImageProblem as problem:
        return Failure(name, str(problem))
    return as_bytes(values, window)


# ---- making them


def find_job(source: Path) -> Job:
    """What cubes can be made of a file or folder."""
    if not source.exists():
        raise UserError(f"{source}: no such file or folder; give a LUNA16 folder or an .npz file")
    if source.is_file():
        return _arrays_job(source)
    if (source / "cubes.json").exists():
        raise UserError(f"{source} holds cubes already; use it as it is")
    return _luna_job(source) if (source / "annotations.csv").exists() else _nifti_job(source)


def make_cubes(
    source: Path,
    out: Path,
    settings: CubeSettings | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Make a cube folder `out` of a source; `progress(done, total)` is called as it goes."""
    settings = settings or CubeSettings()
    source, out = source.expanduser(), Path(os.path.abspath(out.expanduser()))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {out} exists and is not empty; give a new folder, or delete it")
    if (source / "annotations.csv").exists():
        settings = settings.filled(LUNA_MM, HOUNSFIELD)
    report, was_first = _make(find_job(source), source, out, settings, progress)
    if not was_first:
        raise UserError(f"--out {out} was filled by someone else meanwhile; give a new folder")
    return report


def _make(
    job: Job,
    source: Path,
    out: Path,
    settings: CubeSettings,
    progress: Callable[[int, int], None],
    **more: Any,
) -> tuple[Report, bool]:
    listing, results = job
    report = Report(num_asked=len(listing))

    def made() -> Iterator[tuple[int, NDArray[np.uint8]]]:
        progress(0, len(listing))
        for row, result in results(settings):
            if isinstance(result, Failure):
                if result._asdict() not in report.failed[-1:]:  # one scan, several nodules
                    report.failed.append(result._asdict())
            else:
                report.num_cubes += 1
                report.num_flat += int(result.min() == result.max())
                yield row, result
            progress(row + 1, len(listing))

    about = {"source": str(source.resolve()), **asdict(settings), "failed": report.failed, **more}
    return report, write_cubes(out, listing, made(), settings.side, about)


def cached_cubes(folder: Path) -> Volumes:
    """Cubes of a LUNA16 folder with the default settings: made once, then only opened.

    They live in `$SAMEPATH_CACHE` or `~/.cache/samepath`, by the folder's path, its annotations,
    the settings and its scan files with their sizes. Scans deleted since do no harm; new or
    changed ones make new cubes. One process makes them, others that need the same ones wait.
    """
    settings = CubeSettings().filled(LUNA_MM, HOUNSFIELD)
    scans = {
        file.relative_to(folder).as_posix(): file.stat().st_size
        for file in files_below(folder, (".mhd", ".raw", ".zraw"))
    }
    try:
        annotations = (folder / "annotations.csv").read_bytes()
        cache = Path(os.environ.get("SAMEPATH_CACHE") or "~/.cache/samepath").expanduser()
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}; set SAMEPATH_CACHE=FOLDER") from error
    digest = hashlib.sha256(annotations).hexdigest()
    key = _short([str(folder.resolve()), digest, asdict(settings), FORMAT])
    exact = cache / f"luna16-{key}-{_short(scans)}"
    if found := _find_made(cache, exact.name, key, scans):
        return open_cubes(found)
    with _alone(cache / f"luna16-{key}.lock"):
        if found := _find_made(cache, exact.name, key, scans):  # while this process waited
            return open_cubes(found)
        print(f"samepath: making cubes of {folder}, once, into {exact}", file=sys.stderr)
        report, _ = _make(
            _luna_job(folder), folder, exact, settings, lambda done, total: None, scans=scans
        )
    if report.failed:
        print(f"samepath: {failures_line(report, exact)}", file=sys.stderr)
    return open_cubes(exact)


def _find_made(cache: Path, exact: str, key: str, scans: dict[str, int]) -> Path | None:
    """A cube folder made of these scans, or of these and more."""
    for made in (cache / exact, *sorted(cache.glob(f"luna16-{key}-*"))):
        try:
            known = json.loads((made / "cubes.json").read_text())["scans"]
            if scans.items() <= known.items():
                return made
        except FileNotFoundError:
            continue
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            if made.name == exact:
                return made  # damaged: opening it says so
    return None


def failures_line(report: Report, folder: Path) -> str:
    """How many could not be made, the first few by name."""
    first = "; ".join(f"{one['name']}: {one['reason']}" for one in report.failed[:3])
    more = f"; and {len(report.failed) - 3} more" if len(report.failed) > 3 else ""
    missing = report.num_asked - report.num_cubes
    return (
        f"{missing} of {report.num_asked} cubes could not be made (all reasons: "
        f"{folder / 'cubes.json'}): {first}{more}"
    )


def _short(content: Any) -> str:
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process at a time, where the file system can; elsewhere the rename decides."""
    import fcntl

    try:
        file = lock.open("w")
    except OSError as error:
        raise UserError(f"{lock}: {error.strerror}; set SAMEPATH_CACHE=FOLDER") from error
    with file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


# ---- cube folders


def write_cubes(
    out: Path,
    listing: Listing,
    made: Iterable[tuple[int, NDArray[np.uint8]]],
    side: int,
    about: dict[str, Any],
) -> bool:
    """Write a cube folder of what `made` yields: rows of the listing, in order, with their cubes.

    `about` is read at the end and may be filled while cubes are made. Returns False where someone
    else put a cube folder there first: theirs stays. Raises `UserError` when nothing was made.
    """
    aside = out.with_name(f".{out.name}.{uuid.uuid4().hex}.part")
    rows: list[int] = []
    try:
        aside.mkdir(parents=True)
        with (aside / "cubes.npy").open("wb+") as file:
            _write_header(file, 0, side)
            for row, cube in made:
                file.write(np.ascontiguousarray(cube).tobytes())
                rows.append(row)
            file.seek(0)
            _write_header(file, len(rows), side)  # the same length: numpy leaves room for digits
            file.seek(0)
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
        if not rows:
            first, *others = (f"{one['name']}: {one['reason']}" for one in about["failed"])
            more = f", and {len(others)} more like it" if others else ""
            raise UserError(f"no cube could be made of {about['source']} ({first}{more})")
        content = {"format": FORMAT, "samepath": __version__, **about, "sha256": checksum}
        content |= {"names": [listing.names[row] for row in rows]}
        content |= {"group": [listing.group[row] for row in rows]}
        content |= {"split": listing.split and [listing.split[row] for row in rows]}
        content |= {
            "facts": {key: dump_column(array[rows]) for key, array in listing.facts.items()}
        }
        (aside / "cubes.json").write_text(json.dumps(content, indent=1, allow_nan=False))
        try:
            aside.rename(out)
        except OSError:
            if (out / "cubes.json").exists():
                return False
            raise
        return True
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _write_header(file: IO[bytes], count: int, side: int) -> None:
    header = {"descr": "|u1", "fortran_order": False, "shape": (count, side, side, side)}
    np.lib.format.write_array_header_1_0(file, header)
