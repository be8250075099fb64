"""The report of an advice: `measured.json`, `advice.png`, `advice.html`, and last `advice.json`.

In: an Advice and the MeasuredStep it rests on. Out: the page's path; the tables are the same on the
terminal and on the page. Guaranteed: the page opens without a network and without the other files;
a modelled time is marked; if writing is interrupted nothing is left behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullLocator

from samepath.insight.advise.advice import Advice, Row, ScalingCurve, examples, span
from samepath.insight.folder import write_finding
from samepath.report import style
from samepath.report.page import Section, command_section, new_folder, table_sections, write_page
from samepath.report.words import (
    MODELLED,
    Rows,
    Tables,
    link_words,
    listed,
    number,
    sentence,
    step_time,
    workers_named,
)
from samepath.timing.links import HERE
from samepath.timing.measured import MeasuredStep, write_measured


def write_advice(
    advice: Advice, measured: MeasuredStep, folder: Path, *, recipe: str, command: Sequence[str]
) -> Path:
    """Write everything."""
    title = f"{Path(recipe).name}: how many workers, which batch, and why"
    with new_folder(folder):
        write_measured(folder, measured)
        draw_advice(title, advice, folder / "advice.png")
        sections = [
            Section(heading="Verdict", words=advice.verdict, picture=folder / "advice.png"),
            *table_sections(tables_in_short(advice)),
            command_section(command),
        ]
        write_page(folder / "advice.html", title, sections)
        content = asdict(advice)
        write_finding(folder, "advice", recipe=recipe, command=command, content=content)
    return folder / "advice.html"


# ---------------------------------------------------------------------------------------- tables


def tables_in_short(advice: Advice) -> Tables:
    """What fits a terminal: titles, tables, and a note below each."""
    return [
        *(curve_table(advice, curve) for curve in advice.curves),
        rates_table(advice),
        batch_table(advice),
        ("What was measured and what modelled", sources_table(advice), ""),
    ]


def curve_table(advice: Advice, curve: ScalingCurve) -> tuple[str, Rows, str]:
    """Numbers of workers over one link."""
    several = curve.workers_per_node not in (None, 1)
    priced = advice.price_per_worker_hour is not None
    head = ["workers", "nodes", "step", "speed-up", "efficiency", "cost", "training", "price"]
    rows = [[*head, "grain", ""]]
    for row in curve.rows:
        seconds = step_time(row.step_seconds) + (MODELLED if row.how == "modelled" else "")
        marks = ["best"] * (row.workers == curve.best) + ["knee"] * (row.workers == curve.knee)
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
                ", ".join(marks),
            ]
        )
    shown = {"nodes": several, "price": priced}
    places = [place for place, name in enumerate(rows[0]) if shown.get(name, True)]
    table = [[row[place] for place in places] for row in rows]
    return _title(advice, curve), table, _note(advice, curve)


def _title(advice: Advice, curve: ScalingCurve) -> str:
    if curve.network == HERE:
        return f"On this machine ({advice.machine})"
    joined = ", then ".join(map(link_words, curve.links))
    per_node = curve.workers_per_node
    where = "one worker each" if per_node == 1 else f"{per_node} workers each"
    return f"Computers like this one, {where}, over {curve.network} ({joined})"


def _note(advice: Advice, curve: ScalingCurve) -> str:
    words = []
    if any(row.how == "modelled" for row in curve.rows):
        words.append(f"{MODELLED} modelled.")
    words.append("Cost: worker-hours relative to one worker.")
    knee = "not in this table" if curve.knee is None else f"at {workers_named([curve.knee])}"
    words.append(f"Knee (doubling saves less than a fifth of the time): {knee}.")
    words.append(_grain(advice, curve))
    if curve.law is not None:
        law = curve.law
        parts = (law.serial_seconds, law.parallel_seconds, law.doubling_seconds)
        fixed, shared, doubling = map(step_time, parts)
        fitted = f"T(n) = {fixed} + {shared} / n + {doubling} log2 n"
        words.append(f"{fitted}, within {law.largest_error:.0%}.")
    return " ".join(words)


def _grain(advice: Advice, curve: ScalingCurve) -> str:
    """Say which grain size to use, and why."""
    best = workers_named([curve.best])
    if curve.grain_gain > 0.0:
        return (
            f"Use --grain {curve.grain_size}: with {best} it saves {curve.grain_gain:.0%} of a "
            "step (and changes the path by rounding)."
        )
    if advice.grain_fixed:
        return f"Keep grains of {curve.grain_size}: the model normalises over each."
    if curve.grain_size != advice.grain_size:
        return f"Use --grain {curve.grain_size}: {best} need that many grains in a batch."
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
        words += f" {sentence(rates.note)}."
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
    words = f"From {batch.steps} steps of training; 95% interval." if batch.points else ""
    if batch.note:
        words += f" {sentence(batch.note)}."
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
    yield (
        "other steps",
        "modelled: grain times drawn from those measured, links as given",
    )
    both = [r for c in advice.curves for r in c.rows if r.how == "measured" and r.workers > 1]
    if both:
        off = max(abs(row.modelled_seconds / row.step_seconds - 1.0) for row in both)
        checked = listed(
            f"{row.workers} workers: {step_time(row.modelled_seconds)} modelled, "
            f"{step_time(row.step_seconds)} measured"
            for row in both
        )
        yield "the model where it can be checked", f"{off:.0%} off ({checked})"
    rates, batch = advice.rates, advice.batch
    runs = f"{len(rates.trials)} real runs of {rates.steps} steps"
    yield "learning rates", runs if rates.trials else "none was tried"
    yield "noise scale", f"a real run of {batch.steps} steps" if batch.steps else "no run"
    seconds = advice.seconds
    parts = {"step": "for times", "rates": "for rates", "noise": "for the noise scale"}
    spent = [f"{seconds[f'{part}_seconds']:.0f} s {what}" for part, what in parts.items()]
    yield "time it took", f"{seconds['all_seconds']:.0f} s: {listed(spent)}"
    for note in advice.notes:
        yield "note", note


# ---------------------------------------------------------------------------------------- figure

_NOISE, _RATES, _CRITICAL, _OTHER = "#882255", "#117733", "#DDAA33", "0.4"
_DASHES: dict[str, Any] = {"color": _OTHER, "linewidth": 1.2, "linestyle": (0, (4, 2)), "zorder": 1}


def draw_advice(title: str, advice: Advice, out: Path) -> None:
    """Four axes and a legend."""
    figure = style.new_figure(11.4, 7.4, title)
    (speed, efficiency), (rates, noise) = figure.subplots(2, 2)
    counts = sorted({row.workers for curve in advice.curves for row in curve.rows})
    looks = _looks(advice)
    for curve in advice.curves:
        look = looks[_name(curve)]
        _draw_curve(speed, curve, look, lambda row: row.speedup)
        _draw_curve(efficiency, curve, look, lambda row: 100.0 * row.efficiency)
    _draw_speed(speed, advice, counts)
    _draw_efficiency(efficiency, advice, counts)
    _draw_rates(rates, advice)
    _draw_noise(noise, advice)
    style.finish(figure, _keys(advice), out)


def _draw_curve(
    axes: Axes, curve: ScalingCurve, look: style.Look, value: Callable[[Row], float]
) -> None:
    counts, heights = [row.workers for row in curve.rows], [value(row) for row in curve.rows]
    axes.plot(counts, heights, color=look.colour, lw=1.4)
    for row, height in zip(curve.rows, heights, strict=True):
        style.draw_point(axes, row.workers, height, look, hollow=row.how != "measured")
        if row.workers == curve.best:
            how: dict[str, Any] = {"ms": 13, "mfc": "none", "mec": look.colour, "mew": 1.2}
            axes.plot([row.workers], [height], "o", **how)
        if row.workers == curve.knee:
            axes.plot([row.workers], [height], "|", ms=20, mew=1.6, color=look.colour)


def _draw_speed(axes: Axes, advice: Advice, counts: list[int]) -> None:
    axes.plot(counts, counts, zorder=1, **style.GUIDE)
    shown = [row.speedup for curve in advice.curves for row in curve.rows]
    style.log_values(axes, *style.margins([*shown, *map(float, counts), 1.0, 2.0]))
    style.powers_axis(axes, counts, "workers")
    axes.yaxis.set_major_locator(axes.xaxis.get_major_locator())
    axes.yaxis.set_minor_locator(NullLocator())
    _say(axes, counts[-1], counts[-1], "ideal", ha="right", va="bottom")
    axes.set_ylabel("speed-up over one worker")
    style.tidy(axes)


def _draw_efficiency(axes: Axes, advice: Advice, counts: list[int]) -> None:
    axes.axhline(100.0, zorder=1, **style.GUIDE)
    axes.axhline(100.0 * advice.floor, **_DASHES)
    shown = [100.0 * row.efficiency for curve in advice.curves for row in curve.rows]
    axes.set_ylim(0.0, 1.08 * max([100.0, *shown]))
    style.powers_axis(axes, counts, "workers")
    axes.set_ylabel("efficiency: speed-up / workers (%)")
    _say(axes, axes.get_xlim()[1], 100.0 * advice.floor, "floor", ha="right", va="bottom")
    style.tidy(axes)


def _draw_rates(axes: Axes, advice: Advice) -> None:
    rates = advice.rates
    axes.set_xlabel("learning rate")
    axes.set_ylabel(f"training loss after {rates.steps} steps" if rates.steps else "training loss")
    tried = [trial for trial in rates.trials if math.isfinite(trial.end_loss)]
    style.tidy(axes)
    if not tried:
        style.say_nothing_to_show(axes, fill(rates.note or "no learning rate was tried", 32))
        return
    axes.plot([t.learning_rate for t in tried], [t.end_loss for t in tried], color=_RATES, lw=1.4)
    for trial in tried:
        look = ("o", "white") if trial.converged else ("x", _RATES)
        how: dict[str, Any] = {"ms": 6.5, "mew": 1.6, "color": _RATES, "zorder": 3}
        axes.plot([trial.learning_rate], [trial.end_loss], look[0], mfc=look[1], **how)
    if rates.start_loss is not None:
        axes.axhline(rates.start_loss, zorder=1, **style.GUIDE)
    lost = [trial.learning_rate for trial in rates.trials if trial not in tried]
    for rate in lost:
        axes.plot([rate], [0.97], "x", transform=axes.get_xaxis_transform(), color=_RATES, mew=1.6)
    axes.axvline(rates.recipe_rate, **_DASHES)
    everywhere = [rates.recipe_rate, *(trial.learning_rate for trial in rates.trials)]
    style.log_values(axes, *style.margins(everywhere, 0.1), which="x")
    highest = max([t.end_loss for t in tried if t.converged] + [rates.start_loss or 0.0])
    lowest = min(trial.end_loss for trial in tried)
    room = 0.1 * (highest - lowest) or 1.0
    axes.set_ylim(lowest - room, highest + 3.0 * room)  # what is lost need not be in the picture
    if rates.start_loss is not None:
        _say(axes, axes.get_xlim()[1], rates.start_loss, "first loss", ha="right", va="bottom")
    _say(axes, rates.recipe_rate, highest + 2.9 * room, " recipe's rate", ha="left", va="top")


def _draw_noise(axes: Axes, advice: Advice) -> None:
    batch = advice.batch
    axes.set_xlabel("step of a short run")
    axes.set_ylabel("examples")
    style.tidy(axes)
    points = batch.points
    if not points:
        style.say_nothing_to_show(axes, fill(batch.note or "no noise scale was found", 32))
        return
    steps = [point.step for point in points]
    known = [v for p in points for v in (p.scale, p.low, p.high)]
    known += [batch.critical_low or 0.0, batch.critical_high or 0.0, float(advice.batch_size)]
    low, high = style.margins([value for value in known if 0.0 < value < math.inf], 0.05)
    tops = [min(point.high, high) for point in points]
    bottoms = [max(point.low, low) for point in points]
    axes.fill_between(steps, bottoms, tops, color=_NOISE, alpha=0.15, linewidth=0.0)
    scales = [p.scale if math.isfinite(p.scale) else math.nan for p in points]
    axes.plot(steps, scales, color=_NOISE, linewidth=1.6)
    axes.axhline(advice.batch_size, **_DASHES)
    style.log_values(axes, low, high)
    end = 1.06 * max(steps)
    axes.set_xlim(0, 1.03 * end)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    ends = [
        min(max(each, low), high) for each in (batch.critical_low or 0, batch.critical_high or 0)
    ]
    axes.plot([end, end], ends, color=_CRITICAL, linewidth=6.0, solid_capstyle="butt")
    _say(axes, 0.0, advice.batch_size, " batch", ha="left", va="bottom")


def _say(axes: Axes, x: float, y: float, text: str, **how: Any) -> None:
    axes.text(x, y, text, color=_OTHER, fontsize=9, **how)


def _name(curve: ScalingCurve) -> str:
    return "this machine" if curve.network == HERE else curve.network


def _looks(advice: Advice) -> dict[str, style.Look]:
    return style.series_looks(dict.fromkeys(map(_name, advice.curves)))


def _keys(advice: Advice) -> list[Artist]:
    handles: list[Artist] = [*style.look_keys(_looks(advice), markerfacecolor="white")]
    handles += style.how_keys({row.how for curve in advice.curves for row in curve.rows})
    return [
        *handles,
        style.point_key("workers to take", markersize=12, markerfacecolor="none"),
        style.point_key("knee", "|", markersize=15, markeredgewidth=1.6),
        style.point_key("rate that converges", color=_RATES, markerfacecolor="white"),
        style.point_key("rate that does not", "x", color=_RATES, markeredgewidth=1.6),
        style.key("noise scale", color=_NOISE, linewidth=1.6),
        Patch(facecolor=_NOISE, alpha=0.2, label="95% interval of the noise scale"),
        Patch(facecolor=_CRITICAL, label="critical batch, from the last noise scale"),
    ]
