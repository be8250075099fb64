"""The report of an advice: `measured.json`, `advice.png`, `advice.html`, and last `advice.json`.

In: an Advice and the MeasuredStep it rests on. Out: the page's path; the tables are the same on the
terminal and on the page. Guaranteed: the page opens without a network and without the other files;
a modelled time is marked; if writing is interrupted nothing is left behind.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from samepath.engine.state.run_folder import make_folder
from samepath.insight.advise.advice import Advice, Curve, Row
from samepath.insight.advise.words import examples, span
from samepath.insight.folder import write_finding
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
    say_nothing_to_show,
    tidy,
)
from samepath.report.words import MODELLED, Rows, listed, number, workers_named
from samepath.study.results import NetworkFacts
from samepath.timing.links import HERE
from samepath.timing.measured import MeasuredStep, write_measured


def write_advice(
    advice: Advice, measured: MeasuredStep, folder: Path, *, recipe: str, command: Sequence[str]
) -> Path:
    """Write everything."""
    make_folder(folder)
    page = folder / "advice.html"
    try:
        write_measured(folder, measured)
        title = f"{Path(recipe).name}: how many workers, which batch, and why"
        draw_advice(title, advice, folder / "advice.png")
        write_page(page, title, list(_sections(advice, folder / "advice.png", command)))
        content = asdict(advice)
        write_finding(folder, "advice", recipe=recipe, command=command, content=content)
    except BaseException:  # Ctrl-C too; it was new or empty
        shutil.rmtree(folder)
        raise
    return page


def _sections(advice: Advice, picture: Path, command: Sequence[str]) -> Iterator[Section]:
    yield Section(heading="Verdict", words=advice.verdict, picture=picture)
    for title, table, note in tables_in_short(advice):
        yield Section(heading=title, table=table, note=note)
    yield Section(heading="The command", words=" ".join([Path(command[0]).name, *command[1:]]))


Tables = list[tuple[str, Rows, str]]


def tables_in_short(advice: Advice) -> Tables:
    """What fits a terminal: titles, tables, and a note below each."""
    return [
        *(curve_table(advice, curve) for curve in advice.curves),
        rates_table(advice),
        batch_table(advice),
        ("What was measured and what modelled", sources_table(advice), ""),
    ]


def curve_table(advice: Advice, curve: Curve) -> tuple[str, Rows, str]:
    """Numbers of workers over one link."""
    several = curve.workers_per_node not in (None, 1)
    priced = advice.price_per_worker_hour is not None
    head = ["workers", "nodes", "step", "speed-up", "efficiency", "cost", "training", "price"]
    rows = [[*head, "grain", ""]]
    for row in curve.rows:
        seconds = duration_short(row.step_seconds) + (MODELLED if row.how == "modelled" else "")
        rows.append(
            [
                str(row.workers),
                str(row.nodes),
                seconds,
                f"{row.speedup:.2f}",
                f"{row.efficiency:.0%}",
                f"{row.cost:.2f}",
                span(row.training_seconds),
                "" if row.price is None else f"{row.price:,.2f}",
                str(row.grain_size),
                _marks(curve, row),
            ]
        )
    dropped = {name for name, there in (("nodes", several), ("price", priced)) if not there}
    places = [place for place, name in enumerate(rows[0]) if name not in dropped]
    return (
        _title(advice, curve),
        [[row[place] for place in places] for row in rows],
        _note(advice, curve),
    )


def _marks(curve: Curve, row: Row) -> str:
    marks = ["best"] * (row.workers == curve.best) + ["knee"] * (row.workers == curve.knee)
    return ", ".join(marks)


def _title(advice: Advice, curve: Curve) -> str:
    if curve.network == HERE:
        return f"On this machine ({advice.machine})"
    joined = ", then ".join(map(link_words, curve.links))
    per_node = curve.workers_per_node
    where = "one worker each" if per_node == 1 else f"{per_node} workers each"
    return f"Computers like this one, {where}, over {curve.network} ({joined})"


def link_words(link: NetworkFacts) -> str:
    rate = link.bytes_per_second
    speed = f"{rate / 1e9:.3g} GB/s" if rate >= 1e9 else f"{rate / 1e6:.3g} MB/s"
    return f"{speed}, {1e6 * link.latency_seconds:.3g} µs"


def _note(advice: Advice, curve: Curve) -> str:
    words = []
    if any(row.how == "modelled" for row in curve.rows):
        words.append(f"{MODELLED} modelled.")
    words.append("Cost: worker-hours, in those of one worker.")
    knee = "not in this table" if curve.knee is None else f"at {workers_named([curve.knee])}"
    words.append(f"Knee (doubling saves less than a fifth of the time): {knee}.")
    words.append(_grain(advice, curve))
    if curve.law is not None:
        law = curve.law
        words.append(
            f"T(n) = {duration_short(law.serial_seconds)} + "
            f"{duration_short(law.parallel_seconds)} / n + "
            f"{duration_short(law.doubling_seconds)} log2 n, within {law.largest_error:.0%}."
        )
    return " ".join(words)


def _grain(advice: Advice, curve: Curve) -> str:
    """Which size to use, and why."""
    best = workers_named([curve.best])
    if curve.grain_gain > 0.0:
        return (
            f"Use --grain {curve.grain_size}: with {best} it saves {curve.grain_gain:.0%} of a "
            "step (and changes the path by rounding)."
        )
    if advice.grain_fixed:
        return f"Keep grains of {curve.grain_size}: the model normalises over each."
    if curve.grain_size != advice.grain_size:
        return f"Use --grain {curve.grain_size}: {best} need that many pieces of a batch."
    return f"Keep grains of {curve.grain_size}: no size that was timed is quicker with {best}."


def rates_table(advice: Advice) -> tuple[str, Rows, str]:
    """The range test."""
    rates = advice.rates
    rows = [["learning rate", "of the recipe's", "loss at the end", "converges"]]
    for trial in rates.trials:
        rows.append(
            [
                number(trial.learning_rate, 3),
                f"{trial.learning_rate / rates.recipe_rate:.3g}",
                number(trial.end_loss),
                "yes" if trial.converged else f"no: {trial.why}",
            ]
        )
    start = "" if rates.start_loss is None else f"; the first loss is {number(rates.start_loss)}"
    words = f"Short runs of {rates.steps} steps on the same batches{start}." if rates.trials else ""
    if rates.note:
        words += f" {rates.note[0].upper()}{rates.note[1:]}."
    return "Which learning rates converge", rows, words.strip()


def batch_table(advice: Advice) -> tuple[str, Rows, str]:
    """The noise scale and what follows from it."""
    batch = advice.batch
    room = {"yes": "yes", "no": "no", "unknown": "cannot be told"}[batch.room]
    rows = [
        ["", "examples", "from", "to"],
        ["batch", f"{advice.batch_size:,}", "", ""],
        ["noise scale", *map(_examples, (batch.noise_scale, batch.noise_low, batch.noise_high))],
        ["critical batch", "", _examples(batch.critical_low), _examples(batch.critical_high)],
        ["room for a larger batch", room, "", ""],
    ]
    words = (
        f"Along {batch.steps} steps of training, with an interval of 95 %." if batch.points else ""
    )
    if batch.note:
        words += f" {batch.note[0].upper()}{batch.note[1:]}."
    if batch.critical_low is not None:
        words += " Published critical batches are an eighth to a half of the noise scale."
    return "Whether a larger batch has room", rows, words.strip()


def _examples(value: float | None) -> str:
    return "unknown" if value is None else "no end" if math.isinf(value) else examples(value)


def sources_table(advice: Advice) -> Rows:
    """Where every number is from."""
    return [["what", "how"], *map(list, _sources(advice))]


def _sources(advice: Advice) -> Iterator[tuple[str, str]]:
    counts = sorted({r.workers for c in advice.curves for r in c.rows if r.how == "measured"})
    yield "grains, update, reductions", f"measured here ({advice.machine})"
    yield f"steps of {workers_named(counts)}", "measured here"
    yield "other steps", "modelled from these: grains drawn from the times measured, links as given"
    off = [abs(row.modelled_seconds / row.step_seconds - 1.0) for row in _both(advice)]
    if off:
        yield "the model where it can be checked", f"{max(off):.0%} off ({_checked(advice)})"
    rates, batch = advice.rates, advice.batch
    runs = f"{len(rates.trials)} short runs of {rates.steps} steps, real ones"
    yield "learning rates", runs if rates.trials else "none was tried"
    yield "noise scale", f"a run of {batch.steps} steps, a real one" if batch.steps else "no run"
    seconds = advice.seconds
    parts = [f"{seconds[f'{part}_seconds']:.0f} s {what}" for part, what in _PARTS.items()]
    yield "time it took", f"{seconds['all_seconds']:.0f} s: {listed(parts)}"
    for note in advice.notes:
        yield "to be kept in mind", note


_PARTS = {"step": "for times", "rates": "for rates", "noise": "for the noise scale"}


def _both(advice: Advice) -> list[Row]:
    """Rows of several workers that are both measured and modelled."""
    return [r for c in advice.curves for r in c.rows if r.how == "measured" and r.workers > 1]


def _checked(advice: Advice) -> str:
    return listed(
        f"{row.workers} workers: {duration_short(row.modelled_seconds)} modelled, "
        f"{duration_short(row.step_seconds)} measured"
        for row in _both(advice)
    )


def duration_short(seconds: float) -> str:
    """Three digits, in the unit a step needs."""
    if seconds == 0.0:
        return "0"
    for unit, length in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= length:
            value = seconds / length
            return f"{value:.0f} {unit}" if value >= 99.95 else f"{value:#.3g} {unit}"
    return f"{seconds / 1e-9:.2g} ns"


_LOOKS = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "D"), ("#CC79A7", "^"), ("#332288", "v"))
_NOISE, _RATES, _CRITICAL, _OTHER = "#882255", "#117733", "#DDAA33", "0.4"
_DASHES: dict[str, Any] = {"color": _OTHER, "linewidth": 1.2, "linestyle": (0, (4, 2)), "zorder": 1}


def draw_advice(title: str, advice: Advice, out: Path) -> None:
    """Four axes and a legend."""
    figure = new_figure(11.4, 7.4, title)
    (speed, efficiency), (rates, noise) = figure.subplots(2, 2)
    counts = sorted({row.workers for curve in advice.curves for row in curve.rows})
    for place, curve in enumerate(advice.curves):
        look = _LOOKS[place % len(_LOOKS)]
        _draw_curve(speed, curve, look, lambda row: row.speedup)
        _draw_curve(efficiency, curve, look, lambda row: 100.0 * row.efficiency)
    _draw_speed(speed, advice, counts)
    _draw_efficiency(efficiency, advice, counts)
    _draw_rates(rates, advice)
    _draw_noise(noise, advice)
    legend_beside(figure, _keys(advice))
    save_figure(figure, out)


def _draw_curve(
    axes: Axes, curve: Curve, look: tuple[str, str], value: Callable[[Row], float]
) -> None:
    colour, marker = look
    how: dict[str, Any] = {"markersize": 6.0, "markeredgewidth": 1.4, "color": colour}
    axes.plot([r.workers for r in curve.rows], [value(r) for r in curve.rows], color=colour, lw=1.4)
    for row in curve.rows:
        face = colour if row.how == "measured" else "white"
        axes.plot([row.workers], [value(row)], marker, mfc=face, zorder=3, **how)
        if row.workers == curve.best:
            axes.plot([row.workers], [value(row)], "o", ms=13, mfc="none", mec=colour, mew=1.2)
        if row.workers == curve.knee:
            axes.plot([row.workers], [value(row)], "|", ms=20, mew=1.6, color=colour)


def _draw_speed(axes: Axes, advice: Advice, counts: list[int]) -> None:
    axes.plot(counts, counts, color="0.65", linewidth=1.0, zorder=1)
    shown = [row.speedup for curve in advice.curves for row in curve.rows]
    log_values(axes, *margins([*shown, *map(float, counts), 1.0, 2.0]))
    powers_axis(axes, counts, "workers")
    axes.yaxis.set_major_locator(axes.xaxis.get_major_locator())
    axes.yaxis.set_minor_locator(NullLocator())
    _say(axes, counts[-1], counts[-1], "ideal", ha="right", va="bottom")
    axes.set_ylabel("speed-up over one worker")
    tidy(axes)


def _draw_efficiency(axes: Axes, advice: Advice, counts: list[int]) -> None:
    axes.axhline(100.0, color="0.65", linewidth=1.0, zorder=1)
    axes.axhline(100.0 * advice.floor, **_DASHES)
    shown = [100.0 * row.efficiency for curve in advice.curves for row in curve.rows]
    axes.set_ylim(0.0, 1.08 * max([100.0, *shown]))
    powers_axis(axes, counts, "workers")
    axes.set_ylabel("efficiency: speed-up / workers (%)")
    _say(axes, axes.get_xlim()[1], 100.0 * advice.floor, "floor", ha="right", va="bottom")
    tidy(axes)


def _draw_rates(axes: Axes, advice: Advice) -> None:
    rates = advice.rates
    axes.set_xlabel("learning rate")
    axes.set_ylabel(f"training loss after {rates.steps} steps" if rates.steps else "training loss")
    tried = [trial for trial in rates.trials if math.isfinite(trial.end_loss)]
    tidy(axes)
    if not tried:
        say_nothing_to_show(axes, fill(rates.note or "no learning rate was tried", 32))
        return
    axes.plot([t.learning_rate for t in tried], [t.end_loss for t in tried], color=_RATES, lw=1.4)
    for trial in tried:
        look = ("o", "white") if trial.converged else ("x", _RATES)
        how: dict[str, Any] = {"ms": 6.5, "mew": 1.6, "color": _RATES, "zorder": 3}
        axes.plot([trial.learning_rate], [trial.end_loss], look[0], mfc=look[1], **how)
    if rates.start_loss is not None:
        axes.axhline(rates.start_loss, color="0.65", linewidth=1.0, zorder=1)
    lost = [trial.learning_rate for trial in rates.trials if trial not in tried]
    for rate in lost:
        axes.plot([rate], [0.97], "x", transform=axes.get_xaxis_transform(), color=_RATES, mew=1.6)
    axes.axvline(rates.recipe_rate, **_DASHES)
    everywhere = [rates.recipe_rate, *(trial.learning_rate for trial in rates.trials)]
    log_values(axes, *margins(everywhere, 0.1), which="x")
    highest = max([t.end_loss for t in tried if t.converged] + [rates.start_loss or 0.0])
    lowest = min(trial.end_loss for trial in tried)
    room = 0.1 * (highest - lowest) or 1.0
    axes.set_ylim(lowest - room, highest + 3.0 * room)  # what is lost need not be in the picture
    if rates.start_loss is not None:
        _say(axes, axes.get_xlim()[1], rates.start_loss, "the first loss", ha="right", va="bottom")
    _say(axes, rates.recipe_rate, highest + 2.9 * room, " the recipe's rate", ha="left", va="top")


def _draw_noise(axes: Axes, advice: Advice) -> None:
    batch = advice.batch
    axes.set_xlabel("step of a short run")
    axes.set_ylabel("examples")
    tidy(axes)
    points = batch.points
    if not points:
        say_nothing_to_show(axes, fill(batch.note or "no noise scale was found", 32))
        return
    steps = [point.step for point in points]
    known = [v for p in points for v in (p.scale, p.low, p.high)]
    known += [batch.critical_low or 0.0, batch.critical_high or 0.0, float(advice.batch_size)]
    low, high = margins([value for value in known if 0.0 < value < math.inf], 0.05)
    tops = [min(point.high, high) for point in points]
    bottoms = [max(point.low, low) for point in points]
    axes.fill_between(steps, bottoms, tops, color=_NOISE, alpha=0.15, linewidth=0.0)
    scales = [p.scale if math.isfinite(p.scale) else math.nan for p in points]
    axes.plot(steps, scales, color=_NOISE, linewidth=1.6)
    axes.axhline(advice.batch_size, **_DASHES)
    log_values(axes, low, high)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    end = 1.06 * max(steps)
    axes.set_xlim(0, 1.03 * end)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    ends = [
        min(max(each, low), high) for each in (batch.critical_low or 0, batch.critical_high or 0)
    ]
    axes.plot([end, end], ends, color=_CRITICAL, linewidth=6.0, solid_capstyle="butt")
    _say(axes, 0.0, advice.batch_size, " the batch", ha="left", va="bottom")


def _say(axes: Axes, x: float, y: float, text: str, **how: Any) -> None:
    axes.text(x, y, text, color=_OTHER, fontsize=9, **how)


def _keys(advice: Advice) -> list[Artist]:
    handles: list[Artist] = []
    for place, curve in enumerate(advice.curves):
        colour, marker = _LOOKS[place % len(_LOOKS)]
        name = "this machine" if curve.network == HERE else curve.network
        handles.append(key(name, color=colour, marker=marker, markerfacecolor="white"))
    handles += how_keys({row.how for curve in advice.curves for row in curve.rows})
    ring: dict[str, Any] = {"marker": "o", "markersize": 12, "linestyle": "", "mfc": "none"}
    handles.append(key("workers to take", color="0.35", **ring))
    handles.append(key("knee", color="0.35", marker="|", ms=15, mew=1.6, linestyle=""))
    circle: dict[str, Any] = {"marker": "o", "linestyle": "", "markerfacecolor": "white"}
    handles.append(key("a rate that converges", color=_RATES, **circle))
    handles.append(key("one that does not", color=_RATES, marker="x", linestyle="", mew=1.6))
    handles.append(key("noise scale", color=_NOISE, linewidth=1.6))
    handles.append(Patch(facecolor=_NOISE, alpha=0.2, label="its interval (95 %)"))
    handles.append(Patch(facecolor=_CRITICAL, label="critical batch, from the last"))
    return handles
