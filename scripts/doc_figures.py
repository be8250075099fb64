"""Put a report's figure into docs/images, and its name into the pages that show it."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]


def place_figure(figure: Path, name: str, root: Path = ROOT) -> None:
    """Copy a figure as docs/images/<name>, with the figure's own suffix; a figure of that name with
    another suffix is removed, and pages that show it show the new one."""
    images = root / "docs" / "images"
    shutil.copy(figure, images / f"{name}{figure.suffix}")
    for old in (images / f"{name}{suffix}" for suffix in (".png", ".svg")):
        if old.suffix == figure.suffix or not old.exists():
            continue
        old.unlink()
        for page in [*root.glob("*.md"), *(root / "docs").rglob("*.md")]:
            text = page.read_text(encoding="utf-8")
            changed = text.replace(f"images/{old.name})", f"images/{name}{figure.suffix})")
            if changed != text:
                page.write_text(changed, encoding="utf-8")
