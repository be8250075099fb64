"""The folder of one finding: advice, a profile, curvature, a simulation.

In: a kind, and what was found. Out: `<kind>.json` in a folder of its own, beside figures, a page
and whatever else the kind keeps. Guaranteed: the folder is made only when there is something to
write, so that a command that fails leaves nothing; nothing of another finding is overwritten; the
JSON is written last and whole, so that a folder that has it is complete.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from samepath.errors import UserError
from samepath.files import brief, finite, make_folder, read_as, read_object, write_atomically
from samepath.version import __version__

Kind: TypeAlias = Literal["advice", "profile", "curvature", "simulation"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FORMAT = 1
BRANCHES = "branches"
"""Folder of the runs that an advice trains, inside its own."""


def choose_folder(kind: str, name: str, out: Path | None, begun: str | None = None) -> Path:
    """The folder asked for, or insight/<name>-<kind>-<number>; refused unless it is new or empty,
    or holds `begun` and no finding: then it was begun, stopped, and is gone on with. It is not made
    yet."""

    def is_begun(folder: Path) -> bool:
        return begun is not None and (folder / begun).is_dir() and kind_of(folder) is None

    if out is None:
        number = 1
        while (found := Path("insight") / f"{Path(name).stem}-{kind}-{number}").exists():
            if is_begun(found):
                break
            number += 1
        return found
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; give a folder")
    if out.is_dir() and any(out.iterdir()) and not is_begun(out):
        raise UserError(f"--out {out} is not empty; give a new folder")
    return out


def write_finding(
    folder: Path, kind: Kind, *, recipe: str, command: Sequence[str], content: Mapping[str, Any]
) -> None:
    """`<kind>.json`; the folder is made if need be."""
    make_folder(folder)
    whole = {
        "format": FORMAT,
        "kind": kind,
        "recipe": recipe,
        "command": list(command),
        "versions": _versions(),
        "time": time.time(),
        **content,
    }
    write_atomically(folder / f"{kind}.json", json.dumps(finite(whole), indent=1) + "\n")


def _versions() -> dict[str, str]:
    """What the finding was made with: as run.json says it, or, where nothing was computed with
    torch (a simulation of what was measured before), without loading torch to ask."""
    if "torch" in sys.modules:
        from samepath.engine.checks.fingerprints import versions

        return versions()
    libraries = {name: metadata.version(name) for name in ("torch", "numpy")}
    return {
        "samepath": __version__,
        **libraries,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def kind_of(folder: Path) -> Kind | None:
    """Name the finding that a folder holds, or None."""
    return next((kind for kind in KINDS if (folder / f"{kind}.json").is_file()), None)


def read_finding(folder: Path, kind: Kind) -> dict[str, Any]:
    """What `<kind>.json` says."""
    file = folder / f"{kind}.json"
    if not file.is_file():
        raise UserError(f"{folder} holds no {kind} (there is no {kind}.json); check the path")
    try:
        content = read_object(file)
        if content["format"] == FORMAT:
            _check(content, kind)
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else error
        raise UserError(f"{file} cannot be read ({brief(why)}); it is no {kind} of ours") from None
    if content["format"] != FORMAT:
        found = brief(repr(content["format"]))
        raise UserError(f"{file} has format {found}; this samepath reads {FORMAT}")
    return content


def _check(content: Mapping[str, Any], kind: Kind) -> None:
    """Raise unless what is read of findings of every kind has the form we write."""
    read_as(tuple[str, ...], content["command"])
    read_as(float, content["time"])
    if content["kind"] != kind:
        raise ValueError(f"it is a {content['kind']}")
    places = [run["path"] for run in content["runs"]] if kind == "curvature" else []
    for text in (content["recipe"], *places):
        if "\0" in read_as(str, text):
            raise ValueError(f"{text!r} is no name")
