"""The report of a simulation: `simulation.json`, a figure, tables and one page.

In: a Simulation. Out: a folder (also with the measured step it rests on, so that it can be
simulated again). Guaranteed: everything modelled is called modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from samepath.insight.folder import write_finding
from samepath.insight.simulate.simulate import Curve, Simulation, verdict
from samepath.report.page import Section, write_page
from samepath.report.style import (
    how_keys,
    key,
    legend_beside,
    log_values,
    margins,
    new_figure,
    powers_axis,
    save_figure,
    tidy,
)
from samepath.report.words import Rows
from samepath.study.results import NetworkFacts
from samepath.timing.measured import write_measured
from samepath.timing.model import Simulated

PAGE, PICTURE = "simulation.html", "simulated_scaling.png"
HEAD = ["workers", "ms", "of nine in ten", "ex/s", "speed-up", "eff.", "link", "hidden", "waits"]
NOTE = (
    "All modelled. ms: of a step, on average, and of nine steps in ten. ex/s: examples a second. "
    "link: ms of a step in which it is busy. hidden: the share of that behind computing. waits: "
    "the share of a step in which a worker, on average, waits for the slowest."
)
HOW = (
    "Grain times are drawn from those measured here with one worker; gradients appear in the order "
    "and at the times measured within a grain; static: buckets of a fixed layout leave as soon as "
    "all workers have them (samepath: all_to_all and back, ddp: 25 MiB and a ring); queue: workers "
    "announce gradients, and a coordinator collects them every 5 ms (Horovod before 0.21, with "
    "0.35 us for each announcement: an assumption). Links of presets are from data sheets; workers "
    "of a node elsewhere are assumed not to slow each other down, as those here were measured to. "
    "No congestion, no failures, no loading from a shared disk."
)


def write_simulation(
    folder: Path, simulation: Simulation, command: Sequence[str]
) -> dict[str, Any]:
    """All files; what simulation.json says."""
    write_measured(folder, simulation.measured)
    picture = folder / PICTURE
    points = measured_points(simulation)
    draw_simulated_scaling(
        title_of(simulation),
        {curve.name: curve.points for curve in simulation.curves},
        points,
        picture,
    )
    sections = [Section(heading="Simulated", words=verdict(simulation), picture=picture)]
    sections += [
        Section(heading=f"{curve.name} (modelled)", table=curve_table(curve), note=NOTE)
        for curve in simulation.curves
    ]
    sections += [
        Section(heading="Measured here", table=measured_table(simulation)),
        Section(heading="How it is modelled", words=HOW),
    ]
    write_page(folder / PAGE, title_of(simulation), sections)
    content = as_content(simulation)
    write_finding(
        folder,
        "simulation",
        recipe=simulation.measured.recipe,
        command=command,
        content=content,
    )
    return content


def title_of(simulation: Simulation) -> str:
    workload = simulation.workload
    each = " for each worker" if simulation.scaling == "weak" else ""
    return f"{workload.name}, batch {workload.batch_size}{each}: simulated"


def as_content(simulation: Simulation) -> dict[str, Any]:
    workload = simulation.workload
    return {
        "how": "modelled",
        "verdict": verdict(simulation),
        "scaling": simulation.scaling,
        "batch_size": workload.batch_size,
        "grain_size": workload.grain_size,
        "stragglers": simulation.stragglers,
        "seed": simulation.seed,
        "trials": simulation.trials,
        "measured_step_seconds": {str(n): s for n, s in simulation.measured_steps.items()},
        "curves": [
            {
                "policy": curve.policy,
                "network": curve.network,
                "points": [asdict(point) for point in curve.points],
            }
            for curve in simulation.curves
        ],
        "figures": [PICTURE],
    }


def curve_table(curve: Curve) -> Rows:
    """A row for each number of workers."""
    return [
        HEAD,
        *(
            [
                str(point.workers),
                _ms(point.step_seconds),
                f"{_ms(point.low_seconds)}-{_ms(point.high_seconds)}",
                f"{point.examples_per_second:,.0f}",
                f"{point.speedup:.2f}",
                f"{point.efficiency:.1%}",
                _ms(point.reduction_seconds),
                "-" if point.hidden is None else f"{point.hidden:.0%}",
                f"{point.waiting:.0%}",
            ]
            for point in curve.points
        ),
    ]


def measured_table(simulation: Simulation) -> Rows:
    """What it all rests on."""
    measured = simulation.measured
    grains = [
        [
            f"a grain of {size}",
            f"{_ms(simulation.workload.grain_seconds[int(size)])} ms (median of {len(times)}, "
            f"{_ms(min(times))} to {_ms(max(times))})",
        ]
        for size, times in measured.grain_times.items()
    ]
    crowding = [
        [f"a grain beside {int(workers) - 1} more", f"{factor:.3f} x its time alone"]
        for workers, factor in measured.crowding.items()
    ]
    steps = [
        [f"a step on {workers} {'worker' if workers == '1' else 'workers'}", f"{_ms(step)} ms"]
        for workers, step in measured.step_seconds.items()
    ]
    return [
        ["what", "measured"],
        ["machine", f"{measured.machine}, {measured.threads} thread(s) a worker"],
        ["others kept busy meanwhile", f"{measured.busy_cores:.2f} cores"],
        *grains,
        ["update, and what else does not shrink", f"{_ms(measured.update_seconds)} ms"],
        *crowding,
        *steps,
        ["gradients", f"{len(measured.tensor_bytes)}, {sum(measured.tensor_bytes):,} bytes"],
        ["link between workers here", _link(measured.local)],
        ["network collective here", _link(measured.network)],
    ]


def _link(link: NetworkFacts) -> str:
    return f"{link.bytes_per_second / 1e6:,.0f} MB/s, {1e6 * link.latency_seconds:.0f} us a message"


def measured_points(simulation: Simulation) -> list[MeasuredPoint]:
    """Steps that were really run, as the figure shows them."""
    steps = simulation.measured_steps
    return [
        MeasuredPoint(
            workers=workers,
            efficiency=steps[1] / seconds / workers,
            examples_per_second=simulation.workload.batch_size / seconds,
        )
        for workers, seconds in steps.items()
    ]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 10.0 else f"{1e3 * seconds:,.0f}"


_LOOKS = (
    ("#0072B2", "o"),
    ("#D55E00", "s"),
    ("#009E73", "D"),
    ("#CC79A7", "^"),
    ("#E69F00", "v"),
    ("#56B4E9", "p"),
    ("#882255", "<"),
    ("#999933", ">"),
)


@dataclass(frozen=True, kw_only=True)
class MeasuredPoint:
    """A step with so many real workers."""

    workers: int
    efficiency: float
    examples_per_second: float


def draw_simulated_scaling(
    title: str,
    curves: Mapping[str, Sequence[Simulated]],
    measured: Sequence[MeasuredPoint],
    out: Path,
) -> None:
    """`curves` by what they are called, such as "static, 10GbE"; `measured`: with real workers."""
    assert 0 < len(curves) <= len(_LOOKS)
    looks = dict(zip(curves, _LOOKS, strict=False))
    figure = new_figure(8.6, 6.6, title)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1.2, 1.0])
    for name, points in curves.items():
        _curve(above, points, looks[name], _percent)
        _curve(below, points, looks[name], _pace)
    if measured:  # an empty line that is not clipped would stand at the figure's corner
        where = [point.workers for point in measured]
        how: dict[str, Any] = {"color": "black", "markersize": 6.5, "clip_on": False, "zorder": 4}
        above.plot(where, list(map(_percent, measured)), "o", **how)
        below.plot(where, list(map(_pace, measured)), "o", **how)
    counts = sorted({point.workers for points in curves.values() for point in points})
    alone = next(iter(curves.values()))[0]
    pace = alone.examples_per_second / alone.speedup
    ideal = [pace * count for count in counts]
    below.plot(counts, ideal, color="0.65", linewidth=1.0, zorder=1)
    above.axhline(100.0, color="0.65", linewidth=1.0, zorder=1)
    highest = max([100.0, *map(_percent, measured)])
    above.set_ylim(0.0, 1.06 * highest)
    above.set_ylabel("efficiency: speed-up / workers (%)")
    paces = [_pace(point) for points in curves.values() for point in points]
    log_values(below, *margins([*paces, *map(_pace, measured), *ideal]))
    below.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:,.10g}"))
    below.set_ylabel("examples per second")
    for axes in (above, below):
        powers_axis(axes, counts, "workers" if axes is below else "")
        tidy(axes)
    handles: list[Artist] = [
        key(name, color=colour, marker=marker, markerfacecolor="white")
        for name, (colour, marker) in looks.items()
    ]
    handles += how_keys({"modelled"})
    if measured:
        handles.append(key("measured here", color="black", marker="o", linestyle=""))
    handles.append(Patch(facecolor="0.35", alpha=0.2, label="nine steps in ten (modelled)"))
    handles.append(key("ideal", color="0.65", linewidth=1.0))
    legend_beside(figure, handles)
    save_figure(figure, out)


def _percent(point: Simulated | MeasuredPoint) -> float:
    return 100.0 * point.efficiency


def _pace(point: Simulated | MeasuredPoint) -> float:
    return point.examples_per_second


def _curve(
    axes: Axes,
    points: Sequence[Simulated],
    look: tuple[str, str],
    value: Callable[[Simulated], float],
) -> None:
    colour, marker = look
    points = sorted(points, key=lambda point: point.workers)
    counts = [point.workers for point in points]
    heights = [value(point) for point in points]
    # Both values are inverse to the step's seconds.
    low = [value(point) * point.step_seconds / point.high_seconds for point in points]
    high = [value(point) * point.step_seconds / point.low_seconds for point in points]
    axes.fill_between(counts, low, high, color=colour, alpha=0.15, linewidth=0.0)
    how: dict[str, Any] = {"markersize": 6.0, "markeredgewidth": 1.4, "clip_on": False}
    axes.plot(counts, heights, color=colour, linewidth=1.6, marker=marker, mfc="white", **how)
