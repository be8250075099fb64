"""Time against compute.

In: a race. Out: `pareto.png`: a point for each strategy and worker count that reached the target,
and the front: what no other point beats in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from samepath.report.sheet import save_figure
from samepath.report.study_scaling import sequential_seconds
from samepath.report.study_style import (
    how_keys,
    key,
    legend_beside,
    log_values,
    looks,
    margins,
    new_figure,
    say_nothing_to_show,
    strategy_keys,
    tidy,
)
from samepath.report.study_words import number, time_unit
from samepath.study.results import Cell, Study

_AROUND = ((-8, -9), (9, -9), (-9, 9), (9, 9), (0, -12), (0, 12), (-13, 0), (13, 0))
"""Places for a label beside its point, in points: first where the front's line never is."""


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of (compute, time): those that no other beats in one without losing in the other."""
    front: list[tuple[float, float]] = []
    for compute, time in sorted(set(points)):
        if not front or time < front[-1][1]:
            front.append((compute, time))
    return front


def draw_pareto(study: Study, out: Path) -> None:
    """Medians over seeds; labels are worker counts."""
    styles = looks(study.strategies)
    cells = [cell for cell in study.cells if cell.seconds is not None]
    points = {(cell.strategy, cell.workers): _point(cell) for cell in cells}
    time_name, time_length = time_unit(max((time for _, time in points.values()), default=1.0))
    work_name, work_length = time_unit(max((work for work, _ in points.values()), default=1.0))
    title = f"{study.recipe}: time and compute to a validation loss of {number(study.target.loss)}"
    figure = new_figure(8.6, 5.2, title)
    axes = figure.add_subplot()
    scaled = {k: (work / work_length, time / time_length) for k, (work, time) in points.items()}
    front = pareto_front(list(scaled.values()))
    works, times = [x for x, _ in scaled.values()], [y for _, y in scaled.values()]
    log_values(axes, *(margins(works, 0.1) if works else (0.1, 1.0)), which="x")
    log_values(axes, *(margins(times, 0.1) if times else (0.1, 1.0)))
    if front:
        axes.step(*zip(*front, strict=True), where="post", color="0.2", lw=1.0, zorder=1)
    sequential = sequential_seconds(study)
    if sequential is not None:
        axes.axvline(sequential / work_length, color="0.65", linewidth=1.0, zorder=1)
    for cell in cells:
        look, place = styles[cell.strategy], scaled[cell.strategy, cell.workers]
        face = "white" if cell.how == "modelled" else look.colour
        axes.plot(*place, look.marker, color=look.colour, mfc=face, ms=6.5, mew=1.4, zorder=3)
    axes.set_xlabel(f"compute to target: workers x time (worker-{work_name})")
    axes.set_ylabel(f"time to target ({time_name})")
    tidy(axes)
    if not cells:
        say_nothing_to_show(axes, "no strategy reached the target")
        axes.set_xticks([])
        axes.minorticks_off()
    handles = [h for h in strategy_keys(styles) if h.get_label() in {c.strategy for c in cells}]
    handles += how_keys({cell.how for cell in cells})
    if front:
        handles.append(key("front: nothing is better in both", color="0.2", linewidth=1.0))
    if sequential is not None:
        handles.append(key("compute of one worker (ideal speed-up)", color="0.65", linewidth=1.0))
    if cells:
        handles.append(key("numbers: workers", linestyle=""))
    legend_beside(figure, handles)
    figure.draw_without_rendering()  # labels are placed where everything ends up
    figure.set_layout_engine("none")
    colours = {k: styles[k[0]].colour for k in scaled}
    _label(axes, [(scaled[k], str(k[1]), colours[k]) for k in scaled])
    save_figure(figure, out)


def _point(cell: Cell) -> tuple[float, float]:
    assert cell.seconds is not None
    return cell.workers * cell.seconds.median, cell.seconds.median


def _label(axes: Axes, labels: Sequence[tuple[tuple[float, float], str, str]]) -> None:
    """Write each label at the first place around its point where nothing else is.

    The same number at (nearly) the same point is written once; one that fits nowhere is left out.
    """
    scale = axes.figure.dpi / 72.0
    centres = [np.asarray(axes.transData.transform(place)) / scale for place, _, _ in labels]
    taken: list[tuple[np.ndarray, str]] = []
    for (place, text, colour), centre in zip(labels, centres, strict=True):
        if any(other == text and np.abs(at - centre).max() < 16.0 for at, other in taken):
            continue
        for offset in _AROUND:
            at = centre + np.array(offset)
            clear = all(
                (np.abs(at - other) > (6.5 + 2.5 * len(text), 7.5)).any() for other in centres
            )
            free = all(
                (np.abs(at - other) > (4.0 + 3.0 * (len(text) + len(name)), 9.0)).any()
                for other, name in taken
            )
            if clear and free:
                how: dict[str, Any] = {"ha": "center", "va": "center", "color": colour}
                axes.annotate(text, place, offset, textcoords="offset points", fontsize=8, **how)
                taken.append((at, text))
                break
