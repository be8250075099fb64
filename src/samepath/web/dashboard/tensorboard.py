"""Event files of runs that have been trained already.

In: a run, or a folder with runs somewhere below it. Out: an event file for each. Guaranteed: bad
input raises before anything is written; a run that cannot be read is left out, with the reason; the
folder of a run that is training is not touched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from samepath.engine.run.tensorboard import EventWriter, require_tensorboard
from samepath.errors import UserError
from samepath.web.dashboard.contents import RootFolder, search


@dataclass(frozen=True, kw_only=True)
class Converted:
    """Event files that were written, and runs that were left out."""

    logdir: Path
    """The folder to give TensorBoard."""
    files: dict[str, str] = field(default_factory=dict)
    """Event files by run."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Reasons by run that was left out."""


def convert(folder: Path, out: Path | None, tell: Callable[[str], None]) -> Converted:
    """Write the event files of every run under a folder."""
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; give a run, or a folder with runs")
    if out is not None and out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; give a folder")
    require_tensorboard()
    root = RootFolder(folder)
    runs = sorted(found.folder for found in search(root).items if found.kind == "run")
    if not runs:
        raise UserError(f"{folder} holds no run (there is no run.json below it); check the path")
    done = Converted(logdir=folder if out is None else out)
    for place in runs:
        run = folder / place
        name = run.resolve().name if place == "." else place
        tell(name)
        if out is None and root.is_locked(place):
            done.skipped[name] = "it is training now; give --out"
            continue
        try:
            writer = EventWriter(run, None if out is None else out / name)
            writer.close()
            done.files[name] = str(writer.path)
        except (UserError, OSError) as error:
            done.skipped[name] = str(error)
    return done
