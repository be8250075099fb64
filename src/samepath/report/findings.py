"""What was found out about a run's recipe, in the run's own report.

In: a run's folder. Out: sections: of each kind the newest finding that is about it (curvature that
was measured of this very run; advice, a profile or a simulation of its recipe). Findings are looked
for in the run's folder and in `insight/`, beside `runs/` and here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from samepath.errors import UserError
from samepath.insight.folder import Kind, kind_of, read_finding
from samepath.report.page import Section


def finding_sections(run: Path, recipe: str) -> list[Section]:
    """One section a picture; the first of a finding has its verdict."""
    newest: dict[Kind, tuple[Path, dict[str, Any]]] = {}
    sections = []
    for folder, kind in _folders(run):
        try:
            content = read_finding(folder, kind)
        except UserError as error:
            sections.append(Section(heading=kind.capitalize(), words=str(error)))
            continue
        is_newer = kind not in newest or content["time"] > newest[kind][1]["time"]
        if is_newer and _is_about(content, run, recipe):
            newest[kind] = folder, content
    for kind, (folder, content) in newest.items():
        command = " ".join(map(str, content["command"]))
        sections.append(
            Section(
                heading=kind.capitalize(),
                words=str(content.get("verdict") or content.get("summary", "")),
                note=f"{folder}: {command}",
            )
        )
        for picture in sorted(folder.glob("*.png")):
            heading = f"{kind.capitalize()}: {picture.stem.replace('_', ' ')}"
            sections.append(Section(heading=heading, picture=picture))
    return sections


def _folders(run: Path) -> Iterator[tuple[Path, Kind]]:
    places = {run.resolve(), run.resolve().parent.parent / "insight", Path("insight").resolve()}
    for place in sorted(places):
        for folder in _inside(place):
            kind = kind_of(folder)
            if kind is not None:
                yield folder, kind


def _is_about(content: dict[str, Any], run: Path, recipe: str) -> bool:
    if content["kind"] != "curvature":
        return bool(content["recipe"] == recipe)
    here = os.path.realpath(run)
    return any(os.path.realpath(each["path"]) == here for each in content["runs"])


def _inside(place: Path) -> list[Path]:
    """What a folder holds; nothing where there is none, or it is closed to us."""
    try:
        return sorted(place.iterdir())
    except OSError:
        return []
