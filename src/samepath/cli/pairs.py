"""`samepath pairs`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from samepath.cli import common
from samepath.cli.cubes import parse_window
from samepath.console import count, status


@click.command(short_help="Write cubes as volumes that 3D Slicer and MONAI open.")
@click.argument("cubes", type=common.PATH, metavar="CUBES")
@common.out_option("The folder to write.", required=True)
@common.setting(
    "--format",
    "nifti",
    None,
    "nifti: volume and mask as .nii.gz. dicom: a CT series and a DICOM-SEG.",
    type=click.Choice(["nifti", "dicom"]),
)
@common.setting(
    "--window",
    "-1000,400",
    "LOW,HIGH",
    "Values that 0 and 1 stand for (Hounsfield units).",
    callback=common.parsed_by(parse_window),
)
@click.option(
    "--spacing",
    type=float,
    metavar="MM",
    help="Millimetres of a voxel.  [from the file's side_mm, else 1]",
)
@common.json_option
def pairs(
    cubes: Path,
    out: Path,
    format: Any,
    window: tuple[float, float],
    spacing: float | None,
    as_json: bool,
) -> None:
    """Write CUBES (an .npz with volume, perhaps mask) as pairs that 3D Slicer and MONAI open.

    A folder of NIfTI pairs is data too: samepath train nodules-ct --data new, worth --data new,
    generate --into new.

    \b
    Examples:
      samepath pairs new.npz --out new
      samepath pairs new.npz --out new-dicom --format dicom
    """
    common.announce(f"writing {cubes} as {format} pairs", into=out)

    from samepath.data.formats.pairs import write_pairs

    with status("writing the volumes") as line:
        result = write_pairs(
            cubes,
            out,
            format,
            window=window,
            spacing_mm=spacing,
            progress=lambda done, total: line.update(f"writing volume {done + 1} of {total}"),
        )
    if as_json:
        common.print_json(
            {
                "out": str(result.out),
                "volumes": result.num_volumes,
                "masks": result.has_masks,
                "spacing_mm": result.spacing_mm,
                "knows_mm": result.knows_mm,
            }
        )
        return
    what = "with masks" if result.has_masks else "without masks: the file has no array 'mask'"
    click.echo(f"{count(result.num_volumes, 'volume')} in {result.out}, {what}")
    if not result.knows_mm:
        click.echo(f"{cubes} says no size: a voxel counts as 1 mm (--spacing MM)")
