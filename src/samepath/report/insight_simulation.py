"""A simulation as files: `simulation.json`, a figure, tables and one page.

In: a Simulation. Out: a folder (also with the measured step it rests on, so that it can be
simulated again). Guaranteed: everything modelled is called modelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from samepath.insight.folder import write_finding
from samepath.insight.simulate import SimulatedCurve, Simulation, verdict
from samepath.report.insight_scaling import MeasuredPoint, draw_simulated_scaling
from samepath.report.page import Section, write_page
from samepath.report.study_tables import Rows
from samepath.timing.links import NetworkFacts
from samepath.timing.measured import write_measured

PAGE, PICTURE = "simulation.html", "simulated_scaling.png"
HEAD = ["workers", "ms", "5-95% range", "ex/s", "speed-up", "eff.", "link", "hidden", "waits"]
NOTE = (
    "All modelled. ms: of a step, on average, and the 5-95% range. ex/s: examples a second. "
    "link: ms of a step in which it is busy. hidden: the share of that behind computing. waits: "
    "the share of a step in which a worker, on average, waits for the slowest."
)
HOW = (
    "Grain times are drawn from those measured here with one worker; gradients appear in the order "
    "and at the times measured within a grain; samepath and ddp: buckets of a fixed layout leave "
    "as soon as all workers have them (all_to_all and back; 25 MiB and a ring); queue: workers "
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


def curve_table(curve: SimulatedCurve) -> Rows:
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
        ["cores used by other processes", f"{measured.busy_cores:.2f}"],
        *grains,
        ["fixed cost per step (update)", f"{_ms(measured.update_seconds)} ms"],
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
