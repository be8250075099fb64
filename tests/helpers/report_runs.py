"""Runs that were never trained, and what reports draw of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def write_run(folder: Path, lines: list[dict[str, Any]]) -> Path:
    """A run's folder with these lines of metrics."""
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def epoch_lines(num_epochs: int, seconds: float, factor: float = 1.0) -> list[dict[str, Any]]:
    """Losses that fall with the epoch, one line an epoch of so many seconds."""
    return [
        {
            "step": epoch + 1,
            "epoch": epoch,
            "epoch_train_loss": factor / (epoch + 1),
            "valid_loss": 2.0 * factor / (epoch + 1),
            "seconds": seconds * (epoch + 1),
        }
        for epoch in range(num_epochs)
    ]


def count_pixels(image: Any, colour: str, within: float = 0.02) -> int:
    """How many pixels of a picture have a colour, such as "#08306b"."""
    wanted = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return int((np.abs(image[:, :, :3] - wanted).max(axis=2) < within).sum())
