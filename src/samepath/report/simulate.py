"""The report of a simulation: `simulation.json`, a figure, tables and one page.

In: a Simulation. Out: a folder (also with the measured step it rests on, so that it can be
simulated again). Guaranteed: everything modelled is called modelled. In the figure, lines and
hollow points are modelled, with a band from the 5th to the 95th of 100 steps; filled black points
are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from samepath.console import count
from samepath.insight.simulate import SimulatedCurve, Simulation, verdict
from samepath.report import style
from samepath.report.page import Section, write_finding_page
from samepath.report.words import Rows, link_words, rows_of
from samepath.report.words import milliseconds as ms
from samepath.timing.model import Simulated

PAGE, PICTURE = "simulation.html", "simulated_scaling.svg"
NOTE = (
    "All modelled. ms: mean time of a step, and the 5-95% range of steps. ex/s: examples per "
    "second. link: ms of a step in which the link is busy. hidden: the share of that behind "
    "computing. waits: the share of a step in which a worker, on average, waits for the slowest."
)
HOW = (
    "Grain times are drawn from those measured here with one worker; gradients appear in the order "
    "and at the times measured within a grain; samepath and ddp: buckets of a fixed layout leave "
    "as soon as all workers have them (all_to_all and back; 25 MiB and a ring); queue: workers "
    "announce gradients, and a coordinator collects them every 5 ms (Horovod before 0.21, with "
    "0.35 µs for each announcement: an assumption). Links of presets are from data sheets; workers "
    "of a node elsewhere are assumed not to slow each other down, as those here were measured to. "
    "No congestion, no failures, no loading from a shared disk."
)


def write_simulation(
    folder: Path, simulation: Simulation, command: Sequence[str]
) -> dict[str, Any]:
    """Write all files; what simulation.json says."""
    workload = simulation.workload
    each = " for each worker" if simulation.scaling == "weak" else ""
    title = f"{workload.name}, batch {workload.batch_size}{each}: simulated"
    curves = {curve.name: curve.points for curve in simulation.curves}
    steps = simulation.measured_steps
    measured = {
        workers: (100.0 * steps[1] / seconds / workers, workload.batch_size / seconds)
        for workers, seconds in steps.items()
    }

    def sections() -> Iterator[Section]:
        picture = draw_simulated_scaling(title, curves, measured, folder / PICTURE)
        yield Section(heading="Simulated", words=verdict(simulation), picture=picture)
        for curve in simulation.curves:
            heading = f"{curve.name} (modelled)"
            yield Section(heading=heading, table=curve_table(curve), note=NOTE)
        yield Section(heading="Measured here", table=measured_table(simulation))
        yield Section(heading="How it is modelled", words=HOW)

    said, recipe, step = as_content(simulation), simulation.measured.recipe, simulation.measured
    write_finding_page(
        folder, "simulation", title, sections(), said, recipe=recipe, command=command, measured=step
    )
    return said


def as_content(simulation: Simulation) -> dict[str, Any]:
    """What `simulation.json` says."""
    return {
        "how": "modelled",
        "verdict": verdict(simulation),
        "scaling": simulation.scaling,
        "batch_size": simulation.workload.batch_size,
        "grain_size": simulation.workload.grain_size,
        "stragglers": simulation.stragglers,
        "seed": simulation.seed,
        "trials": simulation.trials,
        "measured_step_seconds": {str(n): s for n, s in simulation.measured_steps.items()},
        "curves": [asdict(curve) for curve in simulation.curves],
        "figures": [PICTURE],
    }


def curve_table(curve: SimulatedCurve) -> Rows:
    """A row for each number of workers."""
    return rows_of(
        [
            {
                "workers": str(point.workers),
                "ms": ms(point.step_seconds),
                "5-95% range": f"{ms(point.low_seconds)}-{ms(point.high_seconds)}",
                "ex/s": f"{point.examples_per_second:,.0f}",
                "speed-up": f"{point.speedup:.2f}",
                "eff.": f"{point.efficiency:.1%}",
                "link": ms(point.reduction_seconds),
                "hidden": "-" if point.hidden is None else f"{point.hidden:.0%}",
                "waits": f"{point.waiting:.0%}",
            }
            for point in curve.points
        ]
    )


def measured_table(simulation: Simulation) -> Rows:
    """The measurements that the simulation rests on."""
    measured = simulation.measured
    rows = [
        ["what", "measured"],
        ["machine", f"{measured.machine}, {count(measured.threads, 'thread')} per worker"],
        ["cores used by other processes", f"{measured.busy_cores:.2f}"],
    ]
    for size, times in measured.grain_times.items():
        middle = ms(simulation.workload.grain_seconds[int(size)])
        spread = f"(median of {len(times)}, {ms(min(times))} to {ms(max(times))})"
        rows.append([f"grain of {count(int(size), 'example')}", f"{middle} ms {spread}"])
    rows.append(["fixed cost per step", f"{ms(measured.update_seconds)} ms"])
    for workers, factor in measured.crowding.items():
        others = count(int(workers) - 1, "other worker")
        rows.append([f"grain beside {others}", f"{factor:.3f} x its time alone"])
    for workers, step in measured.step_seconds.items():
        rows.append([f"step with {count(int(workers), 'worker')}", f"{ms(step)} ms"])
    gradients = f"{len(measured.tensor_bytes)}, {sum(measured.tensor_bytes):,} bytes"
    return [
        *rows,
        ["gradients", gradients],
        ["link between workers here", link_words(measured.local)],
        ["network collective here", link_words(measured.network)],
    ]


# ---------------------------------------------------------------------------------------- figure


def draw_simulated_scaling(
    title: str,
    curves: Mapping[str, Sequence[Simulated]],
    measured: Mapping[int, tuple[float, float]],
    out: Path,
) -> Path:
    """Efficiency and throughput to thousands of workers.

    `curves` by what they are called, such as "samepath, 10GbE"; `measured`: efficiency in percent
    and examples per second by number of real workers.
    """
    looks = style.series_looks(curves)
    figure = style.new_figure(8.6, 6.6, title)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1.2, 1.0])
    for name, points in curves.items():
        _draw_curve(above, points, looks[name], lambda point: 100.0 * point.efficiency)
        _draw_curve(below, points, looks[name], lambda point: point.examples_per_second)
    efficiencies, measured_paces = ([pair[n] for pair in measured.values()] for n in range(2))
    if measured:  # an empty line that is not clipped would stand at the figure's corner
        how: dict[str, Any] = {"color": "black", "markersize": 6.5, "clip_on": False, "zorder": 4}
        above.plot(list(measured), efficiencies, "o", **how)
        below.plot(list(measured), measured_paces, "o", **how)
    counts = sorted({point.workers for points in curves.values() for point in points})
    alone = next(iter(curves.values()))[0]
    ideal = [alone.examples_per_second / alone.speedup * count for count in counts]
    below.plot(counts, ideal, zorder=1, **style.GUIDE)
    above.axhline(100.0, zorder=1, **style.GUIDE)
    above.set_ylim(0.0, 1.06 * max([100.0, *efficiencies]))
    above.set_ylabel("efficiency: speed-up / workers (%)")
    paces = [point.examples_per_second for points in curves.values() for point in points]
    style.log_values(below, *style.margins([*paces, *measured_paces, *ideal]))
    below.set_ylabel("examples per second")
    for axes in (above, below):
        style.powers_axis(axes, counts, "workers" if axes is below else "")
        style.tidy(axes)
    handles: list[Artist] = [*style.look_keys(looks, markerfacecolor="white")]
    handles += style.how_keys({"modelled"})
    if measured:
        handles.append(style.point_key("measured here", color="black"))
    handles.append(Patch(facecolor=style.GREY, alpha=0.2, label="5-95% range (modelled)"))
    handles.append(style.key("ideal", **style.GUIDE))
    return style.finish(figure, handles, out)


def _draw_curve(
    axes: Axes,
    points: Sequence[Simulated],
    look: style.Look,
    value: Callable[[Simulated], float],
) -> None:
    points = sorted(points, key=lambda point: point.workers)
    counts = [point.workers for point in points]
    # Both values are inverse to the step's seconds.
    low = [value(point) * point.step_seconds / point.high_seconds for point in points]
    high = [value(point) * point.step_seconds / point.low_seconds for point in points]
    axes.fill_between(counts, low, high, color=look.colour, alpha=0.15, linewidth=0.0)
    style.draw_curve(axes, counts, list(map(value, points)), look, [True] * len(points), lw=1.6)
