"""The folder of a profile: traces, figures, `measured.json`, `profile.html`, and last
`profile.json`.

In: a Profile. Out: the page's path. Guaranteed: the page opens without a network and without the
other files; if writing is interrupted nothing is left behind.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeAlias

from samepath.files import make_folder
from samepath.insight.folder import write_finding
from samepath.insight.profile.profile import Profile
from samepath.insight.profile.timeline import Numbers
from samepath.insight.profile.trace_file import write_trace
from samepath.report.insight_timeline import draw_timelines
from samepath.report.page import Section, write_page
from samepath.timing.measured import write_measured

Rows: TypeAlias = list[list[str]]

PHASES = {
    "load": "load",
    "forward": "forward",
    "backward": "backward",
    "reduce": "adding",
    "wait": "waiting",
    "update": "update",
    "other": "other",
}
NOTE = (
    "Times in milliseconds; phases are means over workers and steps. adding: summing, packing and "
    "copying gradients in the worker's own thread; update: norm, clipping and optimizer; other: "
    "the rest, such as adding up grains. communication: a bucket is under way, launched by all "
    "workers and not arrived; hidden: the part of it in which a worker neither waited nor was "
    "adding. Waiting on the slowest worker: while some worker still computed; on reductions: the "
    "rest; both as parts of the step. sent: by each worker, by how its reductions go, not counted "
    "on the wire."
)
OPEN = "open it at ui.perfetto.dev or chrome://tracing"


def trace_name(engine: str) -> str:
    return f"trace-{engine}.json"


def write_profile(profile: Profile, folder: Path, *, recipe: str, command: Sequence[str]) -> Path:
    """Write everything."""
    make_folder(folder)
    page = folder / "profile.html"
    try:
        about = {"recipe": recipe, "clock": profile.clock}
        for timeline in profile.timelines:
            engine = timeline.engine
            write_trace(folder / trace_name(engine), timeline, {**about, "engine": engine})
        title = f"{Path(recipe).name} on {_workers(profile.num_workers)}: where a step's time goes"
        sections = [*_sections(profile, folder, title, command)]
        if profile.measured is not None:
            write_measured(folder, profile.measured)
        write_page(page, title, sections)
        write_finding(
            folder, "profile", recipe=recipe, command=command, content=content_of(profile)
        )
    except BaseException:  # Ctrl-C too; it was new or empty
        shutil.rmtree(folder)
        raise
    return page


def content_of(profile: Profile) -> dict[str, object]:
    """What `profile.json` says."""
    return {
        "options": asdict(profile.options),
        "num_workers": profile.num_workers,
        "clock": profile.clock,
        "busy_cores": profile.busy_cores,
        "queue": asdict(profile.queue),
        "engines": {each.engine: asdict(each) for each in profile.numbers},
        "traces": {each.engine: trace_name(each.engine) for each in profile.numbers},
        "summary": summary(profile),
    }


def _sections(
    profile: Profile, folder: Path, title: str, command: Sequence[str]
) -> Iterator[Section]:
    yield Section(heading="In short", words=summary(profile))
    for heading, table, note in tables_in_short(profile):
        yield Section(heading=heading, table=table, note=note)
    if len(profile.timelines) > 1:
        picture = folder / "profile.png"
        draw_timelines(f"{title} (a median step each)", profile.timelines, picture, num_steps=1)
        yield Section(heading="One step of each, on one scale", picture=picture)
    for timeline in profile.timelines:
        picture = folder / f"timeline-{timeline.engine}.png"
        draw_timelines(title, [timeline], picture, num_steps=2)
        words = f"All of its steps are in {trace_name(timeline.engine)}; {OPEN}."
        yield Section(heading=f"Timeline: {timeline.engine}", words=words, picture=picture)
    yield Section(heading="The profile", table=_facts(profile))
    yield Section(heading="The command", words=" ".join([Path(command[0]).name, *command[1:]]))


def tables_in_short(profile: Profile) -> list[tuple[str, Rows, str]]:
    """What the terminal and the page show: engines side by side."""
    first = profile.numbers[0]
    table: Rows = [["", *(each.engine for each in profile.numbers)]]

    def row(name: str, value: Callable[[Numbers], str]) -> None:
        table.append([name, *map(value, profile.numbers)])

    row("step (median)", lambda each: _ms(each.step_seconds))
    row("half of the steps", lambda each: f"{_ms(each.step_low)} to {_ms(each.step_high)}")
    if len(profile.numbers) > 1:
        row(f"step / {first.engine}'s", lambda n: f"{n.step_seconds / first.step_seconds:.2f}")
    for phase, name in PHASES.items():
        table.append([name, *(_ms(n.phase_seconds[phase]) for n in profile.numbers)])
    row("communication", lambda each: _ms(each.communication_seconds))
    row("hidden", lambda n: "-" if n.hidden_share is None else _percent(n.hidden_share))
    row("waiting on the slowest", lambda each: _percent(each.slowest_share))
    row("waiting on reductions", lambda n: _percent(n.waiting_share - n.slowest_share))
    row("buckets", lambda each: f"{each.num_reductions:.3g}")
    row("sent", lambda each: _bytes(each.bytes_sent))
    return [(f"A step on {_workers(profile.num_workers)}", table, NOTE)]


def summary(profile: Profile) -> str:
    """A sentence on step times, and one on communication."""
    first, *others = profile.numbers
    words = (
        f"A step takes {_ms(first.step_seconds)} ms with {first.engine} on "
        f"{_workers(profile.num_workers)} (half of the steps {_ms(first.step_low)} to "
        f"{_ms(first.step_high)})"
    )
    ratios = [
        f"{n.step_seconds / first.step_seconds:.2f} times that with {n.engine}" for n in others
    ]
    words += "".join(f", {ratio}" for ratio in ratios) + ". "
    talking = [n for n in profile.numbers if n.hidden_share is not None]
    if not talking:
        return words + "One worker has nobody to talk to."
    return words + " ".join(_talk(each) for each in talking)


def _talk(each: Numbers) -> str:
    assert each.hidden_share is not None
    return (
        f"{each.engine}: {_percent(each.hidden_share)} of the communication lies behind computing, "
        f"{_percent(each.waiting_share)} of the time is waiting, {_percent(each.slowest_share)} on "
        "the slowest worker."
    )


def _facts(profile: Profile) -> Rows:
    options = profile.options
    rows = [["", ""]]
    for name in ("recipe", "data", "keep", "batch_size", "grain_size", "seed", "threads"):
        value = getattr(options, name)
        if value is not None:
            rows.append([name.replace("_", " "), str(value)])
    rows.append(["workers", str(profile.num_workers)])
    rows.append(["steps timed, of each engine", str(profile.numbers[0].num_steps)])
    rows.append(["clock", profile.clock])
    rows.append(["cores that others kept busy", f"{profile.busy_cores:.1f}"])
    if any(each.engine in ("queue", "horovod") for each in profile.numbers):
        rows.append(["cycle", f"{1e3 * profile.queue.cycle_seconds:g} ms"])
        rows.append(["fusion buffer", f"{profile.queue.fusion_bytes / (1 << 20):g} MiB"])
    return rows


def _workers(number: int) -> str:
    return f"{number} {'worker' if number == 1 else 'workers'}"


def _ms(seconds: float) -> str:
    value = 1e3 * seconds
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.01 else "0"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def _bytes(number: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} B"
