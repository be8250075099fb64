"""LUNA16: one cube around each annotated nodule.

In: a folder with `annotations.csv` and .mhd/.raw scans anywhere below. Out: a `Job`. Guaranteed:
each scan is read once, and one that is missing or damaged is listed, not fatal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from samepath.data.formats.cutting import HOUNSFIELD, CubeSettings, Failure, Job, Result, cut_cube
from samepath.data.formats.images import read_image
from samepath.data.formats.listing import Listing
from samepath.data.formats.nifti import ImageProblem
from samepath.data.formats.tables import files_below, read_table
from samepath.errors import UserError
from samepath.files import brief

ANNOTATIONS = "annotations.csv"
_COLUMNS = ("seriesuid", "coordX", "coordY", "coordZ", "diameter_mm")


class Nodule(NamedTuple):
    """A row of LUNA16's annotations."""

    series: str
    centre_mm: tuple[float, float, float]
    diameter_mm: float


def luna_settings(settings: CubeSettings) -> CubeSettings:
    """The same with what suits LUNA16 in place of None."""
    return settings.filled(32.0, HOUNSFIELD)


def luna_job(folder: Path) -> Job:
    """The annotated nodules, scan by scan; nodule 7 of the file is named 'seriesuid#7'."""
    by_series: dict[str, dict[str, Nodule]] = {}
    for row, nodule in enumerate(read_annotations(folder / ANNOTATIONS)):
        by_series.setdefault(nodule.series, {})[f"{nodule.series}#{row}"] = nodule
    nodules = {name: nodule for named in by_series.values() for name, nodule in named.items()}
    scans = {scan.stem: scan for scan in reversed(files_below(folder, ".mhd"))}

    def results(settings: CubeSettings) -> Iterator[Result]:
        for series, named in by_series.items():
            yield from _cut_scan(series, scans.get(series), named, settings)

    diameters = [nodule.diameter_mm for nodule in nodules.values()]
    listing = Listing(
        names=tuple(nodules),
        group=tuple(nodule.series for nodule in nodules.values()),
        facts={"diameter_mm": np.array(diameters, np.float32)},
    )
    return Job(listing=listing, results=results)


def _cut_scan(
    series: str, scan: Path | None, named: dict[str, Nodule], settings: CubeSettings
) -> Iterator[Result]:
    try:
        if scan is None:
            raise ImageProblem("no .mhd scan of this name below the folder")
        image = read_image(scan)
    except ImageProblem as problem:
        yield from [Failure(series, str(problem))] * len(named)
        return
    for name, nodule in named.items():
        yield cut_cube(name, image, nodule.centre_mm, settings)


def read_annotations(path: Path) -> list[Nodule]:
    """LUNA16's annotation file, in its order; more columns than LUNA16's do no harm."""
    nodules: list[Nodule] = []
    for line, row in read_table(path, _COLUMNS):
        if not row["seriesuid"]:
            raise UserError(f"{path}, line {line}: seriesuid is empty")
        x, y, z, diameter = (
            _number(row[name], f"{path}, line {line}: {name}") for name in _COLUMNS[1:]
        )
        nodules.append(Nodule(row["seriesuid"], (x, y, z), diameter))
    if not nodules:
        raise UserError(f"{path} holds no nodules, only column names; give LUNA16's file")
    return nodules


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{where} is {brief(repr(text))}, which is no number")
    return value
