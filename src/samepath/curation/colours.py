"""The colour of each class, the same in every figure and in the explorer.

In: how many classes there are. Out: for each a colour for a light background and one for a dark
one. The first twelve are Okabe and Ito's and Tol's, which colour-blind people can tell apart; more
classes get hues of their own, neighbours in number far apart.
"""

from __future__ import annotations

import colorsys

LIGHT = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9",
    "#882255", "#999933", "#332288", "#44AA99", "#AA4499", "#8C5A2B",
)  # fmt: skip
DARK = (
    "#4BA3E3", "#F0B541", "#2BC49B", "#FF8147", "#E9A0CB", "#9ADBFF",
    "#D9668F", "#CFCF63", "#9C8CF2", "#7FD8C4", "#D58AD5", "#CC9A70",
)  # fmt: skip
_GOLDEN = 0.618033988749895
_LIGHT_LEVELS, _DARK_LEVELS = (0.32, 0.42, 0.52), (0.58, 0.68, 0.78)


def class_colours(number: int) -> list[tuple[str, str]]:
    """A colour for light and one for dark backgrounds, for each of so many classes."""
    if number <= len(LIGHT):
        return list(zip(LIGHT[:number], DARK[:number], strict=True))
    return [
        (_colour(label, _LIGHT_LEVELS[label % 3]), _colour(label, _DARK_LEVELS[label % 3]))
        for label in range(number)
    ]


def _colour(label: int, lightness: float) -> str:
    parts = colorsys.hls_to_rgb(label * _GOLDEN % 1.0, lightness, 0.75)
    return "#" + "".join(f"{round(255 * part):02X}" for part in parts)
