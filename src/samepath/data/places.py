"""Where data lies when nobody says: `$SAMEPATH_DATA`, `../shared/data`, the download folder."""

from __future__ import annotations

import os
from pathlib import Path


def download_folder() -> Path:
    """`$SAMEPATH_DATA`, else `$SAMEPATH_CACHE`, else `~/.cache/samepath`."""
    names = (os.environ.get("SAMEPATH_DATA"), os.environ.get("SAMEPATH_CACHE"))
    return Path(next(filter(None, names), "~/.cache/samepath")).expanduser()


def data_folders() -> list[Path]:
    """Folders that may hold data, the first to be looked at first."""
    said = os.environ.get("SAMEPATH_DATA")
    return [*([Path(said).expanduser()] if said else []), Path("../shared/data"), download_folder()]
