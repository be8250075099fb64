"""Cubes of a LUNA16 folder, made once and kept.

In: a LUNA16 folder. Out: its cubes with the default settings. They live in `$SAMEPATH_CACHE` or
`~/.cache/samepath`, by the folder's path, its annotations, the settings and its scan files with
their sizes. Scans deleted since do no harm; new or changed ones make new cubes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from samepath.console import Patience, say
from samepath.data.formats.cube_folder import ABOUT, FORMAT, open_cubes
from samepath.data.formats.cutting import CubeSettings
from samepath.data.formats.listing import Volumes
from samepath.data.formats.luna16 import ANNOTATIONS, luna_job, luna_settings
from samepath.data.formats.make_cubes import Report, run_job
from samepath.data.formats.tables import files_below
from samepath.errors import UserError
from samepath.files import content_hash, read_object, try_lock

WAIT_SECONDS = 3600.0
"""For somebody else's cubes."""


def cached_cubes(folder: Path) -> Volumes:
    """Made or only opened. One process makes them, others that need the same ones wait."""
    settings = luna_settings(CubeSettings())
    scans = {
        file.relative_to(folder).as_posix(): file.stat().st_size
        for file in files_below(folder, ".mhd", ".raw", ".zraw")
    }
    try:
        annotations = content_hash(folder / ANNOTATIONS)
        cache = Path(os.environ.get("SAMEPATH_CACHE") or "~/.cache/samepath").expanduser()
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}; set SAMEPATH_CACHE=FOLDER") from error
    source = str(folder.resolve())
    key = _short([source, annotations, asdict(settings), FORMAT])
    exact = cache / f"luna16-{key}-{_short(scans)}"
    if found := _find_made(exact, key, scans):
        return open_cubes(found)
    with _alone(cache / f"luna16-{key}.lock"):
        if found := _find_made(exact, key, scans):  # while this process waited
            return open_cubes(found)
        say(f"making cubes of {folder}, once, into {exact}")
        about = {"source": source, "scans": scans}
        report, _ = run_job(luna_job(folder), exact, settings, about)
    if report.failed:
        say(_failures_line(report, exact))
    return open_cubes(exact)


def _find_made(exact: Path, key: str, scans: dict[str, int]) -> Path | None:
    """A cube folder made of these scans, or of these and more."""
    for made in (exact, *sorted(exact.parent.glob(f"luna16-{key}-*"))):
        try:
            known = read_object(made / ABOUT)["scans"]
            if scans.items() <= known.items():
                return made
        except FileNotFoundError:
            continue
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            if made == exact:
                return made  # damaged: opening it says so
    return None


def _failures_line(report: Report, folder: Path) -> str:
    """How many could not be made, the first few by name."""
    first = "; ".join(f"{one['name']}: {one['reason']}" for one in report.failed[:3])
    more = f"; and {len(report.failed) - 3} more" if len(report.failed) > 3 else ""
    missing = report.num_asked - report.num_cubes
    return (
        f"{missing} of {report.num_asked} cubes could not be made (all reasons: "
        f"{folder / ABOUT}): {first}{more}"
    )


def _short(content: Any) -> str:
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process at a time, where the file system can; elsewhere the rename decides."""
    patience = Patience(WAIT_SECONDS)
    try:
        file = lock.open("w")
    except OSError as error:
        raise UserError(f"{lock}: {error.strerror}; set SAMEPATH_CACHE=FOLDER") from error
    with file:
        while not try_lock(file):
            patience.pause(f"the process that makes the same cubes and has locked {lock}")
        yield
