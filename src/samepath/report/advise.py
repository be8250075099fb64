"""The report of an advice: `measured.json`, `advice.svg`, `advice.html`, and last `advice.json`
(and `branches.svg` where the critical batch was measured).

In: an Advice and the MeasuredStep it rests on. Out: the page's path; the tables are the same on the
terminal and on the page. Guaranteed: the page opens without a network and without the other files;
a modelled time is marked; if writing is interrupted nothing is left behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullLocator

from samepath.console import sentence
from samepath.insight.advise.advice import Advice, Row, ScalingCurve, examples, span
from samepath.report import style
from samepath.report.branches import HEADING, branches_table, draw_branches
from samepath.report.page import Section, command_section, table_sections, write_finding_page
from samepath.report.words import (
    MODELLED,
    Rows,
    Tables,
    link_words,
    listed,
    number,
    price_words,
    rows_of,
    step_time,
    workers_named,
)
from samepath.timing.links import HERE
from samepath.timing.measured import MeasuredStep


def write_advice(
    advice: Advice, measured: MeasuredStep, folder: Path, *, recipe: str, command: Sequence[str]
) -> Path:
    """Write everything; the page's path."""
    title = f"{Path(recipe).name}: how many workers, which batch, and why"

    def sections() -> Iterator[Section]:
        picture = draw_advice(title, advice, folder / "advice.svg")
        yield Section(heading="Verdict", words=advice.verdict, picture=picture)
        for section in table_sections(tables(advice)):
            if advice.measured_batch is not None and section.heading == HEADING:
                drawn = draw_branches(
                    f"{Path(recipe).name}: {HEADING[0].lower()}{HEADING[1:]}",
                    advice.measured_batch,
                    folder / "branches.svg",
                )
                yield replace(section, picture=drawn)
            else:
                yield section
        yield command_section(command)

    said = asdict(advice)
    return write_finding_page(
        folder, "advice", title, sections(), said, recipe=recipe, command=command, measured=measured
    )


# ---------------------------------------------------------------------------------------- tables


def tables_in_short(advice: Advice) -> Tables:
    """What a terminal shows: how many workers, and how that was measured."""
    return [*(curve_table(advice, curve) for curve in advice.curves), _sources(advice)]


def tables(advice: Advice) -> Tables:
    """All of them: titles, tables, and a note below each."""
    return [
        *(curve_table(advice, curve) for curve in advice.curves),
        rates_table(advice),
        batch_table(advice),
        *([] if advice.measured_batch is None else [branches_table(advice.measured_batch)]),
        _sources(advice),
    ]


def _sources(advice: Advice) -> tuple[str, Rows, str]:
    return "What was measured and what modelled", sources_table(advice), ""


def curve_table(advice: Advice, curve: ScalingCurve) -> tuple[str, Rows, str]:
    """Numbers of workers over one link: a title, the table and a note."""
    joined = ", then ".join(map(link_words, curve.links))
    per_node = curve.workers_per_node
    where = "one worker each" if per_node == 1 else f"{per_node} workers each"
    title = f"Computers {curve.computers}, {where}, over {curve.network} ({joined})"
    if curve.network == HERE:
        title = f"On this machine ({advice.machine})"
    hidden = {"nodes"} if per_node is None else set()
    hidden |= {"price"} if advice.price_per_worker_hour is None else set()
    lines = [
        {
            "workers": str(row.workers),
            "nodes": str(row.nodes),
            "step": step_time(row.step_seconds) + (MODELLED if row.how == "modelled" else ""),
            "speed-up": f"{row.speedup:.2f}",
            "efficiency": f"{row.efficiency:.0%}",
            "": ", ".join(_marks(curve, row)),
            "training": span(row.training_seconds),
            "cost": f"{row.cost:.2f}",
            "price": "" if row.price is None else price_words(row.price),
            "grain": str(row.grain_size),
        }
        for row in curve.rows
    ]
    shown = [{name: text for name, text in row.items() if name not in hidden} for row in lines]
    return title, rows_of(shown), _note(advice, curve)


def _marks(curve: ScalingCurve, row: Row) -> list[str]:
    """What a row is; nothing where that rests on a model that fails its check."""
    if row.how == "modelled" and curve.is_model_off:
        return []
    return ["best"] * (row.workers == curve.best) + ["knee"] * (row.workers == curve.knee)


def _note(advice: Advice, curve: ScalingCurve) -> str:
    modelled = any(row.how == "modelled" for row in curve.rows)
    words = [f"{MODELLED} modelled."] if modelled else []
    if modelled and curve.is_model_off:
        words = [
            f"{MODELLED} modelled, and the model is {curve.model_error:.0%} off where it can be "
            "checked: not to go by."
        ]
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
    if curve.gain_words:
        return f"{sentence(curve.gain_words)}; it changes the path by rounding."
    if advice.grain_fixed:
        return f"Keep grains of {curve.grain_size}: the model normalises over each."
    if curve.grain_size != advice.grain_size:
        return f"Use --max-workers {curve.max_workers}: {best} need that many grains in a batch."
    return f"Keep grains of {curve.grain_size}: no size that was timed is quicker with {best}."


def rates_table(advice: Advice) -> tuple[str, Rows, str]:
    """The range test."""
    rates = advice.rates
    rows = [["learning rate", "of the recipe's", "loss at the end", "converges"]]
    for trial in rates.trials:
        rate, relative = trial.learning_rate, trial.learning_rate / rates.recipe_rate
        converges = "yes" if trial.converged else f"no: {trial.why}"
        rows.append([number(rate, 3), f"{relative:.3g}", number(trial.end_loss), converges])
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
    """The source of every number."""
    rates, batch, seconds = advice.rates, advice.batch, advice.seconds
    measured = [row for c in advice.curves for row in c.rows if row.how == "measured"]
    counts = workers_named(sorted({row.workers for row in measured}))
    rows = [
        ["what", "how"],
        ["grains, update, reductions", f"measured here ({advice.machine})"],
        [f"steps of {counts}", "measured here"],
        ["other steps", "modelled: grain times drawn from those measured, links as given"],
    ]
    both = [row for row in measured if row.workers > 1]
    if both:
        off = max(abs(row.modelled_seconds / row.step_seconds - 1.0) for row in both)
        checked = listed(
            f"{row.workers} workers: {step_time(row.modelled_seconds)} modelled, "
            f"{step_time(row.step_seconds)} measured"
            for row in both
        )
        rows.append(["the model where it can be checked", f"{off:.0%} off ({checked})"])
    runs = f"{len(rates.trials)} real runs of {rates.steps} steps"
    parts = {"step": "for times", "rates": "for rates", "noise": "for the noise scale"}
    branches = []
    if advice.measured_batch is not None:
        parts["branches"] = "for branches"
        number_of = len(advice.measured_batch.branches)
        branches = [["critical batch", f"measured: {number_of} real runs from one state"]]
    spent = [f"{seconds[f'{part}_seconds']:.0f} s {what}" for part, what in parts.items()]
    return [
        *rows,
        ["learning rates", runs if rates.trials else "none was tried"],
        ["noise scale", f"a real run of {batch.steps} steps" if batch.steps else "no run"],
        *branches,
        ["time it took", f"{seconds['all_seconds']:.0f} s: {listed(spent)}"],
        *(["note", note] for note in advice.notes),
    ]


# ---------------------------------------------------------------------------------------- figure

_NOISE, _RATES, _CRITICAL, _OTHER = "#882255", "#117733", "#DDAA33", "0.4"
_DASHES: dict[str, Any] = {"color": _OTHER, "linewidth": 1.2, "linestyle": (0, (4, 2)), "zorder": 1}


def draw_advice(title: str, advice: Advice, out: Path) -> Path:
    """Four axes and a legend."""
    figure = style.new_figure(11.4, 7.4, title)
    (speed, efficiency), (rates, noise) = figure.subplots(2, 2)
    names = ["this machine" if c.network == HERE else c.network for c in advice.curves]
    looks = style.series_looks(dict.fromkeys(names))
    for curve, name in zip(advice.curves, names, strict=True):
        _draw_scaling(speed, curve, looks[name], lambda row: row.speedup)
        _draw_scaling(efficiency, curve, looks[name], lambda row: 100.0 * row.efficiency)
    rows = [row for curve in advice.curves for row in curve.rows]
    counts = sorted({row.workers for row in rows})
    for axes in (speed, efficiency):
        style.powers_axis(axes, counts, "workers")
        style.tidy(axes)
    speed.plot(counts, counts, zorder=1, **style.GUIDE)
    shown = [row.speedup for row in rows]
    style.log_values(speed, *style.margins([*shown, *map(float, counts), 1.0, 2.0]))
    speed.yaxis.set_major_locator(speed.xaxis.get_major_locator())
    speed.yaxis.set_minor_locator(NullLocator())
    _say(speed, counts[-1], counts[-1], "ideal", ha="right", va="bottom")
    speed.set_ylabel("speed-up over one worker")
    efficiency.axhline(100.0, zorder=1, **style.GUIDE)
    floor = 100.0 * advice.floor
    efficiency.axhline(floor, **_DASHES)
    efficiency.set_ylim(0.0, 1.08 * max([100.0, *(100.0 * row.efficiency for row in rows)]))
    efficiency.set_ylabel("efficiency: speed-up / workers (%)")
    _say(efficiency, efficiency.get_xlim()[1], floor, "floor", ha="right", va="bottom")
    _draw_rates(rates, advice)
    _draw_noise(noise, advice)
    handles: list[Artist] = [
        *style.look_keys(looks, markerfacecolor="white"),
        *style.how_keys({row.how for row in rows}),
        style.point_key("workers to take", markersize=12, markerfacecolor="none"),
        style.point_key("knee", "|", markersize=15, markeredgewidth=1.6),
        style.point_key("rate that converges", color=_RATES, markerfacecolor="white"),
        style.point_key("rate that does not", "x", color=_RATES, markeredgewidth=1.6),
        style.key("noise scale", color=_NOISE, linewidth=1.6),
        Patch(facecolor=_NOISE, alpha=0.2, label="95% interval of the noise scale"),
        Patch(facecolor=_CRITICAL, label="critical batch, from the last noise scale"),
    ]
    return style.finish(figure, handles, out)


def _draw_scaling(
    axes: Axes, curve: ScalingCurve, look: style.Look, value: Callable[[Row], float]
) -> None:
    heights = {row.workers: value(row) for row in curve.rows}
    for how in ("measured", "modelled"):  # no line joins the two
        counts = [row.workers for row in curve.rows if row.how == how]
        hollow = [how == "modelled"] * len(counts)
        style.draw_curve(axes, counts, [heights[n] for n in counts], look, hollow)
    ring: dict[str, Any] = {"ms": 13, "mfc": "none", "mec": look.colour, "mew": 1.2}
    marks = {row.workers: _marks(curve, row) for row in curve.rows}
    if marks[curve.best]:
        axes.plot([curve.best], [heights[curve.best]], "o", **ring)
    if curve.knee is not None and marks[curve.knee]:
        axes.plot([curve.knee], [heights[curve.knee]], "|", ms=20, mew=1.6, color=look.colour)


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
    critical = (batch.critical_low or 0.0, batch.critical_high or 0.0)
    known = [v for p in points for v in (p.scale, p.low, p.high)]
    known += [*critical, float(advice.batch_size)]
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
    ends = [min(max(each, low), high) for each in critical]
    axes.plot([end, end], ends, color=_CRITICAL, linewidth=6.0, solid_capstyle="butt")
    _say(axes, 0.0, advice.batch_size, " batch", ha="left", va="bottom")


def _say(axes: Axes, x: float, y: float, text: str, **how: Any) -> None:
    axes.text(x, y, text, color=_OTHER, fontsize=9, **how)
