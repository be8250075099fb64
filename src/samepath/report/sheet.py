"""Sheets to put pictures on, and what all figures share.

In: pictures and text with places in inches. Out: a PNG, its folder made if need be.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from samepath.report.ellipsoids import CUBE_WIDTH, Floats, cube_edges

DPI = 130


class Sheet:
    """A figure on which things are put in inches from the left and from the top."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width, height))

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        bottom = self.height - top - height
        return self.figure.add_axes(
            (left / self.width, bottom / self.height, width / self.width, height / self.height)
        )

    def tile(self, picture: Floats, left: float, top: float, size: float) -> None:
        """A picture, grey or RGBA, in a frame that shows where it ends on the white page."""
        axes = self.axes(left, top, size, size)
        axes.set_facecolor("0.95")
        axes.imshow(picture, cmap="gray", vmin=0.0, vmax=1.0, aspect="auto")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set(color="0.6", linewidth=0.5)

    def cube(self, picture: Floats, left: float, top: float, size: float) -> None:
        """A picture made with CUBE_WIDTH, with the cube's edges, but for those in front of it."""
        axes = self.axes(left, top, size, size)
        axes.imshow(picture, extent=(-CUBE_WIDTH, CUBE_WIDTH, -CUBE_WIDTH, CUBE_WIDTH), zorder=2)
        axes.add_collection(LineCollection(cube_edges(), colors="0.75", lw=1.0, zorder=1))
        axes.set(xlim=(-CUBE_WIDTH, CUBE_WIDTH), ylim=(-CUBE_WIDTH, CUBE_WIDTH))
        axes.set_axis_off()

    def text(self, left: float, top: float, text: str, **how: Any) -> None:
        """Text as it is given: a dollar sign is a dollar sign."""
        how = {"fontsize": 10, "va": "center", "ha": "center", "parse_math": False, **how}
        self.figure.text(left / self.width, 1.0 - top / self.height, text, **how)

    def row_label(self, right: float, middle: float, name: str, below: str = "") -> None:
        """A name and perhaps a line below it, to the left of a row of tiles."""
        lines = textwrap.wrap(clip(name, 36), 15)[:3]
        rise = 0.09 * len(lines) if below else 0.0
        self.text(right - 0.12, middle - rise, "\n".join(lines), ha="right", weight="bold")
        self.text(right - 0.12, middle + 0.18, below, ha="right", color="0.35")

    def save(self, out: Path) -> None:
        save_figure(self.figure, out)


def save_figure(figure: Figure, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=DPI)


def clip(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def title_size(title: str) -> float:
    """Points in which a title of any length fits a figure ten inches wide."""
    return min(13.0, 13.0 * 75.0 / max(len(title), 1))


def central_slices(volume: Floats) -> Iterator[Floats]:
    """Axial, coronal and sagittal, the last two with z upwards."""
    middle = volume.shape[0] // 2
    yield volume[middle]
    yield volume[::-1, middle]
    yield volume[::-1, :, middle]
