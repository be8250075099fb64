"""One look for every figure: sizes, colours, markers, axes, legends, saving.

In: names, axes, pictures and text. Out: SVG or PNG files, their folders made if need be.
Guaranteed: a built-in strategy has the same colour in every study; no two strategies of a study
share colour, marker and line; legends stand beside the axes; a dollar sign in a text is a dollar
sign.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import colormaps, rc_context, ticker
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from samepath.report.words import base_name
from samepath.study.results import Interval

DPI = 130
GREY = "0.35"
"""The colour of what belongs to no series: notes, and keys that explain a marker."""
GUIDE: dict[str, Any] = {"color": "0.65", "linewidth": 1.0}
"""A line to hold data against, such as the ideal speed-up; drawn with zorder 1."""

Line = str | tuple[int, tuple[float, ...]]


class Look(NamedTuple):
    """How a series is drawn."""

    colour: str
    marker: str
    line: Line = "-"


# Okabe and Ito's colours first, then Tol's: both are made for colour-blind readers. Fifteen cannot
# all be told apart by hue, so markers differ too.
_BUILT_IN = {
    "strong": ("#0072B2", "o"),
    "weak": ("#E69F00", "s"),
    "linear": ("#D55E00", "^"),
    "warmup": ("#009E73", "D"),
    "sqrt": ("#CC79A7", "v"),
    "sqrt-warmup": ("#882255", "p"),
    "lars": ("#56B4E9", "<"),
    "lamb": ("#332288", ">"),
    "decay": ("#999933", "h"),
    "growth": ("#117733", "P"),
    "curvature": ("#AA4499", "d"),
    "curvature-adversarial": ("#661100", "X"),
    "noise": ("#44AA99", "8"),
    "stale": ("#6E6E6E", "*"),
    "asynchronous": ("#000000", "H"),
}
_FURTHER = ("#CC6677", "#997700", "#994455", "#225555", "#EE8866", "#6699CC", "#004488", "#77AADD")
_MARKERS = ("o", "s", "^", "D", "v", "p", "<", ">")
_LINES = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (5, 1, 1, 1)))
_COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933"),
)
_SERIES = tuple(map(Look, _COLOURS, "osD^vp<>"))


def strategy_looks(strategies: Sequence[str]) -> dict[str, Look]:
    """The look of each strategy; with other parameters it is a shade darker, and dashed."""
    unknown = sorted({base_name(name) for name in strategies} - set(_BUILT_IN))
    found: dict[str, Look] = {}
    used: dict[str, int] = {}
    for name in strategies:
        base = base_name(name)
        if base in _BUILT_IN:
            colour, marker = _BUILT_IN[base]
        else:
            place = unknown.index(base) % len(_FURTHER)
            colour, marker = _FURTHER[place], _MARKERS[place]
        variant = used[base] = used.get(base, -1) + 1
        red, green, blue = (part * 0.6 ** min(variant, 3) for part in to_rgb(colour))
        found[name] = Look(to_hex((red, green, blue)), marker, _LINES[variant % len(_LINES)])
    return found


def series(number: int) -> list[Look]:
    """Looks of things without an order, such as networks or runs."""
    return list(itertools.islice(itertools.cycle(_SERIES), number))


def series_looks(names: Collection[str]) -> dict[str, Look]:
    """Looks of things without an order, by name."""
    return dict(zip(names, series(len(names)), strict=True))


def ordered_looks(names: Sequence[str]) -> dict[str, Look]:
    """Looks of things with an order, such as learning rates: from pale to dark."""
    return dict(zip(names, map(Look, ramp(len(names)), itertools.cycle(_MARKERS)), strict=True))


def ramp(number: int) -> list[str]:
    """Colours for ordered things, from pale (the first) to dark."""
    places = [0.86 - 0.86 * i / max(number - 1, 1) for i in range(number)]
    return [to_hex(colormaps["viridis"](place)) for place in places]


# --------------------------------------------------------------------------------------- figures


def new_figure(width: float, height: float, title: str) -> Figure:
    """A figure that keeps room for a legend at its right."""
    figure = Figure(figsize=(width, height))
    figure.set_layout_engine("constrained", h_pad=0.08, w_pad=0.08)
    beside_legend = width - 2.8
    size = min(12.0, title_size(title), 115.0 * beside_legend / max(len(title), 1))
    how: dict[str, Any] = {"weight": "bold", "parse_math": False}
    figure.suptitle(title, x=0.012, ha="left", fontsize=size, **how)
    return figure


Failures = Mapping[str, Sequence[tuple[int, bool]]]
"""Places by name where something failed, and whether all is lost there (or only some seeds)."""


def new_figure_with_failures(
    title: str, failed: Failures, looks: Mapping[str, Look], heading: str
) -> tuple[Figure, Axes]:
    """A figure with a strip above its axes if anything failed: a row of crosses per name, pale
    where only some seeds failed."""
    rows = len(failed)
    figure = new_figure(8.6, 4.8 + (0.34 + 0.2 * rows if rows else 0.0), title)
    if not rows:
        return figure, figure.add_subplot()
    strip, axes = figure.subplots(2, 1, sharex=True, height_ratios=[0.2 * rows, 4.0])
    for row, (name, places) in enumerate(failed.items()):
        for value, lost in places:
            how: dict[str, Any] = {"color": looks[name].colour, "alpha": 1.0 if lost else 0.35}
            strip.plot([value], [row], "x", ms=6, mew=1.8, **how)
    strip.set_ylim(rows - 0.4, -0.6)
    strip.set_yticks(range(rows), [clip(name, 24) for name in failed], fontsize=8)
    for label in strip.get_yticklabels():
        label.set_parse_math(False)
    strip.tick_params(axis="both", length=0, labelbottom=False, which="both")
    tidy(strip)
    strip.spines[:].set_visible(False)
    strip.set_title(heading, fontsize=9, loc="left", color="0.25", pad=3)
    return figure, axes


def finish(figure: Figure, handles: Sequence[Artist], out: Path) -> Path:
    """Add the legend and save the figure; the picture's path."""
    add_legend(figure, handles)
    return save_figure(figure, out)


def add_legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """A legend to the right of all axes; long names are wrapped."""
    labels = ["\n".join(textwrap.wrap(clip(str(h.get_label()), 72), 26)) for h in handles]
    legend = figure.legend(
        handles, labels, loc="outside right upper", frameon=False, fontsize=9, handlelength=2.4
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def save_figure(figure: Figure, out: Path) -> Path:
    """Write a figure as its name says, .svg for a drawing and .png for what holds pictures or very
    many points; its path. The same figure is the same file."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".svg":
        with rc_context({"svg.hashsalt": "samepath"}):
            figure.savefig(out, metadata={"Date": None})
    else:
        figure.savefig(out, dpi=DPI)
    return out


def clip(text: str, length: int) -> str:
    """A text of at most so many characters."""
    return text if len(text) <= length else text[: length - 1] + "…"


def title_size(title: str) -> float:
    """Points in which a title of any length fits a figure ten inches wide."""
    return min(13.0, 13.0 * 75.0 / max(len(title), 1))


# ------------------------------------------------------------------------------------------ axes


def side_by_side(names: Sequence[str], values: Sequence[int]) -> dict[str, float]:
    """Factors that shift points at the same value of a logarithmic axis sideways."""
    ordered = sorted({value for value in values if value > 0})
    gaps = [b / a for a, b in itertools.pairwise(ordered)]
    width = min(0.3, 0.035 * (len(names) - 1), 0.5 * math.log2(min(gaps, default=2.0)))
    step = width / max(len(names) - 1, 1)
    return {name: 2.0 ** (i * step - width / 2.0) for i, name in enumerate(names)}


def powers_axis(axes: Axes, values: Sequence[int], label: str) -> None:
    """A horizontal axis on which doubling is a step, with ticks at the values (if they fit)."""
    ordered = sorted(set(values)) or [1]
    axes.set_xscale("log", base=2)
    span = math.log2(ordered[-1] / ordered[0])
    axes.set_xlim(ordered[0] * 2**-0.5, ordered[-1] * 2**0.5)
    kept = [ordered[0]]
    for value in ordered[1:]:
        if math.log2(value / kept[-1]) >= max(0.3, span / 12.0):
            kept.append(value)
    axes.xaxis.set_major_locator(ticker.FixedLocator([float(value) for value in kept]))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: f"{x:.0f}"))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.set_xlabel(label)


def log_values(axes: Axes, low: float, high: float, *, which: str = "y") -> None:
    """A logarithmic axis for values of this range, with plain numbers at its ticks."""
    axes.set(**{f"{which}scale": "log", f"{which}lim": (low, high)})
    axis = axes.yaxis if which == "y" else axes.xaxis
    decades = math.log10(high / low)
    crowded = decades > (4.0 if which == "y" else 3.0)
    subs = (1.0,) if crowded else (1.0, 3.0) if decades > 1.6 else (1.0, 2.0, 5.0)
    if decades < 0.7:
        axis.set_major_locator(ticker.MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
        axis.set_minor_locator(ticker.NullLocator())
    else:
        axis.set_major_locator(ticker.LogLocator(subs=subs))
        axis.set_minor_locator(ticker.LogLocator(subs=tuple(range(2, 10))))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


def margins(values: Sequence[float], share: float = 0.06) -> tuple[float, float]:
    """The ends of a logarithmic axis for these positive values."""
    if not values:
        return 0.1, 1.0
    low, high = min(values), max(values)
    room = max((high / low) ** share, 1.12)
    return low / room, high * room


def say_nothing_to_show(axes: Axes, words: str) -> None:
    """Write on axes without a point why there is none, without numbers at the side."""
    axes.yaxis.set_major_locator(ticker.NullLocator())
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", color="0.4")


def tidy(axes: Axes) -> None:
    """Light grid below the data, no box."""
    axes.grid(alpha=0.25, which="major", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def draw_point(axes: Axes, x: float, y: float, look: Look, *, hollow: bool) -> None:
    """A point of a series: filled if measured, hollow if modelled."""
    how: dict[str, Any] = {"ms": 6.5, "mew": 1.4, "zorder": 3, "clip_on": False}
    face = "white" if hollow else look.colour
    axes.plot([x], [y], look.marker, color=look.colour, mfc=face, **how)


def draw_curve(
    axes: Axes,
    places: Sequence[float],
    heights: Sequence[float],
    look: Look,
    hollow: Sequence[bool],
    **line: Any,
) -> None:
    """A line and its points, each filled or hollow."""
    axes.plot(places, heights, color=look.colour, **{"lw": 1.4, **line})
    for x, y, is_hollow in zip(places, heights, hollow, strict=True):
        draw_point(axes, x, y, look, hollow=is_hollow)


def draw_intervals(
    axes: Axes,
    found: Mapping[float, Interval | None],
    look: Look,
    *,
    hollow: Collection[float] = (),
) -> None:
    """A line through medians by place, and bars where seeds differ; a gap at None, an arrow where
    the bar has no upper end. No line joins filled points and hollow ones."""
    for is_hollow in {place in hollow for place in found}:
        heights = [
            math.nan if v is None or (place in hollow) != is_hollow else v.median
            for place, v in found.items()
        ]
        axes.plot(list(found), heights, color=look.colour, linestyle=look.line, linewidth=1.6)
    for place, v in found.items():
        if v is None:
            continue
        if v.high > v.low:
            how: dict[str, Any] = {"elinewidth": 1.2, "capsize": 2.5, "zorder": 2.5}
            above = v.high - v.median if math.isfinite(v.high) else 0.0
            bar = [[v.median - v.low], [above]]
            axes.errorbar([place], [v.median], bar, fmt="none", ecolor=look.colour, **how)
        if math.isinf(v.high):
            arrow = {"arrowstyle": "<-", "color": look.colour, "linewidth": 1.2}
            at: dict[str, Any] = {"xytext": (0, 26), "textcoords": "offset points"}
            axes.annotate("", (place, v.median), arrowprops=arrow, **at)
        draw_point(axes, place, v.median, look, hollow=place in hollow)


# --------------------------------------------------------------------------------------- legends


def key(label: str, **how: Any) -> Line2D:
    """A line of a legend."""
    return Line2D([], [], label=label, **how)


def point_key(label: str, marker: str = "o", **how: Any) -> Line2D:
    """A marker of a legend, grey unless told."""
    return key(label, **{"color": GREY, "marker": marker, "linestyle": "", **how})


def look_keys(looks: Mapping[str, Look], **how: Any) -> list[Line2D]:
    """A line for each series."""
    return [
        key(name, color=look.colour, marker=look.marker, linestyle=look.line, **how)
        for name, look in looks.items()
    ]


def how_keys(hows: Collection[str]) -> list[Line2D]:
    """What filled and hollow points mean, as far as there are any."""
    faces = {"measured": ("filled", GREY), "modelled": ("hollow", "white")}
    return [
        point_key(f"{name}: {how}", markerfacecolor=face)
        for how, (name, face) in faces.items()
        if how in hows
    ]


def failure_keys(failed: Failures, every: str, some: str) -> list[Line2D]:
    """What a cross means, and a pale one, as far as there are any."""
    lost = {all_lost for places in failed.values() for _, all_lost in places}
    words = {True: every, False: some}
    return [
        point_key(words[each], "x", markeredgewidth=1.8, alpha=1.0 if each else 0.35)
        for each in sorted(lost, reverse=True)
    ]


def spread_key(words: str = "lowest to highest of the seeds") -> Line2D:
    """What a bar through a point means."""
    return point_key(words, "|", markersize=11)


# ------------------------------------------------------------------------------ pictures in rows


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

    def tile(
        self,
        picture: NDArray[Any],
        left: float,
        top: float,
        size: float,
        *,
        wide: float = 1.0,
        white: float = 1.0,
    ) -> None:
        """A picture, grey or RGBA, in a frame that shows where it ends on the white page."""
        axes = self.axes(left, top, size * wide, size)
        axes.set_facecolor("0.95")
        axes.imshow(np.asarray(picture), cmap="gray", vmin=0.0, vmax=white, aspect="auto")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set(color="0.6", linewidth=0.5)

    def text(self, left: float, top: float, text: str, **how: Any) -> None:
        """Text as it is given: a dollar sign is a dollar sign."""
        how = {"fontsize": 10, "va": "center", "ha": "center", "parse_math": False, **how}
        self.figure.text(left / self.width, 1.0 - top / self.height, text, **how)

    def row_label(self, right: float, middle: float, name: str, below: str = "") -> None:
        """A name and perhaps a line below it, to the left of a row of tiles."""
        lines = textwrap.wrap(clip(name, 36), 15)[:3]
        rise = 0.09 * len(lines) if below else 0.0
        self.text(right - 0.12, middle - rise, "\n".join(lines), ha="right", weight="bold")
        self.text(right - 0.12, middle + 0.18, below, ha="right", color=GREY)

    def save(self, out: Path) -> Path:
        return save_figure(self.figure, out)
