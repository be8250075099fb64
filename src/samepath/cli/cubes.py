"""`samepath cubes`: scans and volumes of any shape as cubes to learn from."""

from __future__ import annotations

import shlex
from contextlib import closing
from pathlib import Path

import click

from samepath.cli import common
from samepath.console import LiveWatcher, SilentWatcher, count, print_text
from samepath.errors import UserError

SHOWN = 5


def parse_window(text: str) -> tuple[float, float]:
    """Read what --window is given."""
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--window {text}: give LOW,HIGH, such as -1000,400") from None
    return low, high


@click.command(short_help="Make equal cubes of scans, for train nodules --data.")
@click.argument("source", type=common.PATH)
@common.out_option("The folder to make (new).", required=True)
@common.setting("--side", 16, None, "Voxels along each side.")
@click.option(
    "--mm",
    type=float,
    metavar="MM",
    help="Millimetres along each side.  [default: 32 for LUNA16, each image's longest side else]",
)
@click.option(
    "--window",
    metavar="LOW,HIGH",
    callback=common.parsed_by(parse_window),
    help="Values that become 0 and 1.  [default: -1000,400; values in 0..1 and bytes keep theirs]",
)
@common.json_option
def cubes(
    source: Path,
    out: Path,
    side: int,
    mm: float | None,
    window: tuple[float, float] | None,
    as_json: bool,
) -> None:
    """Make a folder of equal cubes of SOURCE, for samepath train nodules --data.

    SOURCE is a LUNA16 folder (annotations.csv, .mhd scans or DICOM series anywhere below: one cube
    around each nodule), a folder of NIfTI images or of DICOM series (one cube of each, around its
    centre), or an .npz or .npy file of volumes (padded to cubes). Scans that cannot be read are
    listed, not fatal; values and sizes that look wrong are warned of, and preview.png in the folder
    shows some of the cubes.

    \b
    Examples:
      samepath cubes LUNA16 --out luna-cubes
      samepath cubes crops --out crop-cubes --side 32 --window -1000,400
      samepath cubes volumes.npz --out cubes --window 0,4095
    """
    common.announce(f"making cubes of {source}", into=out)

    from samepath.data.formats.scans import CubeSettings
    from samepath.data.formats.volumes import load_volumes, make_cubes
    from samepath.report.nodules import draw_cubes

    settings = CubeSettings(side=side, mm=mm, window=window)
    # Drawn between images only: while one is read, standard error is not the terminal
    watcher = SilentWatcher() if as_json else LiveWatcher(own_thread=False)
    with closing(watcher):
        report = make_cubes(
            source, out, settings, lambda done, total: watcher.progress("cubes", done, total)
        )
    preview = draw_cubes(load_volumes(out), out / "preview.png")
    again = f"samepath train nodules --data {shlex.quote(str(out))}"
    if as_json:
        common.print_json(
            {
                "folder": str(out),
                "cubes": report.num_cubes,
                "asked": report.num_asked,
                "flat": report.num_flat,
                "side": side,
                "failed": report.failed,
                "warnings": report.warnings,
                "preview": str(preview),
                "next": again,
            }
        )
        return
    click.echo(f"{count(report.num_cubes, 'cube')} of {side} x {side} x {side} voxels in {out}")
    for warning in report.warnings:
        print_text(f"warning: {warning}")
    if report.num_flat:
        click.echo(
            f"{count(report.num_flat, 'cube')} with one single value: does --window fit the data?"
        )
    if report.failed:
        click.echo(
            f"{count(report.num_asked - report.num_cubes, 'cube')} could not be made "
            f"({count(len(report.failed), 'reason')}, all in {out / 'cubes.json'}):"
        )
        for failure in report.failed[:SHOWN]:
            click.echo(f"  {failure['name']}: {failure['reason']}")
        if len(report.failed) > SHOWN:
            click.echo(f"  and {len(report.failed) - SHOWN} more")
    click.echo(f"preview: {preview}")
    click.echo(again)
